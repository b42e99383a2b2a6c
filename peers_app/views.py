"""The paths of the peer protocol, thin: read, one call, answer. Statuses and bodies are wire.md 2 and 3."""

from __future__ import annotations

from typing import Any, cast

from django.http import StreamingHttpResponse
from django.http.response import HttpResponseBase
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from peers_app import checks, devices, grants, installation, pairing, streams, wire
from peers_app.attachments import attachments_in
from peers_app.authentication import DRIVING, NOTHING, READING, DeviceToken, InScope
from peers_app.models import DeviceGrant
from peers_app.streams import Stream
from sessions_app.clock import database_now
from sessions_app.exceptions import as_response


class WirePath(APIView):
    """JSON whatever is sent or asked for; every error is ``{"error": "<text>"}``."""

    authentication_classes: Any = ()
    permission_classes: Any = ()
    metadata_class = None
    schema = None

    def perform_content_negotiation(self, request: Request, force: bool = False) -> tuple[Any, str]:
        renderer = self.get_renderers()[0]
        return renderer, renderer.media_type

    def get_exception_handler(self) -> Any:
        return as_wire_error

    def body(self, request: Request) -> bytes:
        return request._request.body


class ChannelPath(WirePath):
    """For devices with a token of one of these scopes."""

    authentication_classes = (DeviceToken,)
    permission_classes = (InScope,)
    scopes: frozenset[str] = DRIVING


def as_wire_error(error: Exception, context: dict[str, Any]) -> Response | None:
    response = as_response(error, context)
    if response is not None:
        response.data = {"error": response.data["detail"]}
    return response


class Ask(WirePath):
    def post(self, request: Request) -> Response:
        asked = wire.request_in(self.body(request))
        made = grants.ask(asked, came_from=request.META.get("REMOTE_ADDR", ""), now=database_now())
        return Response({"request_id": made.request_id, "status": made.state})


class Poll(WirePath):
    http_method_names = ["get"]  # a HEAD would take the token that is served once, and drop it

    def get(self, request: Request, request_id: str) -> Response:
        found = grants.collect(request_id, now=database_now())
        if found is None:
            raise wire.UnknownRequest
        state, token = found
        served = {"token": token, "node_identity": installation.node_identity()} if token else {}
        return Response({"status": state, **served}, headers={"Cache-Control": "no-store"})


class Inbox(ChannelPath):
    def post(self, request: Request) -> Response:
        mail = wire.mail_in(self.body(request))
        hops = wire.hops_in(request.headers.get(wire.HOPS_HEADER))
        accepted = devices.receive(grant_of(request), mail, hops=hops, now=database_now())
        answer = {"accepted": True, "created": accepted.created, "message_id": mail.message_id, "status": accepted.message.status}
        return Response(answer, status=202)


class Session(ChannelPath):
    scopes = READING

    def get(self, request: Request) -> Response:
        return Response(devices.shown(grant_of(request).agent_id))


class Stop(ChannelPath):
    def post(self, request: Request) -> Response:
        agent_id = grant_of(request).agent_id
        if not devices.stop(agent_id, now=database_now()):
            raise wire.NotActive
        return Response({"stopped": True, "agent_id": agent_id})


class WhoAmI(ChannelPath):
    scopes = READING

    def get(self, request: Request) -> Response:
        return Response({"ok": True, "peer_id": grant_of(request).device_id})


class Proof(WirePath):
    """Open: a proof is of no use to anybody but who holds the same grant."""

    def post(self, request: Request) -> Response:
        asked = wire.demand_in(self.body(request))
        return Response({"proof": grants.proof_of(asked)})


class Inbound(ChannelPath):
    """Asked twice: first it has the turn begun, then, when that has happened, it answers with the stream (see asgi.COME_BACK)."""

    def post(self, request: Request) -> HttpResponseBase:
        stream: Stream | None = getattr(request._request, "stream", None)
        if stream is None:
            stream = Stream(self._inbound(request))
            request._request.stream = stream  # type: ignore[attr-defined]
            response = Response()
            response.come_back = stream.ready  # type: ignore[attr-defined]
            return response
        if stream.refusal is not None:
            raise stream.refusal
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingHttpResponse(stream.blocks(), content_type="text/event-stream", headers=headers)

    def _inbound(self, request: Request) -> streams.Inbound:
        grant, now = grant_of(request), database_now()
        fields = wire.inbound_in(self.body(request))
        hops = devices.hops_of(grant, wire.hops_in(request.headers.get(wire.HOPS_HEADER)), now=now)
        agent_id = wire.session_named(fields.get("chat_id"), default=grant.agent_id)
        content = wire.content_in(fields)
        files = attachments_in(fields.get("attachments"), grant=grant, came_from=request.META.get("REMOTE_ADDR", ""))
        return streams.Inbound(grant, devices.opened(grant, agent_id, now=now), content, files, hops=hops, received_at=now)


class GrantChanged(WirePath):
    """A hint from anybody, trusted for nothing."""

    def post(self, request: Request) -> Response:
        return Response({"ok": True, "removed": checks.after_hint(now=database_now())})


class PeerOffer(ChannelPath):
    def post(self, request: Request) -> Response:
        pairing.take_in(grant_of(request), wire.offer_in(self.body(request)), now=database_now())
        return Response({"success": True})


class Elsewhere(ChannelPath):
    """What a device's token does not open: 401 without a good one, 403 with one."""

    scopes = NOTHING
    http_method_names = ["get", "post", "put", "patch", "delete"]

    def get(self, request: Request, **_: str) -> Response:
        raise wire.OutOfScope

    post = put = patch = delete = get


def grant_of(request: Request) -> DeviceGrant:
    return cast("DeviceGrant", request.auth)


