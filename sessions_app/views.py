"""Sessions over REST: create, list, read, patch, archive. Views validate, call one action and render."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularJSONAPIView, SpectacularSwaggerView
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from sessions_app import actions, serializers
from sessions_app.authentication import Caller
from sessions_app.clock import database_now
from sessions_app.models import Project, Session
from sessions_app.pages import page_of_sessions, statuses
from sessions_app.permissions import ManagesSessions
from suzent_site.errors import Invalid, NotFound


class OneFormat(BaseContentNegotiation):
    """A view answers in its one format, whatever the Accept header or ``?format=`` wishes for."""

    def select_parser(self, request: Request, parsers: Iterable[BaseParser]) -> BaseParser | None:
        sent = request.content_type.partition(";")[0].strip().lower()
        return next((parser for parser in parsers if parser.media_type == sent), None)

    def select_renderer(
        self, request: Request, renderers: Iterable[BaseRenderer], format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        only = next(iter(renderers))
        return only, str(only.media_type)


class ApiView(APIView):
    content_negotiation_class = OneFormat
    metadata_class = None  # OPTIONS has nothing to tell that the schema does not
    http_method_names = ["get", "post", "patch", "delete", "head"]


def caller_of(request: Request) -> Caller:
    """Who calls; the permission classes have seen to it that it is somebody."""
    return cast("Caller", request.user)


def valid(serializer: type[serializers.StrictSerializer], data: Any) -> dict[str, Any]:
    """The checked fields of ``data``. Raises ValidationError, naming the first that is wrong."""
    checked = serializer(data=data)
    checked.is_valid(raise_exception=True)
    return dict(checked.validated_data)


def valid_query(serializer: type[serializers.QuerySerializer], request: Request) -> dict[str, Any]:
    return valid(serializer, request.query_params.dict())


def errors(*statuses: int) -> dict[int, type[serializers.Error]]:
    """For the schema: the answers that are errors. 401 and 503 can come from everywhere."""
    return dict.fromkeys(sorted({401, 503, *statuses}), serializers.Error)


class Sessions(ApiView):
    permission_classes = [ManagesSessions]

    @extend_schema(
        operation_id="sessions_list",
        parameters=[serializers.ListSessions],
        responses={200: serializers.SessionPage, **errors(400, 404)},
    )
    def get(self, request: Request) -> Response:
        """The sessions of the project, those that changed last first. A session token sees its own."""
        asked = valid_query(serializers.ListSessions, request)
        sessions = _listed(caller_of(request), project=asked.get("project"))
        sessions = sessions.filter(archived_at__isnull=asked["archived"] == "false")
        page, next_cursor = page_of_sessions(sessions, limit=asked["limit"], cursor=asked.get("cursor", ""))
        return Response({"sessions": _rendered(page), "has_more": next_cursor is not None, "next_cursor": next_cursor})

    @extend_schema(
        operation_id="sessions_create",
        request=serializers.NewSession,
        responses={201: serializers.NewSessionOut, **errors(400, 403, 404, 409, 413, 415)},
    )
    def post(self, request: Request) -> Response:
        """Open a session. Its token is in this answer and never shown again."""
        asked = valid(serializers.NewSession, request.data)
        project = project_meant(caller_of(request), slug=asked.pop("project", None))
        session, minted = actions.open_session_with_token(project, now=database_now(), **asked)
        return Response({**_rendered([session])[0], "token": minted.secret}, status=201)


class SessionDetail(ApiView):
    permission_classes = [ManagesSessions]

    @extend_schema(operation_id="sessions_read", responses={200: serializers.SessionOut, **errors(404)})
    def get(self, request: Request, agent_id: str) -> Response:
        """One session; with a session token, its own."""
        return Response(_rendered([_readable(caller_of(request), agent_id)])[0])

    @extend_schema(
        operation_id="sessions_change",
        request=serializers.ChangeSession,
        responses={200: serializers.SessionOut, **errors(400, 403, 404, 410, 413, 415)},
    )
    def patch(self, request: Request, agent_id: str) -> Response:
        """Change title, runtime or config."""
        session = caller_of(request).session_named(agent_id)
        asked = valid(serializers.ChangeSession, request.data)
        return Response(_rendered([actions.change_session(session, now=database_now(), **asked)])[0])

    @extend_schema(operation_id="sessions_archive", request=None, responses={204: None, **errors(403, 404)})
    def delete(self, request: Request, agent_id: str) -> Response:
        """Archive it: what it runs is stopped, its mail fails as target_gone, its id stays taken."""
        caller = caller_of(request)
        actions.archive_session(caller.session_named(agent_id), now=database_now(), who=caller.label)
        return Response(status=204)


class Schema(SpectacularJSONAPIView):
    content_negotiation_class = OneFormat


class Docs(SpectacularSwaggerView):
    content_negotiation_class = OneFormat


def to_admin(request: HttpRequest) -> HttpResponse:
    return redirect("admin:index")


def _readable(caller: Caller, agent_id: str) -> Session:
    session = caller.session_named(agent_id)
    if caller.session is not None and session != caller.session:
        raise NotFound
    return session


def _listed(caller: Caller, *, project: str | None) -> Any:
    sessions = caller.sessions()
    if project is not None:
        project_meant(caller, slug=project)
        sessions = sessions.filter(project=project)
    return sessions if caller.session is None else sessions.filter(pk=caller.session.pk)


def project_meant(caller: Caller, *, slug: str | None) -> Project:
    """The caller's own project, the named one, or the only one. Raises NotFound, Invalid."""
    open_projects = Project.objects.filter(archived_at=None)
    if caller.project_id is not None:
        open_projects = open_projects.filter(pk=caller.project_id)
    if slug is not None:
        open_projects = open_projects.filter(pk=slug)
    found = list(open_projects[:2])
    if not found:
        raise NotFound
    if len(found) > 1:
        raise Invalid("project", "is needed: there is more than one")
    return found[0]


def _rendered(sessions: list[Session]) -> list[dict[str, Any]]:
    shown = statuses(sessions)
    for session in sessions:
        session.status = shown[session.agent_id]  # type: ignore[attr-defined]  # for the serializer's field
    return list(serializers.SessionOut(sessions, many=True).data)
