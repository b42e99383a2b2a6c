"""``manage.py web``: the web server."""

from __future__ import annotations

import uvicorn
from django.conf import settings

from suzent_site.child_command import ChildCommand

LAST_ANSWERS = 5  # seconds that open requests have after a signal to stop


class Command(ChildCommand):
    help = "Run the web server on SUZENT_HOST and SUZENT_PORT."

    def run(self) -> None:
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
