"""manage.py project, session, token and cron, as a script sees them."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from sessions_app import actions
from sessions_app.clock import database_now
from sessions_app.models import Lane, Project, Session
from tests.factories import ProjectFactory, SessionFactory

MANAGE = Path(__file__).resolve().parents[2] / "manage.py"


def run(*arguments):
    """The lines that the command writes, read as JSON."""
    written = io.StringIO()
    call_command(*arguments, stdout=written)
    return [json.loads(line) for line in written.getvalue().splitlines()]


def spawn(*arguments, **environment):
    return subprocess.run(
        [sys.executable, str(MANAGE), *arguments], capture_output=True, text=True, check=False, timeout=60,
        env={**os.environ, **environment},
    )


@pytest.mark.django_db
def test_project_create_writes_its_slug():
    assert run("project", "create", "office", "--name", "The office") == [{"slug": "office"}]
    assert Project.objects.get(pk="office").name == "The office"


@pytest.mark.django_db
def test_a_slug_in_use_is_refused():
    ProjectFactory(slug="office")
    with pytest.raises(CommandError, match="in use"):
        run("project", "create", "office")


@pytest.mark.django_db
@pytest.mark.parametrize("slug", ["", " ", "a b", "ü", "a/b", "x" * 65])
def test_a_slug_that_is_none_is_refused(slug):
    with pytest.raises(CommandError, match="slug"):
        run("project", "create", slug)
    assert not Project.objects.exists()


@pytest.mark.django_db
def test_session_create_writes_its_id_and_a_token_that_works():
    ProjectFactory(slug="office")
    [made] = run("session", "create", "--project", "office", "--id", "planner", "--title", "Plans", "--config", '{"batch": 2}')
    assert made["agent_id"] == "planner"
    assert actions.find_token(made["token"], now=database_now()).session_id == "planner"
    assert Session.objects.get(pk="planner").config == {"batch": 2}
    assert Lane.objects.filter(key="agent:planner").exists()


@pytest.mark.django_db
def test_the_only_project_need_not_be_named():
    ProjectFactory(slug="office")
    [made] = run("session", "create")
    assert Session.objects.get(pk=made["agent_id"]).project_id == "office"


@pytest.mark.django_db
def test_of_two_projects_one_must_be_named():
    ProjectFactory.create_batch(2)
    with pytest.raises(CommandError, match="there are several"):
        run("session", "create")


@pytest.mark.django_db
def test_without_a_project_the_error_says_how_to_make_one():
    with pytest.raises(CommandError, match="project create"):
        run("token", "create")


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("--project", "nowhere", "--project"),
        ("--id", "ses_mine", "agent_id"),
        ("--id", "a b", "agent_id"),
        ("--runtime", "magic", "runtime"),
        ("--config", "{", "--config"),
        ("--config", "[" * 20_000, "--config"),
        ("--config", "[1]", "--config"),
        ("--config", '{"a": "\\u0000"}', "config"),
        ("--title", "x" * 201, "title"),
    ],
)
def test_a_bad_option_is_named_and_makes_no_session(option, value, named):
    ProjectFactory(slug="office")
    with pytest.raises(CommandError, match=named):
        run("session", "create", option, value)
    assert not Session.objects.exists()


@pytest.mark.django_db
def test_token_create_makes_a_project_token():
    project = ProjectFactory()
    [made] = run("token", "create")
    token = actions.find_token(made["token"], now=database_now())
    assert (token.project, token.session) == (project, None)


@pytest.mark.django_db
def test_token_create_makes_a_token_of_one_session():
    session = SessionFactory()
    [made] = run("token", "create", "--project", session.project_id, "--agent", session.agent_id)
    assert actions.find_token(made["token"], now=database_now()).session == session


@pytest.mark.django_db
def test_a_token_for_a_session_of_another_project_is_refused():
    session, other = SessionFactory(), ProjectFactory()
    with pytest.raises(CommandError, match="--agent"):
        run("token", "create", "--project", other.slug, "--agent", session.agent_id)


@pytest.mark.parametrize(
    "arguments",
    [("project",), ("project", "paint"), ("project", "create"), ("session", "create", "--colour", "red"), ("inbox", "list", "--limit", "0")],
)
def test_wrong_arguments_are_one_line_on_standard_error_and_exit_code_1(arguments, tmp_path):
    ended = spawn(*arguments, SUZENT_DATA_DIR=str(tmp_path))
    assert (ended.returncode, ended.stdout) == (1, "")
    assert len(ended.stderr.splitlines()) == 1


def test_a_database_without_tables_is_one_sentence(tmp_path):
    ended = spawn("project", "create", "office", SUZENT_DATA_DIR=str(tmp_path), DATABASE_URL=f"sqlite:///{tmp_path / 'new.sqlite3'}")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert len(ended.stderr.splitlines()) == 1
    assert "migrate" in ended.stderr


# --- cron ------------------------------------------------------------------------------------------------------
def cron_job(**options):
    asked = {"name": "Morning", "expression": "0 6 * * *", "prompt": "Good morning.", **options}
    [made] = run("cron", "create", *(part for name, value in asked.items() for part in (f"--{name}", value)))
    return made


@pytest.mark.django_db
def test_a_cron_job_is_made_listed_run_switched_and_deleted():
    ProjectFactory(slug="office")
    made = cron_job(**{"time-zone": "Asia/Kolkata"})
    assert (made["agent_id"], made["next_runs"][0][10:]) == (f"cron-{made['job_id']}", "T06:00:00+05:30")
    assert run("cron", "list") == run("cron", "list", "--project", "office") == [made]
    [queued] = run("cron", "run", made["job_id"])
    assert run("cron", "runs", "--job", made["job_id"]) == [queued]
    assert [job["active"] for verb in ("disable", "enable") for job in run("cron", verb, made["job_id"])] == [False, True]
    assert run("cron", "tick") == [{"queued": 0}]
    assert run("cron", "delete", made["job_id"]) == [{"job_id": made["job_id"], "deleted": True}]
    assert run("cron", "list") == []


@pytest.mark.django_db
def test_a_bad_cron_command_says_what_is_wrong():
    ProjectFactory(slug="office")
    with pytest.raises(CommandError, match="expression: never comes"):
        cron_job(expression="0 0 30 2 *")
    with pytest.raises(CommandError, match="nothing here by that name"):
        run("cron", "run", "nowhere")
