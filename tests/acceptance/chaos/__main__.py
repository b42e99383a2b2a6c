"""The long form, by hand: one JSON line of figures on standard output, the story of a bad run on standard error."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.acceptance.chaos.killer import Arms
from tests.acceptance.chaos.play import Orders, Report, environment, play
from tests.acceptance.chaos.servers import Postgres, Redis
from tests.acceptance.conftest import Site


def main() -> int:
    asked = parsed()
    seed = asked.seed if asked.seed is not None else random.SystemRandom().randrange(10**6)
    orders = Orders(seed, asked.messages, asked.messages / asked.rate, asked.lease, doomed=2 if asked.full else 0)
    sys.stderr.write(f"seed {seed}\n")
    with tempfile.TemporaryDirectory(prefix="suzent-chaos-") as folder, servers(asked) as arms:
        report = run(orders, arms, Path(folder), keep_log=asked.log)
    if report.verdict.faults() or asked.story:
        sys.stderr.write(report.story() + "\n")
    sys.stdout.write(json.dumps(report.figures) + "\n")
    return 1 if report.verdict.faults() or report.figures["left_behind"] else 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.acceptance.chaos", description="Shoot at a real installation and count.")
    parser.add_argument("--full", action="store_true", help="1,000 messages, messages that always fail, and kill `up` itself too")
    parser.add_argument("--messages", type=int, help="default 1000 with --full, else 150")
    parser.add_argument("--rate", type=float, default=10, help="messages a second, in the mean (default 10)")
    parser.add_argument("--lease", type=float, default=5, help="SUZENT_LEASE_SECONDS (default 5)")
    parser.add_argument("--seed", type=int, help="default: one drawn and printed")
    parser.add_argument("--own-servers", action="store_true", help="start a PostgreSQL and a Redis for it, and restart them too")
    parser.add_argument("--database", default="", help="URL of a PostgreSQL server; a database is made there and dropped")
    parser.add_argument("--redis", default="", help="URL of a Redis server; number 13 is used")
    parser.add_argument("--log", type=Path, help="keep the installation's log in this file")
    parser.add_argument("--story", action="store_true", help="print the killer's log also when all went well")
    asked = parser.parse_args()
    asked.messages = asked.messages or (1000 if asked.full else 150)
    return asked


@contextlib.contextmanager
def servers(asked: argparse.Namespace) -> Iterator[Arms]:
    """Set DATABASE_URL and REDIS_URL, by which a site finds its servers."""
    arms = Arms(reboots=asked.full)
    with contextlib.ExitStack() as stack:
        if asked.own_servers:
            arms.postgres, arms.redis = Postgres(), Redis()
            for server in (arms.postgres, arms.redis):
                stack.callback(server.end)
                server.start()
        os.environ["DATABASE_URL"] = arms.postgres.url if arms.postgres else asked.database
        os.environ["REDIS_URL"] = arms.redis.url if arms.redis else asked.redis
        yield arms


def run(orders: Orders, arms: Arms, folder: Path, *, keep_log: Path | None) -> Report:
    site = Site(folder, **environment(orders, folder))
    try:
        site.prepare()
        if site.database_url:
            arms.database_gate = site.put_gate_before("DATABASE_URL")
        if site.redis_url:
            arms.redis_gate = site.put_gate_before("REDIS_URL")
        return play(site, orders, arms)
    finally:
        if keep_log:
            keep_log.write_text(site.log)
        site.end()


if __name__ == "__main__":
    sys.exit(main())
