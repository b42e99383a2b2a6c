"""Who may call what. What a caller may *reach* is the caller's own question: see Caller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from sessions_app.authentication import Caller

if TYPE_CHECKING:
    from rest_framework.views import APIView  # that module loads this one, by its name in the settings


class IsCaller(BasePermission):
    """A valid token or a logged-in operator."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        return isinstance(request.user, Caller)


class ManagesSessions(IsCaller):
    """A project token or an operator; a session token only where it reads."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        caller = request.user
        return isinstance(caller, Caller) and (caller.session is None or request.method in {"GET", "HEAD"})
