"""The one family of errors, and the one JSON shape they take.

Every error that a caller may see is a :class:`SuzentError`: a stable ``code``, a sentence in ``detail``
(the class docstring unless one is given) and ``extra`` for machines. No error carries a message body or a token.
"""

from __future__ import annotations

import inspect
from typing import Any, ClassVar


class SuzentError(Exception):
    """Something went wrong."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500

    def __init__(self, detail: str = "", **extra: Any) -> None:
        self.detail = detail or inspect.cleandoc(self.__doc__ or "")
        self.extra = extra
        super().__init__(self.detail)

    def as_json(self) -> dict[str, Any]:
        return {"code": self.code, "detail": self.detail, "extra": self.extra}


class Invalid(SuzentError):
    """The request is not valid."""

    code = "invalid"
    status = 400

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field}: {why}", field=field)


class NotFound(SuzentError):
    """There is nothing here by that name."""

    code = "not_found"
    status = 404


class Refused(SuzentError):
    """You may not do this."""

    code = "forbidden"
    status = 403


class Conflict(SuzentError):
    """That is not possible in the present state."""

    code = "conflict"
    status = 409


class BodyTooLarge(SuzentError):
    """The body is larger than 1 MiB."""

    code = "too_large"
    status = 413


def first_line(error: Exception) -> str:
    """The first line of any error, for one sentence; its class where it says nothing."""
    return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
