"""Bearer tokens of grants: made, told by their digest, compared in constant time. No database here."""

from __future__ import annotations

import hmac
import re
import secrets
from dataclasses import dataclass

from suzent_site.sealed import digest_of

TOKEN_BYTES = 32  # 43 characters
REQUEST_BYTES = 16  # 22 characters
REQUEST_ID = re.compile(r"[A-Za-z0-9_-]{22}", re.ASCII)
WELL_FORMED = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)


@dataclass(frozen=True)
class Minted:
    """``secret`` is handed out once and kept nowhere; ``digest`` and ``hint`` are what is kept."""

    secret: str
    digest: str
    hint: str


def mint() -> Minted:
    secret = secrets.token_urlsafe(TOKEN_BYTES)
    return Minted(secret, digest_of(secret), hint(secret))


def mint_request_id() -> str:
    """22 characters; the first is no dash, which a command line would take for an option."""
    minted = secrets.token_urlsafe(REQUEST_BYTES)
    return minted if minted[0] != "-" else mint_request_id()


def hint(secret: str) -> str:
    """For people to tell tokens apart."""
    return f"{secret[:6]}…{secret[-4:]}" if len(secret) >= 20 else "…"


def matches(secret: str, kept: str) -> bool:
    """Whether ``kept`` is the digest of ``secret``."""
    return hmac.compare_digest(digest_of(secret), kept)
