"""Filters for the console's own templates; what they show is decided in suzent_site/shown.py."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import template
from django.utils.safestring import SafeString

from suzent_site import shown

register = template.Library()


@register.filter
def in_a_line(text: object) -> SafeString:
    return shown.in_a_line("" if text is None else str(text))


@register.filter
def whole(text: object) -> SafeString:
    return shown.whole(str(text))


@register.filter
def age_at(since: datetime | None, now: datetime) -> str:
    return shown.age(since, now=now)


@register.filter
def provenance_of(parts: Any) -> dict[str, Any] | None:
    """The header among an entry's parts that only the server writes."""
    headers = (part for part in parts if isinstance(part, dict) and part.get("type") == "provenance")
    return next(headers, None)
