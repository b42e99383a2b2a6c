"""What the tools and the message calls take and answer."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.conf import settings
from django.core.validators import RegexValidator
from rest_framework import serializers

from inbox_app import profiles, progress
from inbox_app.content import check_content, check_message_id
from inbox_app.models import CONTENT_LIMIT, MESSAGE_ID, Attempt, Message, SubagentTask
from sessions_app.models import Session
from sessions_app.pages import STATUSES
from sessions_app.serializers import (
    PAGE_LIMIT,
    TITLE_LENGTH,
    Choice,
    Flag,
    Names,
    QuerySerializer,
    Seconds,
    StrictSerializer,
    Text,
    Whole,
)

PEER_STATUSES = ["ready", "offline", "paused", "revoked", "off"]
VALID_FOR_LIMIT = 30 * 24 * 3600  # seconds
TASK_TIMEOUT_LIMIT = 24 * 3600  # seconds
WAIT_LIMIT = 60  # seconds
REASON_LENGTH = 500
CURSOR_LENGTH = 400
_message_id = RegexValidator(rf"^{MESSAGE_ID}\Z", "has 1 to 128 letters, digits and _ . : -")


class AgentSpawn(StrictSerializer):
    description = Text(max_length=CONTENT_LIMIT, help_text="The task, in full: all that the sub-agent is told.")
    title = Text(required=False, max_length=TITLE_LENGTH, help_text="A name for lists; else the task's first line.")
    subagent_type = Choice(
        choices=list(settings.SUBAGENT_PROFILES), required=False, help_text="A profile: instructions and tools to begin with."
    )
    tools_allowed = Names(required=False, help_text="All the tools that it may use, instead of its profile's.")
    tools_denied = Names(required=False, help_text="Tools that it may not use. Not together with tools_allowed.")
    run_in_background = Flag(
        default=True, help_text="false: the call waits for the result, 60 seconds at most. The result comes as a message too."
    )
    inherit_context = Flag(default=False, help_text="Let it read the newest part of your own conversation.")
    model_override = Text(required=False, help_text="The model that its runtime is to use, instead of yours.")
    runtime = Text(required=False, max_length=64, help_text="Instead of yours; one that your project allows.")
    cwd = Text(required=False, max_length=4096, help_text="The directory to work in; one that your project allows.")
    isolation = Choice(
        choices=list(settings.SUBAGENT_ISOLATIONS), required=False, help_text="How it is kept from disturbing what lies in cwd."
    )
    timeout = Seconds(
        required=False, max_value=TASK_TIMEOUT_LIMIT,
        help_text="Seconds after its start at which the task ends as timed_out, without another try; more than 0.",
    )  # fmt: skip

    def validate_description(self, description: str) -> str:
        check_content(description, field="description")
        return description

    def validate_timeout(self, seconds: float) -> float:
        if seconds <= 0:
            raise serializers.ValidationError("must be more than 0")
        return seconds

    def validate_tools_allowed(self, names: list[str]) -> list[str]:
        profiles.check_tools(names, field="tools_allowed")
        return names

    def validate_tools_denied(self, names: list[str]) -> list[str]:
        if "tools_allowed" in self.initial_data:
            raise serializers.ValidationError("cannot be given together with tools_allowed")
        profiles.check_tools(names, field="tools_denied")
        return names


class AgentList(StrictSerializer):
    status = Choice(
        choices=["active", "recent"],
        default="active",
        help_text="active: those in a turn now. recent: all that are not archived, those that changed last first.",
    )
    limit = Whole(default=20, min_value=1, max_value=PAGE_LIMIT, help_text="How many at most.")
    cursor = Text(required=False, max_length=CURSOR_LENGTH, help_text="The next_cursor of the page before.")


class AgentRead(StrictSerializer):
    agent_id = Text(help_text="Whose conversation to read.")
    before = Whole(required=False, min_value=1, max_value=2**62, help_text="Only entries with a smaller seq.")


class AgentSend(StrictSerializer):
    agent_id = Text(help_text="Who is to get the message.")
    message = Text(max_length=CONTENT_LIMIT, help_text="The text. The target sees it unchanged.")
    message_id = Text(
        required=False,
        validators=[_message_id],
        help_text="Your own key for this message: sent again with the same content it is not delivered twice.",
    )
    in_reply_to = Text(required=False, validators=[_message_id], help_text="The message_id that this answers.")
    valid_for = Seconds(
        required=False,
        max_value=VALID_FOR_LIMIT,
        help_text="Seconds after which it is no longer worth starting on; more than 0.",
    )

    def validate_message(self, message: str) -> str:
        check_content(message)
        return message

    def validate_message_id(self, message_id: str) -> str:
        check_message_id(message_id)
        return message_id

    def validate_valid_for(self, seconds: float) -> float:
        if seconds <= 0:
            raise serializers.ValidationError("must be more than 0")
        return seconds


class AgentStop(StrictSerializer):
    agent_id = Text(help_text="Whose running turn is to stop.")


class _Out(serializers.Serializer):  # type: ignore[type-arg]  # generic in the stubs only
    """An answer."""


class ToolOut(_Out):
    type = serializers.ChoiceField(choices=["function"])
    name = serializers.CharField()
    description = serializers.CharField()
    parameters = serializers.DictField(help_text="JSON Schema of the arguments.")


class ToolsOut(_Out):
    tools = ToolOut(many=True)


class AgentOut(_Out):
    agent_id = serializers.CharField()
    title = serializers.CharField(allow_blank=True)
    kind = serializers.ChoiceField(choices=Session.Kind.choices)
    status = serializers.ChoiceField(choices=[*STATUSES, *PEER_STATUSES], help_text="The last five: of an agent on another machine.")
    project_id = serializers.CharField()
    parent_agent_id = serializers.CharField(allow_null=True)
    updated_at = serializers.DateTimeField()
    unread = serializers.IntegerField(help_text="Messages for it that have not settled.")


class SpawnOut(_Out):
    agent_id = serializers.CharField(help_text="The sub-agent's session.")
    task_id = serializers.CharField()
    status = serializers.ChoiceField(choices=SubagentTask.Status.choices)
    parent_agent_id = serializers.CharField()


class OutcomeOut(SpawnOut):
    result = serializers.CharField(allow_blank=True, help_text="What the sub-agent answered, whole.")
    error = serializers.CharField(allow_blank=True, help_text="Why it did not complete.")


class TaskOut(SpawnOut):
    agent_id = serializers.CharField(source="child_id", help_text="The sub-agent's session.")
    parent_agent_id = serializers.CharField(source="parent_id")
    project_id = serializers.CharField()
    title = serializers.CharField(source="child.title", allow_blank=True)
    error = serializers.CharField(allow_blank=True, help_text="Why it did not complete.")
    created_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)
    age = serializers.SerializerMethodField(help_text="Seconds from when it was given to its end, or until now.")

    def get_age(self, task: SubagentTask) -> float:
        return ((task.ended_at or self.context["now"]) - task.created_at).total_seconds()


class TaskDetailOut(TaskOut):
    description = serializers.CharField()
    options = serializers.DictField(help_text="What the call asked for beside the description.")
    result = serializers.CharField(allow_blank=True, help_text="What the sub-agent answered, whole.")


class TaskPageOut(_Out):
    tasks = TaskOut(many=True)
    has_more = serializers.BooleanField()
    next_cursor = serializers.CharField(allow_null=True)


class ListTasks(QuerySerializer):
    status = Choice(choices=SubagentTask.Status.choices, required=False)
    agent_id = Text(required=False, help_text="Only those that this session gave, or was made for.")
    limit = Whole(default=20, min_value=1, max_value=PAGE_LIMIT)
    cursor = Text(required=False, max_length=CURSOR_LENGTH)


class AgentListOut(_Out):
    agents = AgentOut(many=True)
    has_more = serializers.BooleanField()
    next_cursor = serializers.CharField(allow_null=True)


class EntryOut(_Out):
    seq = serializers.IntegerField()
    role = serializers.ChoiceField(choices=["user", "assistant", "system", "tool"])
    text = serializers.CharField(allow_blank=True)
    created_at = serializers.DateTimeField(allow_null=True, help_text="null where another machine does not say when.")
    message_id = serializers.CharField(required=False, help_text="Of the message that the entry holds, if it does.")
    sender = serializers.CharField(required=False, allow_null=True, help_text="Its sender, where that is a session.")
    in_reply_to = serializers.CharField(required=False, allow_null=True, help_text="The message that it answers.")


class AgentReadOut(_Out):
    agent_id = serializers.CharField()
    kind = serializers.ChoiceField(choices=Session.Kind.choices)
    status = serializers.ChoiceField(choices=STATUSES)
    title = serializers.CharField(allow_blank=True)
    messages = EntryOut(many=True)
    message_count = serializers.IntegerField(help_text="Entries in the whole transcript.")
    omitted_message_count = serializers.IntegerField(help_text="Older entries that this answer leaves out.")
    transcript_truncated = serializers.BooleanField(help_text="Whether entries are left out or one was cut.")


class AgentSendOut(_Out):
    message_id = serializers.CharField()
    agent_id = serializers.CharField()
    status = serializers.ChoiceField(choices=Message.Status.choices)
    transport = serializers.ChoiceField(choices=Message.Transport.choices)
    created = serializers.BooleanField(help_text="False: this very message had been sent before.")


class AgentStopOut(_Out):
    agent_id = serializers.CharField()
    status = serializers.ChoiceField(choices=["stopping"])


class PeerAnswerOut(_Out):
    status = serializers.CharField(help_text="How far the message was there: pending, processing, delivered or failed.")
    created = serializers.BooleanField(help_text="False: it had been there before, so an earlier answer was lost.")


class AttemptOut(_Out):
    number = serializers.IntegerField()
    outcome = serializers.ChoiceField(choices=Attempt.Outcome.choices, allow_null=True)
    started_at = serializers.DateTimeField()
    finished_at = serializers.DateTimeField(allow_null=True)
    error = serializers.CharField(allow_blank=True)


class MessageOut(_Out):
    message_id = serializers.CharField()
    project_id = serializers.CharField()
    agent_id = serializers.CharField(source="target", help_text="Who is to get it.")
    sender = serializers.CharField(source="sender_id", allow_null=True)
    sender_label = serializers.CharField(allow_blank=True)
    kind = serializers.ChoiceField(choices=Message.Kind.choices)
    transport = serializers.ChoiceField(choices=Message.Transport.choices)
    content = serializers.CharField()
    status = serializers.ChoiceField(choices=Message.Status.choices)
    reason = serializers.ChoiceField(choices=Message.Reason.choices, allow_null=True)
    in_reply_to = serializers.CharField(allow_null=True)
    hops = serializers.IntegerField()
    accepted_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    settled_at = serializers.DateTimeField(allow_null=True)
    valid_until = serializers.DateTimeField(allow_null=True)

    def to_representation(self, instance: Message) -> dict[str, Any]:
        shown: dict[str, Any] = super().to_representation(instance)
        return {**shown, "in_reply_to": instance.in_reply_to or None}


class MessageDetailOut(MessageOut):
    attempts = AttemptOut(many=True)
    next_attempt_at = serializers.DateTimeField(allow_null=True)
    waiting_for = serializers.CharField(
        allow_null=True, help_text="What it waits for, in words; null once it has settled."
    )
    maybe_delivered = serializers.BooleanField(required=False, help_text="Of mail to a peer only. Another machine may have it although no try of ours was answered.")
    peer_answer = PeerAnswerOut(required=False, allow_null=True, help_text="Of mail to a peer only. What the other machine said when it took the message.")


class MessagePageOut(_Out):
    messages = MessageOut(many=True)
    has_more = serializers.BooleanField()
    next_cursor = serializers.CharField(allow_null=True)


class ListMessages(QuerySerializer):
    direction = Choice(
        choices=["sent", "received"], required=False, help_text="Of your session; without one, of the session agent_id."
    )
    status = Choice(choices=Message.Status.choices, required=False)
    agent_id = Text(required=False, help_text="Only those to or from this session.")
    project = Text(required=False, help_text="Only this project's; for operators.")
    limit = Whole(default=20, min_value=1, max_value=PAGE_LIMIT)
    cursor = Text(required=False, max_length=CURSOR_LENGTH)


class WhichMessage(QuerySerializer):
    project = Text(required=False, help_text="For operators, where two projects have a message of this id.")


class ReadMessage(WhichMessage):
    wait = Whole(default=0, min_value=0, max_value=WAIT_LIMIT, help_text="Seconds to wait for it to settle.")


class WithReason(StrictSerializer):
    reason = Text(required=False, allow_blank=True, max_length=REASON_LENGTH, help_text="Why; kept beside the message.")


def detail_of(message: Message, *, now: datetime) -> dict[str, Any]:
    """The message as its sender may see it: each try, the next one, and what it waits for."""
    return {
        **MessageOut(message).data,
        "attempts": AttemptOut(message.attempts_made.order_by("number"), many=True).data,
        "next_attempt_at": progress.next_attempt_at(message),
        "waiting_for": progress.waiting_for(message, now=now),
        **({} if message.session_id else {"maybe_delivered": message.maybe_delivered, "peer_answer": message.peer_answer or None}),
    }
