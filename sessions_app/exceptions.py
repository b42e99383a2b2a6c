"""Every answer that is an error, whoever raised it, in the one shape ``{"code", "detail", "extra"}``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog
from django.core import exceptions as django_errors
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.views import defaults
from rest_framework import exceptions as rest
from rest_framework.response import Response

from sessions_app.text import WHOLE_BODY
from suzent_site.errors import BodyTooLarge, Invalid, NotFound, Refused, SuzentError

log = structlog.get_logger(__name__)
API_PREFIX = "/api"


class Unauthenticated(SuzentError):
    """Send an API token as "Authorization: Bearer <token>", or log in as an operator."""

    code = "not_authenticated"
    status = 401


class InvalidToken(SuzentError):
    """This token is not valid."""

    code = "invalid_token"
    status = 401


class MethodNotAllowed(SuzentError):
    """This URL does not know that method."""

    code = "method_not_allowed"
    status = 405


class NotJSON(SuzentError):
    """Send the body as application/json."""

    code = "unsupported_media_type"
    status = 415


class DatabaseUnavailable(SuzentError):
    """The database cannot be reached just now. Try again; under the same message_id nothing is sent twice."""

    code = "unavailable"
    status = 503


class BadRequest(SuzentError):
    """The request cannot be read."""

    code = "bad_request"
    status = 400


def as_response(error: Exception, context: dict[str, Any]) -> Response | None:
    """The answer for ``error``; None lets Django log the traceback and answer 500."""
    known = _known(error)
    if known is None:
        return None
    if isinstance(known, DatabaseUnavailable):
        log.warning("database_unavailable", error=type(error).__name__)
    return Response(known.as_json(), status=known.status, headers=_headers(known))


def _headers(error: SuzentError) -> dict[str, str]:
    if error.status == Unauthenticated.status:
        return {"WWW-Authenticate": 'Bearer realm="suzent"'}
    if "retry_after" in error.extra:
        return {"Retry-After": str(max(1, round(error.extra["retry_after"])))}
    return {}


def _known(error: Exception) -> SuzentError | None:
    if isinstance(error, SuzentError):
        return error
    if isinstance(error, rest.ValidationError):
        return first_complaint(error.detail)
    for kind, make in _TRANSLATIONS:
        if isinstance(error, kind):
            return make()
    return None


_TRANSLATIONS: list[tuple[type[Exception] | tuple[type[Exception], ...], Callable[[], SuzentError]]] = [
    ((Http404, rest.NotFound), NotFound),
    (rest.NotAuthenticated, Unauthenticated),
    (rest.AuthenticationFailed, InvalidToken),
    ((rest.PermissionDenied, django_errors.PermissionDenied), Refused),
    (rest.MethodNotAllowed, MethodNotAllowed),
    (rest.UnsupportedMediaType, NotJSON),
    (rest.ParseError, BadRequest),
    (django_errors.RequestDataTooBig, BodyTooLarge),
    ((OperationalError, InterfaceError), DatabaseUnavailable),
]


def first_complaint(detail: Any, path: str = "") -> Invalid:
    """One field, one reason: a caller mends one thing at a time."""
    if isinstance(detail, dict):
        name, inner = next(iter(detail.items()))
        return first_complaint(inner, f"{path}.{name}" if path else str(name))
    if isinstance(detail, list):
        return first_complaint(detail[0], path)
    return Invalid(path or WHOLE_BODY, str(detail))


# --- What Django itself answers, outside the views: no such URL, a refused host, a crash -----------------------


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    too_large = isinstance(exception, django_errors.RequestDataTooBig)
    return _in_our_shape(request, BodyTooLarge() if too_large else BadRequest()) or defaults.bad_request(
        request, exception
    )


def permission_denied(request: HttpRequest, exception: Exception) -> HttpResponse:
    return _in_our_shape(request, Refused()) or defaults.permission_denied(request, exception)


def page_not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    return _in_our_shape(request, NotFound()) or defaults.page_not_found(request, exception)


def server_error(request: HttpRequest) -> HttpResponse:
    return _in_our_shape(request, SuzentError()) or defaults.server_error(request)


def _in_our_shape(request: HttpRequest, error: SuzentError) -> HttpResponse | None:
    if not request.path_info.startswith(API_PREFIX):
        return None
    return JsonResponse(error.as_json(), status=error.status)
