"""What comes in and goes out as JSON. Input is strict: unknown fields and wrong types are refused by name."""

from __future__ import annotations

from typing import Any

from django.core.validators import RegexValidator
from rest_framework import serializers

from sessions_app.models import AGENT_ID, Session
from sessions_app.pages import STATUSES
from sessions_app.text import refuse_unstorable, shown

PAGE_LIMIT = 50
TITLE_LENGTH = 200


class Text(serializers.CharField):
    """A JSON string, kept as it is: nothing is trimmed and no number becomes text."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"trim_whitespace": False, "max_length": 128, **options})

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        refuse_unstorable(data, field=str(self.field_name))
        return super().to_internal_value(data)


class Whole(serializers.IntegerField):
    """A JSON integer; in a query, where all is text, its digits."""

    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, bool) or (isinstance(data, str) and not isinstance(self.root, QuerySerializer)):
            self.fail("invalid")
        return int(super().to_internal_value(data))


class Seconds(serializers.FloatField):
    """A JSON number of seconds."""

    def to_internal_value(self, data: Any) -> float:
        if isinstance(data, (bool, str)):
            self.fail("invalid")
        return float(super().to_internal_value(data))


class Flag(serializers.BooleanField):
    """JSON true or false; no number or text becomes one."""

    def to_internal_value(self, data: Any) -> bool:
        if not isinstance(data, bool):
            self.fail("invalid", input=data)
        return data


class Names(serializers.ListField):
    """A JSON array of strings."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"child": Text(allow_blank=True, max_length=None), "max_length": 100, **options})

    def to_internal_value(self, data: Any) -> list[str]:
        odd = next((item for item in data if not isinstance(item, str)), None) if isinstance(data, list) else data
        if odd is not None or not isinstance(data, list):
            self.fail("not_a_list", input_type=type(odd).__name__)
        refuse_unstorable(data, field=str(self.field_name))
        return list(super().to_internal_value(data))


class Choice(serializers.ChoiceField):
    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, str):
            self.fail("invalid_choice", input=type(data).__name__)
        return super().to_internal_value(data)


class Options(serializers.DictField):
    """A JSON object that is not a form's."""

    def to_internal_value(self, data: Any) -> dict[Any, Any]:
        if not isinstance(data, dict):
            self.fail("not_a_dict", input_type=type(data).__name__)
        return dict(data)


class StrictSerializer(serializers.Serializer):  # type: ignore[type-arg]  # generic in the stubs only
    """Refuses what it does not know, by name."""

    def to_internal_value(self, data: Any) -> Any:
        unknown = [name for name in data if name not in self.fields] if isinstance(data, dict) else []
        if unknown:
            raise serializers.ValidationError({shown(unknown[0]): ["is not a field of this call"]})
        return super().to_internal_value(data)


class QuerySerializer(StrictSerializer):
    """The same for a query string; the last of a repeated name counts."""


class Error(serializers.Serializer):  # type: ignore[type-arg]  # generic in the stubs only
    code = serializers.CharField(help_text="Stable, for programs.")
    detail = serializers.CharField(help_text="One sentence for people.")
    extra = serializers.DictField(help_text="More for programs, such as the field that is wrong.")


class SessionOut(serializers.Serializer):  # type: ignore[type-arg]  # generic in the stubs only
    agent_id = serializers.CharField()
    project_id = serializers.CharField()
    title = serializers.CharField(allow_blank=True)
    kind = serializers.ChoiceField(choices=Session.Kind.choices)
    status = serializers.ChoiceField(choices=STATUSES)
    parent_agent_id = serializers.CharField(source="parent_id", allow_null=True)
    runtime = serializers.CharField()
    config = serializers.DictField()
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()
    archived_at = serializers.DateTimeField(allow_null=True)


class NewSessionOut(SessionOut):
    token = serializers.CharField(help_text="The session's own token. It is shown this once.")


class SessionPage(serializers.Serializer):  # type: ignore[type-arg]  # generic in the stubs only
    sessions = SessionOut(many=True)
    has_more = serializers.BooleanField()
    next_cursor = serializers.CharField(allow_null=True)


class ListSessions(QuerySerializer):
    project = Text(required=False, help_text="Only this project's; for operators.")
    archived = Choice(
        choices=["true", "false"], default="false", help_text="The archived ones instead of the open ones."
    )
    limit = Whole(default=20, min_value=1, max_value=PAGE_LIMIT)
    cursor = Text(required=False, max_length=400)


class ChangeSession(StrictSerializer):
    title = Text(required=False, allow_blank=True, max_length=TITLE_LENGTH)
    runtime = Text(required=False, max_length=64)
    config = Options(required=False)


class NewSession(ChangeSession):
    agent_id = Text(
        required=False,
        validators=[
            RegexValidator(rf"^{AGENT_ID}\Z", "may have letters, digits and _ . : - and begins with a letter or digit")
        ],
        help_text="Its address for ever; made if left out.",
    )
    project = Text(required=False, help_text="For operators, where there is more than one project.")
