"""``manage.py inbox purge``, killed wherever it is: what it had done is whole, and the next one does the rest."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import Site

pytestmark = pytest.mark.processes
KILLED = 9  # what a crash point ends with
MESSAGES = 120  # more than one batch
SEND = f"""
from inbox_app import transitions
from inbox_app.models import Message
from sessions_app.clock import database_now
from sessions_app.models import Session
target = Session.objects.get(pk="helper")
for n in range({MESSAGES}):
    draft = transitions.Draft(target.project_id, target, f"number {{n}}", Message.Kind.USER_MESSAGE, message_id=f"old-{{n}}")
    message = transitions.accept(draft, now=database_now()).message
    transitions.withdraw(message, who="olga", by_sender=True, now=database_now())
"""


@pytest.fixture
def site(site) -> Site:
    """Messages that settled long ago; nothing else runs."""
    site.open_session("helper")
    site.run("shell", "-v0", "-c", SEND)
    site.rows("UPDATE agent_inbox_messages SET settled_at = ?", "2020-01-01 00:00:00+00")
    return site


def counts(site):
    tables = {"messages": "agent_inbox_messages", "interventions": "inbox_app_intervention", "keys": "inbox_app_dedupekey"}
    return {name: site.one(f"SELECT count(*) FROM {table}") for name, table in tables.items()}


def test_a_purge_that_is_killed_loses_no_id_and_the_next_one_goes_on(site):
    site.environment["SUZENT_DEDUPE_DAYS"] = "30000"
    for point, left in (("purge.before_commit", MESSAGES), ("purge.after_batch", MESSAGES - 50)):
        site.environment["SUZENT_FAULTS"] = f"{point}:exit"
        assert site.run("inbox", "purge", check=False).returncode == KILLED
        assert counts(site) == {"messages": left, "interventions": left, "keys": MESSAGES - left}
    del site.environment["SUZENT_FAULTS"]
    assert site.command("inbox", "purge", "--dry-run")["messages"] == left
    assert site.command("inbox", "purge")["complete"] is True
    assert counts(site) == {"messages": 0, "interventions": 0, "keys": MESSAGES}
