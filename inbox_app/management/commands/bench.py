"""``manage.py bench``: the product's figures, each with its unit and the number of runs."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandParser
from django.db import connection
from django.utils.module_loading import import_string

from inbox_app.bench.engine import EngineBench
from inbox_app.bench.figures import Figure
from inbox_app.bench.live import LiveBench
from inbox_app.bench.purge import PurgeBench
from inbox_app.bench.waiters import WaitersBench

INSIDE = "SUZENT_BENCH_INSIDE"  # set in the process that runs on the scratch database


class Command(BaseCommand):
    help = "Measure speed and memory on a scratch database of the kind in use; your data is not touched. Takes about five minutes."
    requires_migrations_checks = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="print one JSON list last")
        parser.add_argument("--runs", type=int, default=5, help="how often each figure is measured (default 5)")
        parser.add_argument("--scale", type=float, default=1.0, help="share of the big tables to load, e.g. 0.1 (default 1)")
        parser.add_argument(
            "--only", choices=["engine", "live", "waiters", "purge", *settings.BENCHES],
            help="only the figures of the engine, of the whole product, of many who wait, of a purge under load, or of mail to peers "
            "(the last two are left out else)",
        )  # fmt: skip

    def handle(self, *args: Any, **options: Any) -> None:
        if os.environ.get(INSIDE):
            self._measure(**options)
            return
        with tempfile.TemporaryDirectory(prefix="suzent-bench-") as folder, scratch_database() as url:
            inside = {
                **os.environ, INSIDE: "1", "SUZENT_DATA_DIR": folder, "SUZENT_PORT": str(_free_port()), "SUZENT_LOG_LEVEL": "WARNING",
                "SUZENT_EFFECTS_FILE": str(Path(folder) / "effects.jsonl"), "SUZENT_LANE_LIMIT": "1000000",
                "SUZENT_SENDER_RATE": "1000000", **url,
            }  # fmt: skip
            sys.exit(subprocess.run([sys.executable, *sys.argv], env=inside, check=False).returncode)

    def _measure(self, *, runs: int, scale: float, only: str | None, json: bool, **options: Any) -> None:
        call_command("migrate", verbosity=0)
        if settings.CACHES["default"]["BACKEND"].endswith("DatabaseCache"):
            call_command("createcachetable", verbosity=0)
        figures: list[Figure] = []
        if only == "purge":
            figures += PurgeBench(scale=scale, say=self._say).figures()
        if only in {None, "live"}:
            figures += LiveBench(runs=runs, say=self._say).figures()
        if only in {None, "waiters"}:
            figures += WaitersBench(runs=runs, say=self._say).figures()
        if only in {None, "engine"}:
            figures += EngineBench(runs=runs, scale=scale, say=self._say).figures()
        if only in settings.BENCHES:
            figures += import_string(settings.BENCHES[only])(runs=runs, say=self._say).figures()
        self._print(figures, as_json=json)

    def _print(self, figures: list[Figure], *, as_json: bool) -> None:
        for one in figures:
            self.stderr.write(f"{one.name:<24}{one.value:>12,.2f} {one.unit:<14}{one.runs:>4} runs  {one.min:,.2f} … {one.max:,.2f}")
        if as_json:
            self.stdout.write(json.dumps([one.as_json() for one in figures]))

    def _say(self, what: str) -> None:
        self.stderr.write(f"… {what}")


@contextmanager
def scratch_database() -> Iterator[dict[str, str]]:
    """What to set so that everything below works on a database of its own: a file in the scratch folder, or one made on the server."""
    if connection.vendor == "sqlite":
        yield {"DATABASE_URL": ""}
        return
    name = f"suzent_bench_{secrets.token_hex(4)}"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
    try:
        yield {"DATABASE_URL": urlsplit(settings.DATABASE_URL)._replace(path=f"/{name}").geturl()}
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"DROP DATABASE {name} WITH (FORCE)")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
