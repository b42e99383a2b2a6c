"""A tool's arguments in JSON Schema, as function-calling APIs take them."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers as rest

from sessions_app.serializers import StrictSerializer

_TYPES: list[tuple[type[rest.Field[Any, Any, Any, Any]], str]] = [
    (rest.IntegerField, "integer"),
    (rest.FloatField, "number"),
    (rest.ChoiceField, "string"),
    (rest.CharField, "string"),
    (rest.BooleanField, "boolean"),
    (rest.ListField, "array"),
]
_BOUNDS = {"min_value": "minimum", "max_value": "maximum", "max_length": "maxLength"}
_LIST_BOUNDS = {"max_length": "maxItems"}


def json_schema(arguments: StrictSerializer) -> dict[str, Any]:
    """What the serializer takes, in JSON Schema."""
    return {
        "type": "object",
        "properties": {name: _property(argument) for name, argument in arguments.fields.items()},
        "required": [name for name, argument in arguments.fields.items() if argument.required],
        "additionalProperties": False,
    }


def _property(argument: Any) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": next(name for kind, name in _TYPES if isinstance(argument, kind))}
    if argument.help_text:
        schema["description"] = argument.help_text
    if isinstance(argument, rest.ChoiceField):
        schema["enum"] = list(argument.choices)
    if argument.default is not rest.empty:
        schema["default"] = argument.default
    if isinstance(argument, rest.ListField):
        schema["items"] = _property(argument.child)
    options = _LIST_BOUNDS if isinstance(argument, rest.ListField) else _BOUNDS
    bounds = {name: getattr(argument, option, None) for option, name in options.items()}
    return schema | {name: bound for name, bound in bounds.items() if bound is not None}
