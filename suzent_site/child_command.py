"""Commands that ``up`` and ``bench`` run as child processes; each can as well be run by itself."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from suzent_site.processes import die_with_parent


class ChildCommand(BaseCommand):
    """A command that runs until it is told to stop, and never longer than the process named by ``--parent``."""

    requires_system_checks = ["suzent"]  # of our own: the others take half a second at every start

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--parent", type=int, help="End when this process, the parent, has ended.")

    def handle(self, *args: Any, parent: int | None, **options: Any) -> None:
        if parent:
            die_with_parent(parent)
        self.run()

    def run(self) -> None:
        raise NotImplementedError
