"""What the README says of settings and files is so."""

import re
from pathlib import Path

from django.core.management import get_commands

ROOT = Path(__file__).resolve().parent.parent.parent
README = (ROOT / "README.md").read_text()


def test_the_table_of_settings_names_every_knob_and_no_other():
    read = re.findall(r'(?:env\.\w+|_number)\("(\w+)"', (ROOT / "suzent_site" / "settings.py").read_text())
    rows = re.findall(r"^\| (`[A-Z`_, ]+`) \|", README, re.MULTILINE)
    assert sorted(name for row in rows for name in re.findall(r"[A-Z_]+", row)) == sorted(set(read))


def test_every_file_that_the_readme_sends_a_reader_to_is_there():
    named = set(re.findall(r"`((?:\w+/)+(?:\w+\.(?:py|md))?)`", README)) | {".ci/run", "pyproject.toml"}
    assert not [path for path in named if not (ROOT / path).exists() and not path.startswith(("admin/", "api/"))]


def test_every_command_that_the_readme_names_is_there():
    named = set(re.findall(r"manage\.py (\w+)", README))
    assert {"up", "peer", "channel"} <= named <= set(get_commands())


def test_every_link_within_the_readme_leads_to_a_heading():
    headings = re.findall(r"^#+ (.+)$", README, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    links = set(re.findall(r"\]\(#([\w-]+)\)", README))
    assert "settings" in links
    assert links <= anchors


def test_no_file_names_a_package_registry():
    hosts = ("py" + "pi.org", "files.python" + "hosted.org", "registry.npm" + "js.org")
    files = [ROOT / name for name in ("pyproject.toml", "README.md", "CHANGELOG.md", ".ci/run")]
    assert not [f"{file.name}: {host}" for file in files for host in hosts if host in file.read_text()]
