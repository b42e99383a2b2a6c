"""The inbox for scripts: what waits, what failed, what an operator can do about it, and removing what is old."""

from __future__ import annotations

import signal
import threading
import time
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from inbox_app import retention, transitions
from inbox_app.mailbox import message_named, page_of_messages
from inbox_app.models import Message
from inbox_app.serializers import REASON_LENGTH, MessageOut, detail_of
from sessions_app.authentication import Caller
from sessions_app.clock import database_now
from sessions_app.management.project_option import add_project, chosen_project
from suzent_site.errors import Invalid
from suzent_site.script_command import AddVerb, ScriptCommand, operator

LISTED = 50
LISTED_AT_MOST = 10_000
PROGRESS_EVERY = 5.0  # seconds


class Command(ScriptCommand):
    help = "See and repair the inbox. One line of JSON a message on standard output, in the shape of GET /api/messages."

    def verbs(self, add: AddVerb) -> None:
        listing = add("list", help="the newest messages")
        add_project(listing)
        listing.add_argument("--status", choices=Message.Status.values, metavar="S", help=", ".join(Message.Status.values))
        listing.add_argument("--agent", metavar="A", default=None, help="only what this session sent or received")
        listing.add_argument("--limit", type=_limit, metavar="N", default=LISTED, help=f"how many at most ({LISTED})")
        _one(add("show", help="one message with its attempts and what it waits for"))
        for verb, what in (("retry", "try a failed message again"), ("withdraw", "take back one that has not started")):
            chosen = add(verb, help=what)
            _one(chosen)
            chosen.add_argument("--reason", default="", help="kept beside the message")
        purging = add("purge", help="remove what is older than SUZENT_RETENTION_DAYS and SUZENT_DEDUPE_DAYS; may be stopped and repeated")
        purging.add_argument("--dry-run", action="store_true", help="only say what would go")

    def list(self, options: dict[str, Any]) -> list[dict[str, Any]]:
        project = chosen_project(options["project"]).slug if options["project"] else None
        caller = _operator()
        if options["agent"] is not None:
            caller.session_named(options["agent"])
        page, _ = page_of_messages(caller, limit=options["limit"], agent_id=options["agent"], status=options["status"], project=project)
        return [dict(MessageOut(message).data) for message in page]

    def show(self, options: dict[str, Any]) -> dict[str, Any]:
        return detail_of(_named(options), now=database_now())

    def retry(self, options: dict[str, Any]) -> dict[str, Any]:
        message = _named(options)
        now = database_now()
        return detail_of(transitions.redeliver(message, who=_operator().label, now=now, reason=_reason(options)), now=now)

    def withdraw(self, options: dict[str, Any]) -> dict[str, Any]:
        message = _named(options)
        now, who, reason = database_now(), _operator().label, _reason(options)
        return detail_of(transitions.withdraw(message, who=who, by_sender=False, now=now, reason=reason), now=now)

    def purge(self, options: dict[str, Any]) -> dict[str, Any]:
        if options["dry_run"]:
            return {"dry_run": True, **retention.would_go(now=database_now())}
        with interruptible() as asked_to_stop:
            purged = retention.purge(now=database_now(), rest=asked_to_stop.wait, tell=self._progress())
        return {"dry_run": False, **purged.gone, "complete": purged.complete}

    def _progress(self) -> Callable[[Mapping[str, int]], None]:
        """Says every few seconds how far it is."""
        told_at = time.monotonic()

        def tell(gone: Mapping[str, int]) -> None:
            nonlocal told_at
            if time.monotonic() - told_at >= PROGRESS_EVERY:
                told_at = time.monotonic()
                self.stderr.write(", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in gone.items() if count))

        return tell


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """An event that is set by Ctrl-C and SIGTERM, so that what is in progress comes to its end."""
    asked = threading.Event()
    before = {number: signal.signal(number, lambda *_: asked.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _one(parser: ArgumentParser) -> None:
    parser.add_argument("message_id", metavar="ID")
    parser.add_argument("--project", metavar="P", default=None, help="needed only where two projects have a message of this id")


def _limit(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= LISTED_AT_MOST:
        raise ArgumentTypeError(f"must be a whole number from 1 to {LISTED_AT_MOST}")
    return int(text)


def _operator() -> Caller:
    """Whoever may run commands here reaches every project."""
    return Caller(project_id=None, session=None, label=operator())


def _named(options: dict[str, Any]) -> Message:
    project = chosen_project(options["project"]).slug if options["project"] else None
    return message_named(_operator(), options["message_id"], project=project)


def _reason(options: dict[str, Any]) -> str:
    reason: str = options["reason"]
    if len(reason) > REASON_LENGTH:
        raise Invalid("--reason", f"must be at most {REASON_LENGTH} characters; it has {len(reason)}")
    return reason
