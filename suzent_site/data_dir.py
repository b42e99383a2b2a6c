"""The data directory: where SQLite lives by default, and the secrets that are made on first start."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured


def open_data_dir(path: Path) -> Path:
    """Make the directory if need be. Raises ImproperlyConfigured, in one sentence, if it cannot be written."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ImproperlyConfigured(f"SUZENT_DATA_DIR {path} cannot be made: {error.strerror}.") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise ImproperlyConfigured(f"SUZENT_DATA_DIR {path} cannot be written.")
    return path


def random_text() -> str:
    return secrets.token_urlsafe(48)


def secret(data_dir: Path, name: str, *, make: Callable[[], str] = random_text) -> str:
    """The secret kept in the file ``name``, made (mode 0600) the first time.

    Safe when several processes start at once: the file appears whole, under its name, exactly once.
    """
    file = data_dir / name
    if not file.exists():
        draft = data_dir / f".{name}.{os.getpid()}.{secrets.token_hex(4)}"
        draft.touch(mode=0o600)
        draft.write_text(make() + "\n", encoding="ascii")
        try:
            with suppress(FileExistsError):  # another process made it first, and whole: its secret holds
                os.link(draft, file)
        finally:
            draft.unlink()
    return file.read_text(encoding="ascii").strip()


def replace_secret(data_dir: Path, name: str, text: str) -> None:
    """Write the secret anew, whole and mode 0600 at any moment."""
    draft = data_dir / f".{name}.{os.getpid()}.{secrets.token_hex(4)}"
    draft.touch(mode=0o600)
    draft.write_text(text + "\n", encoding="ascii")
    draft.replace(data_dir / name)
