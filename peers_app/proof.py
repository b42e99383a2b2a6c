"""Proof before the token travels: who answers at a peer's address shows that it holds our grant (our own addition; wire.md 5.7).

``POST /channels/suzent/proof`` ``{"handle", "nonce"}``, both 64 hexadecimal digits, open without a token, since it gives
out no secret. The handle tells the grant, the proof is a keyed digest of the fresh nonce; the key is the digest of the
token, which both sides have and nobody else. 200 ``{"proof"}``; 404 where no grant has this handle. A device that does
not speak this (0.9.1) answers something else. Who can reach the true device may relay its proof: against that only TLS helps.

Pure, but for the one call.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from enum import Enum

from peers_app.answers import object_in
from suzent_site import outbound
from suzent_site.addresses import Reach
from suzent_site.outbound import Timeouts, Unreachable
from suzent_site.sealed import digest_of

PATH = "/channels/suzent/proof"
BRIEF = Timeouts(connect=2, read=4, total=5)
ANSWER_LIMIT = 4 * 1024  # bytes
NONCE_BYTES = 32


class Outcome(Enum):
    PROVEN = "proven"
    WRONG = "wrong"  # it speaks this, and holds another grant or none
    SILENT = "silent"  # it does not speak this, or does not know the grant


def handle(digest: str) -> str:
    """By which a device finds the grant; it tells nothing of the token."""
    return _keyed(digest, b"suzent handle")


def made(digest: str, nonce: str) -> str:
    """The proof. ``digest``: of the token, as the grant keeps it."""
    return _keyed(digest, b"suzent proof " + bytes.fromhex(nonce))


def demand(base_url: str, token: str) -> Outcome:
    """Have the machine there prove itself; nothing of the token is sent. Raises AddressRefused, Unreachable (with nothing sent)."""
    digest, nonce = digest_of(token), secrets.token_hex(NONCE_BYTES)
    try:
        answer = outbound.call(
            "POST", f"{base_url}{PATH}", reach=Reach.OPERATOR, json={"handle": handle(digest), "nonce": nonce}, timeouts=BRIEF,
            limit=ANSWER_LIMIT,
        )  # fmt: skip
    except Unreachable as error:
        raise Unreachable(error.detail, maybe_sent=False, answered=error.answered) from None
    told = object_in(answer).get("proof")
    if answer.status != 200 or not isinstance(told, str):
        return Outcome.SILENT
    return Outcome.PROVEN if hmac.compare_digest(told.encode("utf-8", "replace"), made(digest, nonce).encode()) else Outcome.WRONG


def _keyed(digest: str, what: bytes) -> str:
    return hmac.new(bytes.fromhex(digest), what, hashlib.sha256).hexdigest()
