"""What the OpenAPI generator has to be told of us; settings name this module."""

from __future__ import annotations

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension, OpenApiSerializerExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import Direction

Endpoint = tuple[str, str, str, Any]


def one_of_each(endpoints: list[Endpoint]) -> list[Endpoint]:
    """A trailing slash is optional everywhere; the schema shows each path once, without."""
    return [endpoint for endpoint in endpoints if not endpoint[0].endswith("/")]


class BearerTokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]  # untyped there
    target_class = "sessions_app.authentication.BearerToken"
    name = "token"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, Any]:
        return {"type": "http", "scheme": "bearer", "description": "The token of a session or of a project."}


class OperatorSessionScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]  # untyped there
    target_class = "sessions_app.authentication.OperatorSession"
    name = "operator"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, Any]:
        return {"type": "apiKey", "in": "cookie", "name": "sessionid", "description": "An operator's login."}


class StrictBody(OpenApiSerializerExtension):  # type: ignore[no-untyped-call]  # untyped there
    """A strict body takes no other fields than those it lists; it describes itself in its own words or not at all."""

    target_class = "sessions_app.serializers.StrictSerializer"
    match_subclasses = True

    def map_serializer(self, auto_schema: AutoSchema, direction: Direction) -> dict[str, Any]:
        described: dict[str, Any] = auto_schema._map_serializer(  # type: ignore[no-untyped-call]
            self.target, direction, bypass_extensions=True
        )
        if type(self.target).__doc__ is None:
            described.pop("description", None)  # the words of the class it is made from
        return {**described, "additionalProperties": False}
