"""``manage.py web``: the web server."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

import uvicorn
from django.conf import settings
from django.core.management.base import BaseCommand

from suzent_site.processes import die_with_parent

LAST_ANSWERS = 5  # seconds that open requests have after a signal to stop


class Command(BaseCommand):
    help = "Run the web server on SUZENT_HOST and SUZENT_PORT."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--parent", type=int, help="End when this process, the parent, has ended.")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["parent"]:
            die_with_parent(options["parent"])
        serve()


def serve() -> None:
    """Serve until a signal comes. The access log is off: query strings may hold what nobody should read."""
    uvicorn.run(
        "suzent_site.asgi:application",
        host=settings.SUZENT_HOST,
        port=settings.SUZENT_PORT,
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=bool(settings.SUZENT_TRUSTED_PROXIES),
        forwarded_allow_ips=settings.SUZENT_TRUSTED_PROXIES,
        timeout_graceful_shutdown=LAST_ANSWERS,
    )
