"""The demo's conversation, and what the README and the demo give to paste."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.start
README = Path(__file__).resolve().parent.parent.parent / "README.md"


def played(site):
    script = f"import sys; from suzent_site.demo import play; play({site.url!r}, sys.stdout)"
    return site.run("shell", "-v0", "-c", script).stdout


def pasted(site, lines):
    """What the lines print in a shell; ``uv run`` is the Python of this test run."""
    here = lines.replace("uv run -q", sys.executable).replace("127.0.0.1:25314", f"127.0.0.1:{site.port}")
    return subprocess.run(
        ["bash", "-c", here], cwd=README.parent, env=site.environment, capture_output=True, text=True, timeout=60, check=True
    ).stdout


def test_the_demo_plays_to_its_end_at_every_start_and_its_last_line_can_be_pasted(site):
    site.up("--demo")
    site.wait_for(lambda: "That was all of it" in site.log, within=60)
    site.wait_for(lambda: "curl " in site.log, within=5)
    first, second = site.log, played(site)
    for text in (first, second):
        assert len(re.findall(r"pending: the row is committed", text)) == 5
        assert len(re.findall(r"\(\d\) delivered", text)) == 5
        assert "assistant  ok: Swing, three hours of it." in text
    assert site.one("SELECT count(*) FROM agent_inbox_messages WHERE status = 'delivered'") == 10
    assert json.loads(pasted(site, re.search(r"(curl .*)", second)[1]))["status"] == "pending"
    project_tokens = "SELECT count(*) FROM sessions_app_apitoken WHERE session_id IS NULL"
    assert site.one(project_tokens) == 1
    site.rows("UPDATE sessions_app_apitoken SET revoked_at = created_at")
    assert "That was all of it" in played(site)
    assert site.one(project_tokens) == 2


def test_the_lines_of_the_readme_work_as_pasted_and_may_be_pasted_again(site):
    site.up()
    played(site)
    lines = re.search(r"```bash\n(api=.*?)```", README.read_text(), re.DOTALL)[1]
    sent, message, read = (json.loads(line) for line in pasted(site, lines).splitlines())
    assert (sent["status"], sent["created"]) == ("pending", True)
    assert message["status"] == "delivered"
    assert read["messages"][-1]["text"] == "ok: Bake a loaf"
    again, _, read_again = (json.loads(line) for line in pasted(site, lines).splitlines())
    assert (again["status"], again["created"]) == ("delivered", False)
    assert read_again["message_count"] == read["message_count"]
