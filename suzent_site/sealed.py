"""Secrets and the database: kept there sealed and open only in memory, or known again by their digest alone.

The keys are SUZENT_FIELD_KEYS: the first seals, every one opens. ``manage.py keys rotate`` puts a new one in front of those
in the data directory and seals everything anew; a process that was started before reads it there when it meets it.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings

from suzent_site.data_dir import replace_secret
from suzent_site.errors import SuzentError

FILE = "field_keys"  # in the data directory, unless the environment has the keys


class CannotUnseal(SuzentError):
    """A stored secret cannot be opened: none of SUZENT_FIELD_KEYS sealed it. Put the old key back, or enter the secret anew."""

    code = "cannot_unseal"


def seal(secret: str) -> str:
    """ASCII that may be stored; another one each time, so equal secrets cannot be told."""
    return _box(tuple(settings.SUZENT_FIELD_KEYS)).encrypt(secret.encode()).decode("ascii")


def unseal(sealed: str) -> str:
    """Raises CannotUnseal if it was changed or sealed with a key that is not there any more."""
    try:
        return _opened(sealed, tuple(settings.SUZENT_FIELD_KEYS))
    except InvalidToken:
        return _opened_by_stored(sealed)


def seal_anew(sealed: str) -> str:
    """The same secret under the newest key. Raises CannotUnseal."""
    newest = _stored_keys() if keys_are_stored() else tuple(settings.SUZENT_FIELD_KEYS)
    return _box(newest).encrypt(unseal(sealed).encode()).decode("ascii")


def keys_are_stored() -> bool:
    """Whether our keys are those in the data directory, older ones included; else the environment has them."""
    stored = _stored_keys()
    return bool(stored) and set(settings.SUZENT_FIELD_KEYS) <= set(stored)


def store_new_key() -> None:
    """Put a new key in front of those in the data directory; none is lost."""
    keys = [Fernet.generate_key().decode("ascii"), *_stored_keys()]
    replace_secret(Path(settings.SUZENT_DATA_DIR), FILE, ",".join(keys))


def _stored_keys() -> tuple[str, ...]:
    file = Path(settings.SUZENT_DATA_DIR) / FILE
    return tuple(file.read_text(encoding="ascii").strip().split(",")) if file.exists() else ()


def _opened_by_stored(sealed: str) -> str:
    """They may have been changed since this process was started."""
    if not keys_are_stored():
        raise CannotUnseal
    try:
        return _opened(sealed, _stored_keys())
    except InvalidToken as error:
        raise CannotUnseal from error


def _opened(sealed: str, keys: tuple[str, ...]) -> str:
    return _box(keys).decrypt(sealed.encode()).decode()


def digest_of(secret: str) -> str:
    """SHA-256 of a 256-bit random secret: nothing to guess, so nothing to slow down."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


@cache
def _box(keys: tuple[str, ...]) -> MultiFernet:
    return MultiFernet([Fernet(key) for key in keys])
