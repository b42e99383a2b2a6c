"""``/healthz``: the process is alive. ``/readyz``: it can do its work; if not, what is in the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import structlog
from django.conf import settings
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, JsonResponse
from django.utils.module_loading import import_string
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from suzent_site.errors import first_line

Check = Callable[[], str]  # what is wrong, or nothing
_migrated = False
log = structlog.get_logger(__name__)


@never_cache
@require_safe
def healthz(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"status": "alive"})


@never_cache
@require_safe
def readyz(request: HttpRequest) -> JsonResponse:
    failing = dict(what_fails())
    body = {"status": "not ready" if failing else "ready", "failing": failing}
    return JsonResponse(body, status=503 if failing else 200)


def what_fails() -> Iterator[tuple[str, str]]:
    """The name of each failing check and why. Past the first that fails the others could only repeat it."""
    for name, check in _checks():
        try:
            why = check()
        except DatabaseError as error:
            log.warning("database_unreachable", error=first_line(error))  # its text names hosts and users: not for everybody
            name, why = "database", "it cannot be reached"
        if why:
            yield name, why
            return


def _checks() -> list[tuple[str, Check]]:
    named = [(path.rpartition(".")[2], import_string(path)) for path in settings.READINESS]
    return [("database", _database), ("migrations", _migrations), *named]


def _database() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return ""


def _migrations() -> str:
    """Once true it stays true for this process: its code does not change."""
    global _migrated  # noqa: PLW0603  # remembered for the life of the process
    _migrated = _migrated or not unapplied_migrations()
    return "" if _migrated else "there are unapplied migrations; run manage.py migrate"


def unapplied_migrations() -> int:
    executor = MigrationExecutor(connection)
    return len(executor.migration_plan(executor.loader.graph.leaf_nodes()))
