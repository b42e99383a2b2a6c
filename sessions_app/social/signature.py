"""Signed calls, in and out: HMAC-SHA256 over timestamp, a dot and the raw body (design, section 8)."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping

WINDOW = 300  # seconds that a timestamp may be away from our clock, either way
TIMESTAMP, SIGNATURE = "X-Suzent-Timestamp", "X-Suzent-Signature"


def signed(secret: str, body: bytes, *, at: int) -> dict[str, str]:
    """The headers that go with ``body``. ``at``: seconds since 1970."""
    return {TIMESTAMP: str(at), SIGNATURE: f"sha256={_digest(secret, str(at), body)}"}


def what_is_wrong(secret: str, headers: Mapping[str, str], body: bytes, *, at: float) -> str:
    """Why the call proves nothing: the reason that is counted; empty where it is genuine.

    A header that came twice reads as both with a comma, and so fits nothing.
    """
    timestamp, signature = headers.get(TIMESTAMP, ""), headers.get(SIGNATURE, "")
    if not secret:
        return "no_secret"
    if not re.fullmatch(r"[0-9]{1,12}", timestamp, re.ASCII) or not re.fullmatch(r"sha256=[0-9a-f]{64}", signature, re.ASCII):
        return "unsigned"
    if not hmac.compare_digest(signature, f"sha256={_digest(secret, timestamp, body)}"):
        return "bad_signature"
    return "stale" if abs(at - int(timestamp)) > WINDOW else ""


def _digest(secret: str, timestamp: str, body: bytes) -> str:
    return hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
