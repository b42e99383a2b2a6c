"""Text that a database can keep."""

from __future__ import annotations


def storable(text: str) -> str:
    """``text`` with what PostgreSQL or UTF-8 cannot hold made visible: NUL as U+2400, a lone surrogate as U+FFFD.

    For text from inside (a reply, an exception). Text from a caller is refused at the entrance instead.
    """
    return text.replace("\x00", "\u2400").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def cut(text: str, most: int, *, note: str = "…") -> str:
    """At most ``most`` characters of ``text``; what is cut ends with ``note``."""
    return text if len(text) <= most else text[: most - len(note)] + note
