"""``manage.py cluster``: the workers that deliver."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from inbox_app.cluster.supervisor import Supervisor
from suzent_site.processes import die_with_parent


class Command(BaseCommand):
    help = "Run the supervised django-q2 cluster that delivers messages. SIGTERM or Ctrl-C lets running turns finish."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--parent", type=int, help="End when this process, the parent, has ended.")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["parent"]:
            die_with_parent(options["parent"])
        Supervisor(grace=settings.SUZENT_SHUTDOWN_GRACE).run()
