"""Tools and messages over REST. Views validate, call one tool or transition and render."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, cast

from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_view
from rest_framework.request import Request
from rest_framework.response import Response

from inbox_app import long_poll, profiles, serializers, subagents, transitions
from inbox_app.mailbox import message_named, page_of_messages
from inbox_app.models import Message, SubagentTask
from inbox_app.results import WAIT_LIMIT
from inbox_app.tools import Tool, call, list_for_models
from sessions_app.authentication import Caller
from sessions_app.clock import database_now
from sessions_app.views import ApiView, caller_of, errors, valid, valid_query
from suzent_site.errors import Refused

ACTING_AGENT = OpenApiParameter(
    "X-Suzent-Agent",
    location=OpenApiParameter.HEADER,
    description="The session that acts. Project tokens and operators name it; a session token acts for its own.",
)


class Tools(ApiView):
    @extend_schema(operation_id="tools_list", parameters=[ACTING_AGENT], responses={200: serializers.ToolsOut, **errors(403, 404)})
    def get(self, request: Request) -> Response:
        """The tools that the acting session has, with their arguments as JSON Schema, as function-calling APIs take them."""
        return Response({"tools": list_for_models(_acting(request).session)})


class ToolCall(ApiView):
    tool: ClassVar[Tool]

    def post(self, request: Request) -> Response:
        answer = call(self.tool, _acting(request), request.data, now=database_now())
        return Response(answer, status=self.tool.status)


class Spawn(ToolCall):
    def post(self, request: Request) -> Response:
        """Asked once more after the wait (see suzent_site/asgi.py), it tells how the task stands and spawns nothing."""
        waited_for = getattr(request._request, "waited_for", None)
        if waited_for is not None:
            return self._told(subagents.task_named(_acting(request), waited_for))
        response = super().post(request)
        if cast("dict[str, Any]", request.data).get("run_in_background", True):
            return response
        return self._waiting(request, subagents.task_named(_acting(request), response.data["task_id"]))

    def _waiting(self, request: Request, task: SubagentTask) -> Response:
        """The answer that is given if the wait brings nothing new. No thread and no connection waits."""
        response = self._told(task)
        message = subagents.message_of(task)
        if message is not None and message.lane is not None:
            request._request.waited_for = task.task_id  # type: ignore[attr-defined]  # a note for the second time
            response.come_back = partial(long_poll.until_settled, message.pk, seconds=WAIT_LIMIT)  # type: ignore[attr-defined]
        return response

    def _told(self, task: SubagentTask) -> Response:
        if task.ended_at is None:
            return Response(subagents.brief(task), status=202)
        return Response(subagents.outcome(task))


def _acting(request: Request) -> Caller:
    """The caller, in the name of the session that it names."""
    caller = caller_of(request)
    named = request.headers.get("X-Suzent-Agent")
    return caller if named is None else caller.acting_as(named)


def tool_call(tool: Tool) -> type[ToolCall]:
    """The view of one tool."""
    is_spawn = tool.name == profiles.SPAWN
    view = type(f"ToolCall_{tool.name}", (Spawn if is_spawn else ToolCall,), {"tool": tool})
    waited = {200: serializers.OutcomeOut, 202: serializers.SpawnOut} if is_spawn else {}
    described = extend_schema(
        operation_id=tool.name,
        description=tool.description,
        parameters=[ACTING_AGENT],
        request=tool.arguments,
        responses={tool.status: tool.answer, **waited, **errors(400, 403, 404, 413, 415, *tool.refusals)},
    )
    return extend_schema_view(post=described)(view)


class Subagents(ApiView):
    @extend_schema(
        operation_id="subagents_list",
        parameters=[serializers.ListTasks],
        responses={200: serializers.TaskPageOut, **errors(400)},
    )
    def get(self, request: Request) -> Response:
        """Tasks that were given to sub-agents, the newest first. A session token sees its own."""
        asked = valid_query(serializers.ListTasks, request)
        page, next_cursor = subagents.page_of_tasks(caller_of(request), **asked)
        shown = serializers.TaskOut(page, many=True, context={"now": database_now()}).data
        return Response({"tasks": shown, "has_more": next_cursor is not None, "next_cursor": next_cursor})


class SubagentDetail(ApiView):
    @extend_schema(operation_id="subagents_read", responses={200: serializers.TaskDetailOut, **errors(404)})
    def get(self, request: Request, task_id: str) -> Response:
        """One task with its whole result."""
        task = subagents.task_named(caller_of(request), task_id)
        return Response(serializers.TaskDetailOut(task, context={"now": database_now()}).data)


class Messages(ApiView):
    @extend_schema(
        operation_id="messages_list",
        parameters=[serializers.ListMessages],
        responses={200: serializers.MessagePageOut, **errors(400, 404)},
    )
    def get(self, request: Request) -> Response:
        """Messages that the caller may see, the newest first."""
        asked = valid_query(serializers.ListMessages, request)
        page, next_cursor = page_of_messages(caller_of(request), **asked)
        shown = serializers.MessageOut(page, many=True).data
        return Response({"messages": shown, "has_more": next_cursor is not None, "next_cursor": next_cursor})


class MessageDetail(ApiView):
    @extend_schema(
        operation_id="messages_read",
        parameters=[serializers.ReadMessage],
        responses={200: serializers.MessageDetailOut, **errors(400, 404, 409)},
    )
    def get(self, request: Request, message_id: str) -> Response:
        """Where the message is and why. With ``wait`` the answer comes when it settles or the seconds are over."""
        asked = valid_query(serializers.ReadMessage, request)
        message = message_named(caller_of(request), message_id, project=asked.get("project"))
        response = Response(serializers.detail_of(message, now=database_now()))
        if asked["wait"] and message.lane is not None:
            # The ASGI handler awaits this and asks again: no thread and no connection waits (see suzent_site/asgi.py).
            response.come_back = partial(long_poll.until_settled, message.pk, seconds=asked["wait"])  # type: ignore[attr-defined]
        return response


class MessageWithdraw(ApiView):
    @extend_schema(
        operation_id="messages_withdraw",
        parameters=[serializers.WhichMessage],
        request=serializers.WithReason,
        responses={200: serializers.MessageDetailOut, **errors(400, 403, 404, 409, 413, 415)},
    )
    def post(self, request: Request, message_id: str) -> Response:
        """Take back a message whose turn has not begun."""
        caller, message, reason = _to_change(request, message_id)
        by_sender = caller.session is not None
        changed = transitions.withdraw(
            message, who=_who(caller), by_sender=by_sender, now=database_now(), reason=reason
        )
        return Response(serializers.detail_of(changed, now=database_now()))


class MessageRetry(ApiView):
    @extend_schema(
        operation_id="messages_retry",
        parameters=[serializers.WhichMessage],
        request=serializers.WithReason,
        responses={202: serializers.MessageDetailOut, **errors(400, 403, 404, 409, 410, 413, 415)},
    )
    def post(self, request: Request, message_id: str) -> Response:
        """Deliver a failed message again, under the same id, with fresh attempts and validity."""
        caller, message, reason = _to_change(request, message_id)
        changed = transitions.redeliver(message, who=_who(caller), now=database_now(), reason=reason)
        return Response(serializers.detail_of(changed, now=database_now()), status=202)


def _to_change(request: Request, message_id: str) -> tuple[Caller, Message, str]:
    """The message, if the caller is its sender or answers for the project. Raises Refused to its target."""
    caller = caller_of(request)
    asked = valid_query(serializers.WhichMessage, request)
    message = message_named(caller, message_id, project=asked.get("project"))
    if caller.session is not None and message.sender_id != caller.session.agent_id:
        raise Refused("Only its sender or an operator may do this.")
    return caller, message, valid(serializers.WithReason, request.data).get("reason", "")


def _who(caller: Caller) -> str:
    return caller.session.agent_id if caller.session else caller.label
