"""What the OpenAPI generator has to be told of us; settings name this module."""

from __future__ import annotations

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema

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
