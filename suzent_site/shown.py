"""How text that others wrote is shown to a person: nothing in it may steer the reader, the page or the terminal.

Control, format and zero-width characters become visible names, direction marks cannot reach past their own
element, and what is stored stays unchanged.
"""

from __future__ import annotations

import json
import unicodedata
from datetime import datetime
from typing import Any

from django.template.loader import render_to_string
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

ZERO_WIDTH_JOINER = "\u200d"
HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}  # control, format, surrogate, private, unassigned, line, paragraph
BLANK_TO_THE_EYE = {"\u115f", "\u1160", "\u2800", "\u3164", "\uffa0"}  # letters and signs that draw nothing
EMOJI_BEFORE_JOINER = {"So", "Sk", "Mn"}  # a sign, its skin tone, its variation selector


def in_a_line(text: str, *, limit: int = 120) -> SafeString:
    """For lists: one line, cut, line breaks visible too."""
    cut = text[:limit] + ("…" if len(text) > limit else "")
    return format_html('<bdi class="suzent-text" title="{}">{}</bdi>', f"{len(text)} characters", _visible(cut, keep=""))


def whole(text: str) -> SafeString:
    """For detail pages: every character, in the sender's own lines."""
    return format_html('<div class="suzent-text suzent-whole" dir="auto">{}</div>', _visible(text, keep="\n\t"))


def hides(text: str) -> bool:
    """Whether a reader would not see all of it, or see it in another order than it is stored in."""
    return any(_hidden(char) and not _joins_emoji(text, at) for at, char in enumerate(text))


def label(text: str, color: str) -> SafeString:
    """A coloured label, as lists have it."""
    return render_to_string("unfold/helpers/label.html", {"text": text, "type": color})


def as_json(value: Any) -> SafeString:
    return whole(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def age(since: datetime | None, *, now: datetime) -> str:
    """How long ago, or ``in 4 s`` for a time to come, in the largest whole unit."""
    if since is None:
        return "—"
    seconds = (now - since).total_seconds()
    return f"in {span(-seconds)}" if seconds < 0 else span(seconds)


def span(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"


def _visible(text: str, *, keep: str) -> SafeString:
    return format_html_join("", "{}", ((piece,) for piece in _pieces(text, keep)))


def _pieces(text: str, keep: str) -> list[str]:
    """Runs of ordinary text, and a chip for every character that would not be seen or would act."""
    pieces: list[str] = []
    plain = 0
    for at, char in enumerate(text):
        if char in keep or not _hidden(char) or _joins_emoji(text, at):
            continue
        pieces += [text[plain:at], _chip(char)]
        plain = at + 1
    return [*pieces, text[plain:]]


def _hidden(char: str) -> bool:
    return unicodedata.category(char) in HIDDEN or char in BLANK_TO_THE_EYE


def _joins_emoji(text: str, at: int) -> bool:
    return text[at] == ZERO_WIDTH_JOINER and at > 0 and unicodedata.category(text[at - 1]) in EMOJI_BEFORE_JOINER


def _chip(char: str) -> SafeString:
    name = unicodedata.name(char, "control character")
    return format_html('<span class="suzent-hidden" title="{}">U+{}</span>', name.lower(), f"{ord(char):04X}")
