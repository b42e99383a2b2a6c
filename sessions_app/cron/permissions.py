"""Who may call cron over REST: a project's token, or an operator with the rights; no session's token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rest_framework.request import Request

from sessions_app.authentication import Caller
from sessions_app.permissions import IsCaller

if TYPE_CHECKING:
    from rest_framework.views import APIView  # that module loads permissions, by their names in the settings


class ManagesCron(IsCaller):
    seen = ("sessions_app.view_cronjob", "sessions_app.view_cronrun")
    changed: Mapping[str, str] = {
        "POST": "sessions_app.add_cronjob", "PATCH": "sessions_app.change_cronjob", "DELETE": "sessions_app.change_cronjob",
    }  # fmt: skip

    def has_permission(self, request: Request, view: APIView) -> bool:
        caller = request.user
        return isinstance(caller, Caller) and caller.session is None and super().has_permission(request, view)


class ActsOnCron(ManagesCron):
    """Where every method does something to a job or takes something away."""

    changed: Mapping[str, str] = dict.fromkeys(("GET", "POST"), "sessions_app.change_cronjob")
