"""Who may call what. What a caller may *reach* is the caller's own question: see Caller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from sessions_app.authentication import Caller

if TYPE_CHECKING:
    from rest_framework.views import APIView  # that module loads this one, by its name in the settings


class IsCaller(BasePermission):
    """A valid token, or a logged-in operator who could see this, or do it, in the console too."""

    seen = ("inbox_app.view_message", "sessions_app.view_session")  # both are in most answers
    changed: Mapping[str, str] = {"POST": "inbox_app.change_message"}

    def has_permission(self, request: Request, view: APIView) -> bool:
        caller = request.user
        if not isinstance(caller, Caller):
            return False
        return caller.has_rights(*self.seen, *filter(None, [self.changed.get(str(request.method))]))


class ManagesSessions(IsCaller):
    """A project token or an operator; a session token only where it reads."""

    changed: Mapping[str, str] = {
        "POST": "sessions_app.add_session", "PATCH": "sessions_app.change_session", "DELETE": "sessions_app.change_session",
    }  # fmt: skip

    def has_permission(self, request: Request, view: APIView) -> bool:
        caller = request.user
        if not (isinstance(caller, Caller) and super().has_permission(request, view)):
            return False
        return caller.session is None or request.method in {"GET", "HEAD"}
