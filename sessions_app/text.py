"""Text that a database can keep: what comes from a caller is refused otherwise, what comes from inside is mended."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

from suzent_site.errors import Invalid

WHOLE_BODY = "body"  # the field that is named where none can be
NAME_SHOWN = 64  # characters of a caller's field name that an answer repeats
_INVISIBLE = {"Cc", "Cf", "Zl", "Zp", "Zs"}
# Letters, marks and a symbol that show nothing: fillers, a joiner, vowel signs, variation selectors, the empty Braille cell.
_FILLERS = {chr(code) for code in (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0, *range(0xFE00, 0xFE10))}


def refuse_unstorable(value: Any, *, field: str) -> None:
    """Raises Invalid for a NUL, which PostgreSQL cannot keep, or half of a surrogate pair, anywhere in a JSON value.

    Names count too. The value must not be nested deeply.
    """
    if isinstance(value, str):
        _refuse_unstorable_text(value, field=field)
    elif isinstance(value, list):
        for item in value:
            refuse_unstorable(item, field=field)
    elif isinstance(value, dict):
        for name, item in value.items():
            inner = f"{field}.{shown(name)}" if field else shown(name)
            _refuse_unstorable_text(name, field=inner)
            refuse_unstorable(item, field=inner)


def _refuse_unstorable_text(text: str, *, field: str) -> None:
    if "\0" in text:
        raise Invalid(field or WHOLE_BODY, "must not contain the NUL character")
    if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
        raise Invalid(field or WHOLE_BODY, "contains half of a surrogate pair")


def shown(name: str) -> str:
    """A caller's own name for a field, harmless in answers and logs."""
    if name.isascii() and name.isprintable():
        return name[:NAME_SHOWN]
    printable = name[:NAME_SHOWN].encode("ascii", "backslashreplace").decode("ascii")
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in printable)


def storable(text: str) -> str:
    """``text`` with what PostgreSQL or UTF-8 cannot hold made visible: NUL as U+2400, a lone surrogate as U+FFFD.

    For text from inside (a reply, an exception). Text from a caller is refused at the entrance instead.
    """
    return text.replace("\x00", "\u2400").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def cut(text: str, most: int, *, note: str = "…") -> str:
    """At most ``most`` characters of ``text``; what is cut ends with ``note``."""
    return text if len(text) <= most else text[: most - len(note)] + note


def storable_json(value: Any) -> Any:
    """``value`` with every string in it, names too, made storable. Raises TypeError or ValueError for what is not JSON."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, list | tuple):
        return [storable_json(item) for item in value]
    if isinstance(value, dict):
        return {storable(str(name)): storable_json(item) for name, item in value.items()}
    json.dumps(value, allow_nan=False)
    return value


def is_blank(text: str) -> bool:
    """Nothing in it is visible: white space, control and format characters at most."""
    return all(unicodedata.category(character) in _INVISIBLE or character in _FILLERS for character in text)
