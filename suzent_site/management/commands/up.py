"""``manage.py up``: everything that one machine needs, with one command."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import sys
import threading
import time
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandParser, OutputWrapper
from django.db import DatabaseError, connections
from django.utils.module_loading import import_string

from suzent_site.children import Family
from suzent_site.demo import play
from suzent_site.errors import first_line
from suzent_site.health import unapplied_migrations
from suzent_site.preflight import NotReady, check_all
from suzent_site.processes import Bell

OPERATOR = "admin"
PASS = 0.2  # seconds between two looks at the children
LAST_ORDERS = 10.0  # seconds past the grace period until everything is killed
LOOK = 2.0  # seconds between two looks which further children are needed
SLOW = 15.0  # seconds without readiness after which we say what is missing


class Command(BaseCommand):
    help = "Prepare the database and run the web server and the cluster until Ctrl-C or SIGTERM."
    requires_system_checks: list[str] = []
    requires_migrations_checks = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--demo", action="store_true", help="also make a small project and play a conversation in it")

    def handle(self, *args: Any, demo: bool, **options: Any) -> None:
        try:
            check_all()
            self._prepare()
        except NotReady as error:
            self.stderr.write(str(error))
            sys.exit(1)
        except DatabaseError as error:
            self.stderr.write(f"The database could not be prepared: {first_line(error)}.")
            sys.exit(1)
        connections.close_all()
        self._run(demo=demo)

    def _prepare(self) -> None:
        if missing := unapplied_migrations():
            self.stdout.write(f"Preparing the database: {missing} migrations.")
            call_command("migrate", verbosity=0, interactive=False)
        if settings.CACHES["default"]["BACKEND"].endswith("DatabaseCache"):
            call_command("createcachetable", verbosity=0)

    def _run(self, *, demo: bool) -> None:
        self.bell = Bell()
        self.family = Family(("web", "cluster"), say=self._say)
        self._looked_at = -LOOK
        try:
            self._become_ready()
            if not self.bell.stop_asked:
                self._welcome(make_operator())
                if demo:  # beside the loop, which goes on looking after the children
                    threading.Thread(target=play_demo, args=(self.stdout,), name="demo", daemon=True).start()
            while not self.bell.stop_asked:
                self._start_what_is_needed()
                self.family.step(self.bell, seconds=PASS)
        finally:
            self._say("up", "stopping; running turns may finish")
            self.family.end(self.bell, patience=settings.SUZENT_SHUTDOWN_GRACE + LAST_ORDERS)
            self._say("up", "everything has ended")

    def _start_what_is_needed(self) -> None:
        """Children that only some installations need, as soon as they do."""
        if self._looked_at + LOOK > time.monotonic():
            return
        self._looked_at = time.monotonic()
        for name, path in settings.CHILDREN_ON_DEMAND.items():
            try:
                if import_string(path)():
                    self.family.join(name)
            except DatabaseError as error:
                self._say("up", f"cannot see whether {name} is needed: {first_line(error)}")
            finally:
                connections.close_all()

    def _become_ready(self) -> None:
        self._write(self.stdout, f"Starting the web server at {base_url()} and the cluster (process {os.getpid()}, Ctrl-C stops it).")
        ask_at, speak_at = time.monotonic(), time.monotonic() + SLOW
        missing = "it does not answer"
        while missing and not self.bell.stop_asked:
            self.family.step(self.bell, seconds=PASS)
            if time.monotonic() >= ask_at:
                missing, ask_at = what_is_missing(), time.monotonic() + PASS
            if missing and time.monotonic() >= speak_at:
                self._say("up", f"still waiting: {missing}")
                speak_at = time.monotonic() + SLOW

    def _welcome(self, password: str) -> None:
        url = base_url()
        self._write(self.stdout, f"\nSuzent is ready.\n  Operator's console  {url}/admin/\n  API documentation   {url}/api/docs\n")
        if password:
            self._write(self.stdout, f"  Log in as {OPERATOR!r} with the one-time password  {password}\n  It is shown only now: change it after login.\n")
        else:
            self._write(self.stdout, "  Log in as the operator made at the first start (manage.py changepassword sets a new password).\n")

    def _say(self, who: str, line: str) -> None:
        self._write(self.stderr, f"{who:<7} | {line}")

    def _write(self, out: OutputWrapper, text: str) -> None:
        """When nobody reads any more (a closed terminal, a pipe to head) we stop, in order."""
        try:
            out.write(text)
        except OSError:
            self.bell.stop_asked = True


def make_operator() -> str:
    """Make the operator if there is none yet. Its password, which nobody can ever read again; empty if there was one."""
    users = get_user_model()._default_manager
    if users.filter(is_superuser=True).exists() or users.filter(username=OPERATOR).exists():
        return ""
    password = secrets.token_urlsafe(12)
    users.create_superuser(OPERATOR, password=password)
    return password


def play_demo(out: OutputWrapper) -> None:
    try:
        play(local_url(), out)
    finally:
        connections.close_all()


def base_url() -> str:
    """Where others reach us."""
    return str(settings.SUZENT_PUBLIC_URL).rstrip("/") or local_url()


def local_url() -> str:
    """Where we reach ourselves; the wildcard addresses are no address to go to."""
    host = _own_address()
    return f"http://[{host}]:{settings.SUZENT_PORT}" if ":" in host else f"http://{host}:{settings.SUZENT_PORT}"


def what_is_missing() -> str:
    """What our own /readyz says is in the way; empty when we are ready."""
    asked = http.client.HTTPConnection(_own_address(), settings.SUZENT_PORT, timeout=1)
    try:
        asked.request("GET", "/readyz")
        answer = asked.getresponse()
        return "" if answer.status == 200 else ", ".join(json.load(answer)["failing"].values())
    except (OSError, http.client.HTTPException, ValueError, KeyError):
        return "the web server does not answer"
    finally:
        asked.close()


def _own_address() -> str:
    host: str = settings.SUZENT_HOST
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
