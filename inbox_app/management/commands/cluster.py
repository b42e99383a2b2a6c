"""``manage.py cluster``: the workers that deliver."""

from __future__ import annotations

from django.conf import settings

from inbox_app.cluster.supervisor import Supervisor
from suzent_site.child_command import ChildCommand


class Command(ChildCommand):
    help = "Run the supervised django-q2 cluster that delivers messages. SIGTERM or Ctrl-C lets running turns finish."

    def run(self) -> None:
        Supervisor(grace=settings.SUZENT_SHUTDOWN_GRACE).run()
