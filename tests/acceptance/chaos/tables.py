"""Reading an installation's tables past its processes, also while the database server is being restarted."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime

import psycopg

from tests.acceptance.conftest import Site

UNSETTLED = """
    SELECT (SELECT count(*) FROM agent_inbox_messages WHERE lane IS NOT NULL)
         + (SELECT count(*) FROM inbox_app_attempt WHERE outcome IS NULL)
         + (SELECT count(*) FROM sessions_app_turn WHERE finished_at IS NULL)
         + (SELECT count(*) FROM sessions_app_lane WHERE lease_owner IS NOT NULL)
"""


def rows_if_there(site: Site, statement: str, *parameters: object) -> list[tuple] | None:
    """None while the database does not answer."""
    try:
        return site.rows(statement, *parameters)
    except (psycopg.OperationalError, sqlite3.OperationalError):
        return None


def is_all_settled(site: Site) -> bool:
    """No message, attempt, turn or lease is open."""
    return rows_if_there(site, UNSETTLED) in ([(0,)],)


def seconds(moment: object) -> float | None:
    """A column with a time, as SQLite (text, UTC) or PostgreSQL gives it, as time.time() would say it."""
    if moment is None:
        return None
    read = moment if isinstance(moment, datetime) else datetime.fromisoformat(str(moment))
    return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
