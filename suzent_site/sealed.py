"""Secrets that must be kept in the database: sealed there, open only in memory.

The keys are SUZENT_FIELD_KEYS: the first seals, every one opens. To change keys, put a new one in front, save what is
sealed once more, then drop the old one.
"""

from __future__ import annotations

from functools import cache

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings

from suzent_site.errors import SuzentError


class CannotUnseal(SuzentError):
    """A stored secret cannot be opened: none of SUZENT_FIELD_KEYS sealed it. Put the old key back, or enter the secret anew."""

    code = "cannot_unseal"


def seal(secret: str) -> str:
    """ASCII that may be stored; another one each time, so equal secrets cannot be told."""
    return _box(tuple(settings.SUZENT_FIELD_KEYS)).encrypt(secret.encode()).decode("ascii")


def unseal(sealed: str) -> str:
    """Raises CannotUnseal if it was changed or sealed with a key that is not there any more."""
    try:
        return _box(tuple(settings.SUZENT_FIELD_KEYS)).decrypt(sealed.encode()).decode()
    except InvalidToken as error:
        raise CannotUnseal from error


@cache
def _box(keys: tuple[str, ...]) -> MultiFernet:
    return MultiFernet([Fernet(key) for key in keys])
