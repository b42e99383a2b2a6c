"""Django system checks: a wrong dotted path is told at start, not charged to the first message."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error
from django.utils.module_loading import import_string


def dotted_paths(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """RUNTIMES, TOOLS, WAKE and READINESS name what can be imported."""
    named = {f"RUNTIMES[{name!r}]": path for name, path in settings.RUNTIMES.items()}
    named |= {"TOOLS": settings.TOOLS, "WAKE": settings.WAKE, **{f"READINESS {path}": path for path in settings.READINESS}}
    return [Error(f"{setting} cannot be imported: {why}", id="suzent.E001") for setting, path in named.items() if (why := _why_not(path))]


def _why_not(path: str) -> str:
    try:
        import_string(path)
    except ImportError as error:
        return str(error)
    return ""
