"""Which device calls: told by its token alone, never by an address, a proxy's word or a body (wire.md 1)."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any, cast

import structlog
from django.db import OperationalError
from django.db.models import QuerySet
from django.utils import timezone
from rest_framework.authentication import BaseAuthentication
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.views import APIView

from peers_app import tokens
from peers_app.models import DeviceGrant, Peer
from peers_app.wire import OutOfScope, Unauthorized
from sessions_app import lanes
from suzent_site.sealed import digest_of
from suzent_site.transactions import durable

log = structlog.get_logger(__name__)
NOTED_EVERY = timedelta(minutes=1)
_BEARER = re.compile(r"bearer +([^\s,]{1,256})", re.IGNORECASE | re.ASCII)
READING = frozenset({DeviceGrant.Scope.AGENT, DeviceGrant.Scope.READ})
DRIVING = frozenset({DeviceGrant.Scope.AGENT})
NOTHING: frozenset[str] = frozenset()


class DeviceToken(BaseAuthentication):
    """``request.auth`` is the DeviceGrant. No, unknown, revoked and paused are one answer: 401."""

    def authenticate(self, request: Request) -> tuple[DeviceGrant, DeviceGrant]:
        now = timezone.now()
        grant = grant_of(_presented(request), now=now)
        if grant is None:
            raise Unauthorized
        return grant, grant

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="suzent"'


class InScope(BasePermission):
    """The view names the scopes that reach it."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        if cast("DeviceGrant", request.auth).scope not in cast("Any", view).scopes:
            raise OutOfScope
        return True


def grant_of(secret: str, *, now: datetime) -> DeviceGrant | None:
    """The active grant with this token: looked up by its digest, so no comparison leaks time."""
    if not tokens.WELL_FORMED.fullmatch(secret):
        return None
    grant = DeviceGrant.objects.active().select_related("project").filter(digest=digest_of(secret)).first()
    if grant is None or not tokens.matches(secret, str(grant.digest)):
        return None
    _note_life(grant, now=now)
    return grant


def _presented(request: Request) -> str:
    """The one token of the request. Two that differ are none, and so is one in the URL."""
    authorization = request.META.get("HTTP_AUTHORIZATION")
    bearer = authorization and _BEARER.fullmatch(authorization)
    given = {bearer[1] if bearer else ""} if authorization is not None else set()
    if (header := request.META.get("HTTP_X_SUZENT_TOKEN")) is not None:
        given.add(header.strip(" "))
    return given.pop() if len(given) == 1 else ""


def _note_life(grant: DeviceGrant, *, now: datetime) -> None:
    """That it was used, once a minute at most; and its mail, which could not be delivered, is due now. No call fails for it."""
    waiting = [peer.lane_key for peer in _away(grant)]
    if not waiting and grant.last_used_at is not None and now - grant.last_used_at < NOTED_EVERY:
        return
    try:
        with durable():
            lanes.lock(waiting)
            DeviceGrant.objects.filter(pk=grant.pk).update(last_used_at=now)
            lanes.look_now(waiting, now=now)
            lanes.wake_on_commit()
    except OperationalError as error:
        log.warning("device_use_not_noted", error=type(error).__name__)


def _away(grant: DeviceGrant) -> QuerySet[Peer]:
    """This device as a peer of ours, if it is away. An identity that it claims is enough for this much."""
    return Peer.objects.same_device_as(grant).filter(state=Peer.State.OFFLINE)
