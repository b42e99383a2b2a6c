"""The strict JSON reader: one meaning for each body, the same on both databases, or a clear 400."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import IO, Any, NoReturn

from django.conf import settings
from rest_framework.parsers import BaseParser

from sessions_app.text import WHOLE_BODY, refuse_unstorable, shown
from suzent_site.errors import BodyTooLarge, Invalid

DEPTH_LIMIT = 32  # levels of arrays and objects
INTEGER_DIGITS = 18  # more do not fit into the databases' 64 bits
# Valid UTF-8 without raw control characters can hold a NUL or half of a surrogate pair only as such an escape.
_SUSPICIOUS = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")


class StrictJSONParser(BaseParser):
    media_type = "application/json"

    def parse(
        self, stream: IO[bytes], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        body = stream.read(settings.DATA_UPLOAD_MAX_MEMORY_SIZE + 1)
        if len(body) > settings.DATA_UPLOAD_MAX_MEMORY_SIZE:
            raise BodyTooLarge
        return read_object(body)


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object in ``body``. Raises Invalid for all that is not plainly one."""
    try:
        value = json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_without_duplicates,
            parse_int=_integer,
            parse_float=_finite,
            parse_constant=_no_constant,
        )
    except UnicodeDecodeError as error:
        raise Invalid(WHOLE_BODY, "is not UTF-8") from error
    except json.JSONDecodeError as error:
        raise Invalid(WHOLE_BODY, f"is not JSON: {error.msg} at character {error.pos}") from error
    except RecursionError as error:
        raise Invalid(WHOLE_BODY, f"is nested deeper than {DEPTH_LIMIT} levels") from error
    if not isinstance(value, dict):
        raise Invalid(WHOLE_BODY, "must be a JSON object")
    _refuse_deep_nesting(value)
    if _SUSPICIOUS.search(body):
        refuse_unstorable(value, field="")
    return value


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise Invalid(shown(next(name for name in found if names.count(name) > 1)), "is given more than once")
    return found


def _integer(digits: str) -> int:
    if len(digits.lstrip("-")) > INTEGER_DIGITS:
        raise Invalid(WHOLE_BODY, f"has a whole number of more than {INTEGER_DIGITS} digits")
    return int(digits)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise Invalid(WHOLE_BODY, "has a number that is too large")
    return number


def _no_constant(name: str) -> NoReturn:
    raise Invalid(WHOLE_BODY, f"has {name}, which is not JSON")


def _refuse_deep_nesting(value: dict[str, Any]) -> None:
    level: list[Any] = [value]
    for _ in range(DEPTH_LIMIT):
        inside = (child for item in level for child in (item.values() if isinstance(item, dict) else item))
        level = [child for child in inside if isinstance(child, (dict, list))]
        if not level:
            return
    raise Invalid(WHOLE_BODY, f"is nested deeper than {DEPTH_LIMIT} levels")
