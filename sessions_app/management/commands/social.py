"""``manage.py social``: polls the platforms that are polled, and sends every reply."""

from __future__ import annotations

from django.conf import settings

from sessions_app.social.process import SocialProcess
from suzent_site.child_command import ChildCommand
from suzent_site.processes import Bell

PASS = 2.0  # seconds between two looks which channels there are


class Command(ChildCommand):
    help = "Take in what people write on polled channels and send all replies, until Ctrl-C or SIGTERM."

    def run(self) -> None:
        bell = Bell()
        with SocialProcess() as process:
            while not bell.stop_asked:
                process.look_at_channels()
                bell.sleep(PASS)
            process.close(patience=settings.SUZENT_SHUTDOWN_GRACE)
