"""They may drive us: requests for a grant, the operator's answer, the token that is served once, and its end."""

from __future__ import annotations

import hmac
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from peers_app import devices, hints, installation, proof, tokens
from peers_app.models import DeviceGrant, GrantRequest, Peer
from peers_app.wire import Asked, Demand, TooManyRequests, UnknownGrant
from sessions_app import actions
from sessions_app.models import Project
from suzent_site.errors import Conflict, Invalid, NotFound
from suzent_site.transactions import durable

ANSWER_WITHIN = timedelta(minutes=10)
REQUESTS_AT_MOST = 50  # in that time, answered ones included
KEPT_FOR = timedelta(days=7)  # a request that is over, for the operator to look back at


class NotOpen(Conflict):
    """This request is not open: it was answered already, or it has expired."""

    code = "not_open"


class NotPossible(Conflict):
    """That is not possible for a grant in this state."""

    code = "not_possible"


def ask(asked: Asked, *, came_from: str, now: datetime) -> GrantRequest:
    """Note a stranger's request. Raises TooManyRequests."""
    with durable():
        installation.locked()  # so that the count holds until the insert
        if GrantRequest.objects.since(now - ANSWER_WITHIN).count() >= REQUESTS_AT_MOST:
            raise TooManyRequests(retry_after=ANSWER_WITHIN.total_seconds() / 10)
        GrantRequest.objects.filter(grant=None, expires_at__lt=now - KEPT_FOR).delete()
        return GrantRequest.objects.create(
            request_id=tokens.mint_request_id(), controller_name=asked.name, controller_addr=asked.address,
            controller_identity=asked.identity, came_from=came_from[:64], created_at=now, expires_at=now + ANSWER_WITHIN,
        )  # fmt: skip


def approve(
    request: GrantRequest,
    *,
    project: Project,
    who: str,
    now: datetime,
    replace: DeviceGrant | None = None,
    runtime: str = "echo",
    tools: Sequence[str] = (),
) -> DeviceGrant:
    """Grant what was asked; its token is made at the asker's next poll. Raises NotOpen, Invalid.

    ``replace``: this is that device again. Its grant ends; project, scope, runtime and tools stay as they were, and so
    does the lineage, within which message ids repeat. As a peer of ours it is the same peer.
    """
    with durable():
        if not GrantRequest.objects.open(now).select_for_update().filter(pk=request.pk).exists():
            raise NotOpen
        grant = _granted(request, project=project, who=who, now=now, runtime=runtime, tools=tools)
        if replace is not None:
            _take_over(grant, replace.pk, now=now)
        grant.save(force_insert=True)
        if replace is not None:
            Peer.objects.filter(reverse_grant=replace.pk).update(reverse_grant=grant)
        GrantRequest.objects.filter(pk=request.pk, state=GrantRequest.State.PENDING).update(
            state=GrantRequest.State.APPROVED, answered_at=now, answered_by=who, grant=grant, expires_at=now + ANSWER_WITHIN
        )
    return grant


def _granted(request: GrantRequest, *, project: Project, who: str, now: datetime, runtime: str, tools: Sequence[str]) -> DeviceGrant:
    if project.archived_at is not None:
        raise Invalid("project", "is archived")
    grant = DeviceGrant(
        display_name=request.controller_name, node_identity=request.controller_identity, callback_url=request.controller_addr,
        project=project, runtime=runtime if runtime in project.runtimes else project.runtimes[0], tools=list(tools),
        created_at=now, created_by=who,
    )  # fmt: skip
    grant.lineage = grant.device_id
    return grant


def _take_over(grant: DeviceGrant, replaced: str, *, now: datetime) -> None:
    """A grant is replaced once: two heirs would share one lineage. A step."""
    earlier = DeviceGrant.objects.select_for_update().filter(pk=replaced).first()
    if earlier is None or DeviceGrant.objects.filter(replaces=earlier).exists():
        raise Invalid("replace", "there is no such device, or another has replaced it already")
    grant.replaces, grant.lineage, grant.project = earlier, earlier.lineage, earlier.project
    grant.scope, grant.runtime, grant.tools = earlier.scope, earlier.runtime, earlier.tools
    _end(earlier.pk, now=now)


def deny(request: GrantRequest, *, who: str, now: datetime) -> None:
    """Raises NotOpen."""
    with durable():
        denied = GrantRequest.objects.open(now).filter(pk=request.pk).update(
            state=GrantRequest.State.DENIED, answered_at=now, answered_by=who
        )
    if not denied:
        raise NotOpen


def collect(request_id: str, *, now: datetime) -> tuple[GrantRequest.State, str] | None:
    """How the request stands, and the new token at the first look after approval. None: unknown or expired."""
    if not tokens.REQUEST_ID.fullmatch(request_id):
        return None
    request = GrantRequest.objects.unexpired(now).filter(pk=request_id).select_related("grant").first()
    if request is None:
        return None
    state = GrantRequest.State(request.state)
    if request.grant is None or request.served_at is not None:
        return state, ""
    if request.grant.state == DeviceGrant.State.REVOKED:
        return GrantRequest.State.DENIED, ""
    return state, _served(request, request.grant, now=now)


def _served(request: GrantRequest, grant: DeviceGrant, *, now: datetime) -> str:
    minted = tokens.mint()
    with durable():
        if not GrantRequest.objects.filter(pk=request.pk, served_at=None).update(served_at=now):
            return ""  # another poll was first
        kept = DeviceGrant.objects.filter(pk=grant.pk, digest=None).update(digest=minted.digest, hint=minted.hint)
    return minted.secret if kept else ""  # it was rotated meanwhile, and its operator has the token


def pause(grant: DeviceGrant) -> None:
    """Refuse its token until ``resume``. Raises NotPossible."""
    _move(grant, to=DeviceGrant.State.PAUSED, among=(DeviceGrant.State.ACTIVE,))


def resume(grant: DeviceGrant) -> None:
    """Raises NotPossible."""
    _move(grant, to=DeviceGrant.State.ACTIVE, among=(DeviceGrant.State.PAUSED,))


def revoke(grant: DeviceGrant, *, now: datetime) -> None:
    """Refuse its token for good, everywhere and at once. Raises NotPossible."""
    with durable():
        if not _end(grant.pk, now=now):
            raise NotPossible


def allow(
    grant: DeviceGrant, *, scope: DeviceGrant.Scope, runtime: str, tools: Sequence[str], now: datetime, name: str = ""
) -> None:
    """What the device may do from now on, in the sessions that it has too. Raises Invalid, NotPossible."""
    runtime = actions.allowed_runtime(grant.project, runtime)
    changes = {"scope": scope, "runtime": runtime, "tools": list(tools), **({"display_name": name} if name else {})}
    with durable():
        if not DeviceGrant.objects.filter(pk=grant.pk, ended_at=None).update(**changes):
            raise NotPossible
    grant.refresh_from_db()
    for session in devices.sessions_of(grant).open():
        actions.change_session(session, now=now, runtime=runtime, config=devices.config_of(grant))


def _move(grant: DeviceGrant, *, to: DeviceGrant.State, among: Collection[DeviceGrant.State]) -> None:
    with durable():
        if not DeviceGrant.objects.filter(pk=grant.pk, state__in=list(among)).update(state=to):
            raise NotPossible
        hints.tell(grant.pk)


def _end(device_id: str, *, now: datetime) -> bool:
    ended = DeviceGrant.objects.filter(pk=device_id, ended_at=None).update(state=DeviceGrant.State.REVOKED, ended_at=now) == 1
    if ended:
        hints.tell(device_id)
    return ended


def request_named(request_id: str) -> GrantRequest:
    """Raises NotFound."""
    found = GrantRequest.objects.filter(pk=request_id).first()
    if found is None:
        raise NotFound(f"There is no request {request_id}.")
    return found


def grant_named(device_id: str) -> DeviceGrant:
    """Raises NotFound."""
    found = DeviceGrant.objects.filter(pk=device_id).first()
    if found is None:
        raise NotFound(f"There is no device {device_id}.")
    return found


def claimed_by(request: GrantRequest) -> list[str]:
    """The devices that the request claims to be, unproven, as the approver is told."""
    if not request.controller_identity:
        return []
    same = {"node_identity": request.controller_identity}
    grants = [f"{grant.display_name} ({grant.device_id})" for grant in DeviceGrant.objects.filter(**same).exclude(state="revoked")]
    return grants + [f"{peer.name} ({peer.agent_id})" for peer in Peer.objects.filter(**same)]


def proof_of(demand: Demand) -> str:
    """Shows that we hold the grant, of whatever state: the device learns the rest once it shows its token. Raises UnknownGrant."""
    for digest in DeviceGrant.objects.exclude(digest=None).values_list("digest", flat=True):
        if digest is not None and hmac.compare_digest(proof.handle(digest), demand.handle):
            return proof.made(digest, demand.nonce)
    raise UnknownGrant
