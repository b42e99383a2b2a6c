"""``POST /channels/social/<name>``: a platform, or its bridge, brings an event and proves by its signature who it is."""

from __future__ import annotations

import re
import time
from typing import Any

import structlog
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, JsonResponse
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import csrf_exempt

from sessions_app.clock import database_now
from sessions_app.exceptions import DatabaseUnavailable, MethodNotAllowed
from sessions_app.models import SocialChannel
from sessions_app.parsers import read_object
from sessions_app.social import refusals, web
from sessions_app.social.channels import secret_of
from sessions_app.social.events import IncomingEvent
from sessions_app.social.models import CHANNEL_NAME
from sessions_app.social.serializers import event_from
from sessions_app.social.signature import what_is_wrong
from sessions_app.text import shown
from suzent_site.errors import Invalid, SuzentError
from suzent_site.sealed import CannotUnseal

RETRY_AFTER = 5  # seconds

log = structlog.get_logger(__name__)


class Unproven(SuzentError):
    """Sign the raw body with the channel's secret, as X-Suzent-Timestamp and X-Suzent-Signature."""

    code = "bad_signature"
    status = 401


class QueueFull(SuzentError):
    """Too much waits already. Send it again."""

    code = "queue_full"
    status = 503


@method_decorator(csrf_exempt, name="dispatch")  # the signature is over the body, which no other site can make
class Webhook(View):
    http_method_names = ["post"]

    def post(self, request: HttpRequest, name: str) -> JsonResponse:
        """202 before the turn: the event is in the queue of this process. The same event_id later has no second turn."""
        try:
            return self._take_in(request, name)
        except SuzentError as error:
            return _refusal(error)
        except (OperationalError, InterfaceError):
            return _refusal(DatabaseUnavailable())

    def http_method_not_allowed(self, request: HttpRequest, *args: Any, **kwargs: Any) -> JsonResponse:
        answer = _refusal(MethodNotAllowed())
        answer.headers["Allow"] = "POST"
        return answer

    def _take_in(self, request: HttpRequest, name: str) -> JsonResponse:
        channel = _proven(request, name)
        event = _event(request, channel)
        if not web.take_in(event):
            refusals.count(channel.pk, "queue_full", now=database_now())
            raise QueueFull(retry_after=RETRY_AFTER)
        return JsonResponse({"event_id": event.event_id, "agent_id": event.session_id, "status": "queued"}, status=202)


def _event(request: HttpRequest, channel: SocialChannel) -> IncomingEvent:
    """Raises Invalid, naming the field."""
    try:
        return event_from(read_object(request.body), channel, now=database_now())
    except Invalid:
        refusals.count(channel.pk, "malformed", now=database_now())
        raise


def _proven(request: HttpRequest, name: str) -> SocialChannel:
    """The channel that this call is signed for. Raises Unproven, in the same words whatever is wrong."""
    channel = SocialChannel.objects.filter(pk=name).first() if re.fullmatch(CHANNEL_NAME, name) else None
    why = _what_is_wrong(request, channel)
    if channel is None:
        log.warning("social_event_refused", channel=shown(name), reason=why)
        raise Unproven
    if why:
        refusals.count(channel.pk, why, now=database_now())
        raise Unproven
    return channel


def _what_is_wrong(request: HttpRequest, channel: SocialChannel | None) -> str:
    if channel is None or channel.driver != SocialChannel.Driver.WEBHOOK:
        return "no_webhook"
    if not channel.active:
        return "channel_off"
    try:
        secret = secret_of(channel)
    except CannotUnseal:
        secret = ""
    return what_is_wrong(secret, request.headers, request.body, at=time.time())


def _refusal(error: SuzentError) -> JsonResponse:
    headers = {"Retry-After": str(RETRY_AFTER)} if error.status == QueueFull.status else {}
    return JsonResponse(error.as_json(), status=error.status, headers=headers)
