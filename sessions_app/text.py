"""Text that a database can keep."""

from __future__ import annotations

import json
from typing import Any


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
