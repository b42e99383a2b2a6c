"""A whole installation run as real processes: started, watched, killed and cleaned up by the tests of this folder.

    def test_something(site):
        site.up()                                    # manage.py up, returned once /readyz says ready
        site.command("project", "create", "p")       # the JSON that a command printed
        token = site.command("token", "create", "--project", "p")["token"]
        site.post("/api/tools/agent_send", {...}, token=token, X_Suzent_Agent="writer")
        site.kill(site.crew.monitor)
        site.wait_for(lambda: site.one("SELECT ..."), within=15)

``site`` has its tables already; ``make_site(SUZENT_LEASE_SECONDS="2")`` makes one with other settings, and with
``new=True`` one that has never been started. They stand on SQLite; where the tests run with DATABASE_URL and REDIS_URL,
on a database and a Redis number of their own there.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from suzent_site.processes import children, descendants, die_with_parent, process_started, state_of
from tests.acceptance.gate import Gate

ROOT = Path(__file__).resolve().parent.parent.parent
WORKERS = 3
ONE_AFTER_THE_OTHER = """
import json, sys
import django
from django.core.management import call_command
django.setup()
for command in json.loads(sys.argv[1]):
    call_command(*command)
"""
REDIS_NUMBER = 13


@dataclass(frozen=True)
class Answer:
    status: int
    text: str

    @property
    def json(self):
        return json.loads(self.text)


@dataclass(frozen=True)
class Crew:
    """The processes of one group, by what they do. Told apart by the order of their birth: right until one is replaced."""

    main: int
    sentinel: int
    workers: list[int]
    monitor: int
    pusher: int


class Site:
    """One installation: a data directory, a port, a database, and the processes started on them."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        self.data_dir = folder / "data"
        self.port = free_port()
        self.database_url, self.redis_url = own_database_url(), own_redis_url()
        self.environment = {**clean_environment(), **self._own_environment(), **environment}
        self.log_file = folder / "log"
        self.started: list[subprocess.Popen[bytes]] = []
        self.token = ""
        self.seen: dict[int, int] = {}  # pid and start of every process that was ever below us

    def _own_environment(self) -> dict[str, str]:
        own = {"SUZENT_DATA_DIR": str(self.data_dir), "SUZENT_PORT": str(self.port), "SUZENT_WORKERS": str(WORKERS)}
        if self.database_url:
            own["DATABASE_URL"] = self.database_url
        if self.redis_url:
            own["REDIS_URL"] = self.redis_url
        return own

    def put_gate_before(self, name: str) -> Gate:
        """Have DATABASE_URL or REDIS_URL reached through a gate; ``rows`` goes past it."""
        url = urlsplit(self.environment[name])
        gate = Gate(url.hostname, url.port)
        self.environment[name] = url._replace(netloc=url.netloc.replace(f":{url.port}", f":{gate.port}")).geturl()
        return gate

    # --- starting --------------------------------------------------------------------------------------------------
    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """``manage.py <command>`` in the background, its output in the log."""
        with self.log_file.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "manage.py", *command], cwd=ROOT, env=self.environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                preexec_fn=partial(die_with_parent, os.getpid()),  # also when pytest itself is killed
            )
        self.started.append(process)
        return process

    def up(self, *options: str, within: float = 60) -> subprocess.Popen[bytes]:
        process = self.start("up", *options)
        self.wait_for(lambda: "Suzent is ready" in self.log, within=within)
        return process

    def cluster(self, *, within: float = 60) -> subprocess.Popen[bytes]:
        """The cluster alone, returned once a worker has answered."""
        before = self.answered_at
        process = self.start("cluster")
        self.wait_for(lambda: self.answered_at != before, within=within)
        return process

    def prepare(self) -> None:
        """Make the tables."""
        self.in_one_process(["migrate", "-v0"], ["createcachetable"])

    def copy(self, prepared: Site) -> None:
        """Take over the tables of another installation that does not run."""
        if self.database_url:
            drop_database(self.database_url)
            create_database(self.database_url, template=prepared.database_url)
        else:
            shutil.copytree(prepared.data_dir, self.data_dir, ignore=shutil.ignore_patterns("secret_key"))

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """``manage.py <command>``, waited for."""
        return subprocess.run(
            [sys.executable, "manage.py", *command], cwd=ROOT, env=self.environment,
            capture_output=True, text=True, timeout=120, check=check,
        )

    def command(self, *command: str):
        """The JSON that a command for scripts prints."""
        return json.loads(self.run(*command).stdout)

    def in_one_process(self, *commands: list[str]) -> list:
        """Several commands, and the JSON that each printed: on a busy machine it takes seconds to start a process."""
        ended = subprocess.run(
            [sys.executable, "-c", ONE_AFTER_THE_OTHER, json.dumps(commands)], cwd=ROOT,
            env={**self.environment, "DJANGO_SETTINGS_MODULE": "suzent_site.settings"},
            capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
        return [json.loads(line) for line in ended.stdout.splitlines()]

    # --- asking ----------------------------------------------------------------------------------------------------
    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str, *, token: str = "", **headers: str) -> Answer:
        return self.request("GET", path, token=token, headers=headers)

    def post(self, path: str, body: object = None, *, token: str = "", **headers: str) -> Answer:
        return self.request("POST", path, body=body, token=token, headers=headers)

    def request(self, method: str, path: str, *, body: object = None, token: str = "", headers: dict[str, str] | None = None) -> Answer:
        """Status 0: no answer. Keyword ``X_Suzent_Agent`` becomes the header X-Suzent-Agent."""
        request = urllib.request.Request(self.url + path, method=method)  # our own server
        for name, value in (headers or {}).items():
            request.add_header(name.replace("_", "-"), value)
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=70) as response:
                return Answer(response.status, response.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.read().decode())
        except OSError as error:
            return Answer(0, str(error))

    def is_ready(self) -> bool:
        return self.get("/readyz").status == 200

    def rows(self, statement: str, *parameters: object) -> list[tuple]:
        """Ask (or, outside of SELECT, change) the installation's database directly. ``?`` marks a parameter."""
        if self.database_url:
            return postgres(self.database_url, statement.replace("?", "%s"), parameters)
        with contextlib.closing(sqlite3.connect(self.data_dir / "suzent.sqlite3", timeout=20)) as connection, connection:
            return connection.execute(statement, parameters).fetchall()

    def one(self, statement: str, *parameters: object):
        """The first column of the first row, or None."""
        rows = self.rows(statement, *parameters)
        return rows[0][0] if rows else None

    def empty_broker(self) -> None:
        """Lose every queued task."""
        if self.redis_url:
            flush(self.redis_url)
        else:
            self.rows("DELETE FROM django_q_ormq")

    @property
    def answered_at(self):
        """When a worker last answered the watchdog; changes with every answer."""
        return self.one("SELECT answered_at FROM inbox_app_wake WHERE name = 'answer'")

    def wait_for_an_answer(self, *, within: float) -> float:
        """Until a worker has answered a question after this call; the seconds it took."""
        before = self.answered_at
        return self.wait_for(lambda: self.answered_at != before, within=within)

    def wait_for(self, condition, *, within: float) -> float:
        """Poll until ``condition()`` is true; the seconds it took. Fails with the log if it never was."""
        began = time.monotonic()
        while not condition():
            if time.monotonic() - began > within:
                pytest.fail(f"not within {within} s; the log says:\n{self.log[-6000:]}", pytrace=True)
            time.sleep(0.05)
        return time.monotonic() - began

    # --- mail ------------------------------------------------------------------------------------------------------
    def open_session(self, agent_id: str, *, runtime: str = "echo") -> str:
        """A session in the project ``office``, made with it; its token."""
        if not self.rows("SELECT 1 FROM sessions_app_project"):
            self.command("project", "create", "office")
        made = self.command("session", "create", "--project", "office", "--id", agent_id, "--runtime", runtime)
        return made["token"]

    def send(self, token: str, agent_id: str, message: str, **fields: object) -> str:
        """``agent_send`` over HTTP; the message id."""
        answer = self.post("/api/tools/agent_send", {"agent_id": agent_id, "message": message, **fields}, token=token)
        assert answer.status == 202, answer
        return answer.json["message_id"]

    def status_of(self, message_id: str) -> str:
        return self.one("SELECT status FROM agent_inbox_messages WHERE message_id = ?", message_id)

    def wait_until_delivered(self, *message_ids: str, within: float) -> float:
        return self.wait_for(lambda: all(self.status_of(one) == "delivered" for one in message_ids), within=within)

    # --- processes -------------------------------------------------------------------------------------------------
    @property
    def everyone(self) -> frozenset[int]:
        """Every process that was started here and still runs, orphans included."""
        for process in self.started:
            for pid in {process.pid, *descendants(process.pid)}:
                self.seen.setdefault(pid, process_started(pid))
        return frozenset(pid for pid, started in self.seen.items() if runs(pid, started))

    @property
    def those_expected(self) -> frozenset[int]:
        """Who should be running below and with ``manage.py up``; what a worker forked is its own."""
        forked = {pid for worker in self._crew() for pid in descendants(worker)}
        return frozenset({self.started[-1].pid, self.web, self.supervisor, *self._crew(), *forked})

    @property
    def web(self) -> int:
        return self._child_of_up("web")

    @property
    def supervisor(self) -> int:
        return next((process.pid for process in self.started if process.args[2] == "cluster"), 0) or self._child_of_up("cluster")

    def _child_of_up(self, name: str) -> int:
        up = next(process for process in reversed(self.started) if process.args[2] == "up")
        return next((pid for pid in children(up.pid) if name in arguments(pid)), 0)

    @property
    def crew(self) -> Crew:
        self.wait_for(lambda: len(self._crew()) == WORKERS + 4, within=10)
        main, sentinel, *others = self._crew()
        return Crew(main, sentinel, others[:WORKERS], *others[WORKERS:])

    def _crew(self) -> list[int]:
        main = next(iter(children(self.supervisor)), 0)
        sentinel = next(iter(children(main)), 0)
        return [pid for pid in (main, sentinel) if pid] + sorted(children(sentinel), key=lambda pid: (process_started(pid), pid))

    def renew_group(self) -> Crew:
        """Kill the group, so that the order of birth tells again who does what in the next one."""
        old = {*self._crew()}
        self.kill(self._crew()[0])
        self.wait_for(lambda: len(self._crew()) == WORKERS + 4 and not old & {*self._crew()}, within=30)
        self.wait_for_an_answer(within=15)
        return self.crew

    def kill(self, *pids: int, number: signal.Signals = signal.SIGKILL) -> None:
        assert self.everyone, "remembers who is there, to notice orphans later"
        for pid in pids:
            os.kill(pid, number)

    def wait_until_gone(self, *pids: int, within: float) -> float:
        started = {pid: self.seen[pid] for pid in pids}
        return self.wait_for(lambda: not any(runs(pid, started[pid]) for pid in pids), within=within)

    def end(self) -> None:
        """Whatever is left, ends. Not an orderly stop: that is a test's business."""
        for pid in self.everyone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self.started:
            process.wait()
        drop_database(self.database_url)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    """An installation that never runs, whose tables the others copy."""
    site = Site(tmp_path_factory.mktemp("prepared"))
    site.prepare()
    yield site
    site.end()


@pytest.fixture
def make_site(tmp_path, prepared):
    """Makes installations with the environment variables given as keywords."""
    sites: list[Site] = []

    def make(*, new: bool = False, **environment: str) -> Site:
        folder = tmp_path / f"site-{len(sites)}"
        folder.mkdir()
        sites.append(Site(folder, **environment))
        if not new:
            sites[-1].copy(prepared)
        return sites[-1]

    yield make
    for site in sites:
        site.end()


@pytest.fixture(scope="module")
def office(tmp_path_factory, prepared):
    """One installation that is up for all tests of a module, with the sessions asker and helper; ``token`` is asker's."""
    site = Site(tmp_path_factory.mktemp("office"))
    site.copy(prepared)
    site.up()
    site.token = site.open_session("asker")
    site.open_session("helper")
    yield site
    site.end()


@pytest.fixture
def site(make_site):
    return make_site()


def runs(pid: int, started: int) -> bool:
    return process_started(pid) == started and state_of(pid) not in {"", "Z", "X"}


def arguments(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return []


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def clean_environment() -> dict[str, str]:
    ours = ("SUZENT_", "DATABASE_URL", "REDIS_URL", "DJANGO_", "SECRET_KEY", "DEBUG")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def own_database_url() -> str:
    """A new database on the server that the tests run on; empty for SQLite."""
    url = os.environ.get("DATABASE_URL", "")
    if not url.startswith("postgres"):
        return ""
    own = urlsplit(url)._replace(path=f"/suzent_site_{os.getpid()}_{secrets.token_hex(3)}").geturl()
    create_database(own)
    return own


def create_database(own: str, *, template: str = "/template1") -> None:
    postgres(server(), f'CREATE DATABASE "{name_of(own)}" TEMPLATE "{name_of(template)}"', ())


def drop_database(own: str) -> None:
    if own:
        postgres(server(), f'DROP DATABASE IF EXISTS "{name_of(own)}" WITH (FORCE)', ())


def server() -> str:
    return urlsplit(os.environ["DATABASE_URL"])._replace(path="/postgres").geturl()


def name_of(url: str) -> str:
    return urlsplit(url).path[1:]


def postgres(url: str, statement: str, parameters: tuple) -> list[tuple]:
    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement, parameters or None)
        return cursor.fetchall() if cursor.description else []


def own_redis_url() -> str:
    """Another number of the Redis that the tests run on; empty without one. The installations keep apart there."""
    url = os.environ.get("REDIS_URL", "")
    return urlsplit(url)._replace(path=f"/{REDIS_NUMBER}").geturl() if url else ""


def flush(url: str) -> None:
    with contextlib.closing(pytest.importorskip("redis").from_url(url)) as client:
        client.flushdb()
