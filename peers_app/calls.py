"""What pairing says to other devices, one call each, and what may be made of the answers. No database here."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any
from urllib.parse import quote

from peers_app import wire
from peers_app.client import Line
from suzent_site import outbound
from suzent_site.addresses import AddressRefused, Reach
from suzent_site.errors import Invalid, SuzentError
from suzent_site.outbound import Answer, Timeouts, Unreachable

PATIENT = Timeouts(connect=5, read=10, total=15)  # an operator waits for it
BRIEF = Timeouts(connect=2, read=4, total=5)  # in the background, or several side by side; wire.md 5.8
ANSWER_LIMIT = 64 * 1024  # bytes


class NotAPeer(SuzentError):
    """What answers there is no Suzent device."""

    code = "not_a_peer"
    status = 502


class PeerRefused(SuzentError):
    """The device there refused."""

    code = "peer_refused"
    status = 502


class Standing(Enum):
    """How a request stands there."""

    PENDING = "pending"
    APPROVED = "approved"
    SERVED = "served"
    DENIED = "denied"
    GONE = "gone"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Polled:
    """``why``: in words, where no answer of the protocol came."""

    standing: Standing
    token: str = field(default="", repr=False)
    node_identity: str = ""
    why: str = ""


def ask(base_url: str, *, name: str, address: str, identity: str) -> str:
    """The id of our request there. Raises AddressRefused, Unreachable, PeerRefused, NotAPeer."""
    body = {"controller_name": name, "controller_identity": identity, **({"controller_addr": address} if address else {})}
    answer = outbound.call(
        "POST", f"{base_url}/nodes/grant-request", reach=Reach.OPERATOR, json=body, timeouts=PATIENT, limit=ANSWER_LIMIT
    )
    told = _object_in(answer)
    request_id = told.get("request_id")
    if answer.status != 200:
        raise PeerRefused(f"The device there refused: {_said(told, answer)}")
    if not isinstance(request_id, str) or not 0 < len(request_id) <= 64 or not request_id.isprintable():
        raise NotAPeer
    return request_id


def poll(base_url: str, request_id: str) -> Polled:
    """How our request stands there. Raises nothing: what cannot be understood is UNKNOWN, and asked again."""
    url = f"{base_url}/nodes/grant-status/{quote(request_id, safe='')}"
    try:
        answer = outbound.call("GET", url, reach=Reach.OPERATOR, timeouts=BRIEF, limit=ANSWER_LIMIT)
        return _polled(answer, _object_in(answer))
    except (AddressRefused, Unreachable, NotAPeer) as error:
        return Polled(Standing.UNKNOWN, why=error.detail)


def offer(line: Line, *, name: str, our_url: str, our_token: str) -> None:
    """Offer the reverse direction. Raises AddressRefused, Unreachable, PeerRefused, NotAPeer."""
    answer = outbound.call(
        "POST", f"{line.base_url}/nodes/peer-offer", reach=Reach.OPERATOR, timeouts=PATIENT, limit=ANSWER_LIMIT,
        json={"name": name, "base_url": our_url, "token": our_token}, headers=bearer(line.token),
    )  # fmt: skip
    told = _object_in(answer)
    if answer.status != 200 or told.get("success") is not True:
        raise PeerRefused(f"The device there refused: {_said(told, answer)}")


def hint(callback_url: str) -> None:
    """Tell a device that its grant has changed. Raises AddressRefused, Unreachable."""
    url = f"{callback_url}/channels/suzent/grant-changed"
    outbound.call("POST", url, reach=Reach.OPERATOR, json={}, timeouts=BRIEF, limit=ANSWER_LIMIT)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def _polled(answer: Answer, told: dict[str, Any]) -> Polled:
    if answer.status == 404 and isinstance(told.get("error"), str):
        return Polled(Standing.GONE)
    state, token = told.get("status"), told.get("token")
    if answer.status != 200 or state not in ("pending", "denied", "approved"):
        return Polled(Standing.UNKNOWN, why=f"It answered {_said(told, answer)}")
    if state != "approved":
        return Polled(Standing(state))
    if not isinstance(token, str):
        return Polled(Standing.SERVED, why="It was approved there, but its token has been served before.")
    try:
        return Polled(Standing.APPROVED, wire.token_in(token), wire.identity_in(told.get("node_identity")))
    except Invalid:
        return Polled(Standing.UNKNOWN, why="The token that it served cannot be used.")


def _object_in(answer: Answer) -> dict[str, Any]:
    """Raises NotAPeer."""
    try:
        told = answer.json()
    except (ValueError, RecursionError):
        raise NotAPeer from None
    if not isinstance(told, dict):
        raise NotAPeer
    return told


def _said(told: dict[str, Any], answer: Answer) -> str:
    """What the other side says, in one harmless line."""
    said = told.get("error")
    words = "".join(char if char.isprintable() else " " for char in said[:200]) if isinstance(said, str) else ""
    return f"{answer.status} {words}".strip()
