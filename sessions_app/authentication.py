"""Who is calling: a session, a project or an operator, as one :class:`Caller`.

A token comes in the Authorization header and nowhere else. Whoever sends that header is judged by it alone:
a bad one is 401 and never falls back to the browser's cookie.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import structlog
from django.db import OperationalError
from django.utils import timezone
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request

from sessions_app.actions import find_token
from sessions_app.exceptions import InvalidToken
from sessions_app.models import AGENT_ID, ApiToken, Session
from sessions_app.querysets import SessionQuerySet
from suzent_site.errors import NotFound, Refused
from suzent_site.transactions import durable

log = structlog.get_logger(__name__)
NOTED_EVERY = timedelta(minutes=1)
_CREDENTIALS = re.compile(r"bearer +([A-Za-z0-9._~+/=-]{1,256})", re.IGNORECASE | re.ASCII)


class CsrfRefused(Refused):
    """An operator's write needs the CSRF token of the login."""

    code = "csrf_failed"


@dataclass(frozen=True)
class Caller:
    """Who asks, and how far they reach.

    ``project_id`` is None for an operator who has not named a session: every project is within reach. ``session``
    is who acts: the token's own session, or the one that a project token or an operator named. ``rights`` are an
    operator's permissions, as Django knows them; None for a token, which has none to ask about.
    """

    project_id: str | None
    session: Session | None
    label: str
    rights: frozenset[str] | None = None

    is_authenticated = True  # what Django and REST framework ask of a user

    def has_rights(self, *names: str) -> bool:
        return self.rights is None or self.rights.issuperset(names)

    def sessions(self) -> SessionQuerySet:
        """The sessions that this caller can name."""
        if self.project_id is None:
            return Session.objects.visible()
        return Session.objects.addressable_from(self.project_id)

    def session_named(self, agent_id: str) -> Session:
        """Raises NotFound, in the same words whether the session is foreign, hidden or missing."""
        if not re.fullmatch(AGENT_ID, agent_id):
            raise NotFound
        found = self.sessions().filter(agent_id=agent_id).first()
        if found is None:
            raise NotFound
        return found

    def acting_as(self, agent_id: str) -> Caller:
        """This caller in the name of a session. Raises Refused if it is another's token, NotFound."""
        if self.session is None:
            session = self.session_named(agent_id)
            return replace(self, project_id=session.project_id, session=session)
        if agent_id != self.session.agent_id:
            raise Refused("A session's token acts for that session only.")
        return self


class BearerToken(BaseAuthentication):
    def authenticate(self, request: Request) -> tuple[Caller, Caller] | None:
        header = request.META.get("HTTP_AUTHORIZATION")
        if header is None:
            return None
        found = _CREDENTIALS.fullmatch(header)
        caller = found and caller_by_token(found[1], now=timezone.now())
        if not caller:
            raise InvalidToken
        return caller, caller

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="suzent"'


def caller_by_token(raw: str, *, now: datetime) -> Caller | None:
    """The caller that this token stands for; None if it is unknown, expired or revoked."""
    token = find_token(raw, now=now)
    if token is None:
        return None
    _note_use(token, now=now)
    return Caller(project_id=token.project_id, session=token.session, label=f"token {token.hint}")


def _note_use(token: ApiToken, *, now: datetime) -> None:
    """Once a minute at most, so that reading does not write; and no call fails for it."""
    if token.last_used_at is not None and now - token.last_used_at < NOTED_EVERY:
        return
    try:
        with durable():
            ApiToken.objects.filter(pk=token.pk).update(last_used_at=now)
    except OperationalError as error:
        log.warning("token_use_not_noted", error=type(error).__name__)


class OperatorSession(SessionAuthentication):
    """A staff user's login in the browser, with CSRF on every write and the rights that it has in the console."""

    def authenticate(self, request: Request) -> tuple[Caller, Caller] | None:
        user = getattr(request._request, "user", None)
        if user is None or not (user.is_active and user.is_staff):
            return None
        try:
            self.enforce_csrf(request)
        except PermissionDenied as error:
            raise CsrfRefused from error
        rights = frozenset(user.get_all_permissions())
        caller = Caller(project_id=None, session=None, label=user.get_username(), rights=rights)
        return caller, caller
