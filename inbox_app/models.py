"""What is to be delivered: messages, every try of them, and the wake-ups of the dispatcher."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from inbox_app.digest import digest_of
from inbox_app.querysets import DedupeKeyQuerySet, MessageQuerySet, SubagentTaskQuerySet
from sessions_app.models import LANE_KEY_LENGTH, Project, Session, Turn, lane_key_of

MESSAGE_ID = r"[A-Za-z0-9_.:-]{1,128}"
CONTENT_LIMIT = 20_000  # characters


class Message(models.Model):
    """A durable inbox row. Its status is written by transitions.py alone."""

    class Transport(models.TextChoices):
        LOCAL = "local"
        SUZENT_PEER = "suzent_peer"

    class Kind(models.TextChoices):
        AGENT_MESSAGE = "agent_message"
        USER_MESSAGE = "user_message"
        SUBAGENT_TASK = "subagent_task"
        SUBAGENT_RESULT = "subagent_result"
        REMOTE_AGENT_MESSAGE = "remote_agent_message"
        DELIVERY_FAILURE = "delivery_failure"

    class Status(models.TextChoices):
        PENDING = "pending"
        PROCESSING = "processing"
        DELIVERED = "delivered"
        FAILED = "failed"

    class Reason(models.TextChoices):
        EXHAUSTED = "exhausted"
        EXPIRED = "expired"
        WITHDRAWN = "withdrawn"
        REJECTED = "rejected"
        TARGET_GONE = "target_gone"
        WORKER_DIED = "worker_died"
        TIMEOUT = "timeout"
        HOP_LIMIT = "hop_limit"

    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="messages", db_index=False)
    message_id = models.CharField(max_length=128, help_text="The sender's idempotency key, unique in the project.")
    transport = models.CharField(max_length=16, choices=Transport.choices, default=Transport.LOCAL)
    sender = models.ForeignKey(Session, null=True, blank=True, on_delete=models.PROTECT, related_name="sent", db_index=False)
    sender_label = models.CharField(max_length=200, blank=True, help_text="Who sent it where that is no session.")
    target = models.CharField(max_length=LANE_KEY_LENGTH, help_text="The address it was sent to.")
    session = models.ForeignKey(Session, null=True, blank=True, on_delete=models.PROTECT, related_name="received", db_index=False)
    kind = models.CharField(max_length=24, choices=Kind.choices)
    content = models.TextField()
    payload = models.JSONField(default=dict)
    in_reply_to = models.CharField(max_length=128, blank=True)
    root_id = models.CharField(max_length=128, help_text="The message that began the chain.")
    caused_by = models.CharField(max_length=128, blank=True, help_text="The message its sender was handling.")
    hops = models.IntegerField(default=0)
    status = models.CharField(max_length=16, choices=Status.choices, default=Status.PENDING)
    reason = models.CharField(max_length=16, choices=Reason.choices, null=True, blank=True)  # noqa: DJ001  # NULL: not failed
    attempts = models.IntegerField(default=0, help_text="Charged tries.")
    losses = models.IntegerField(default=0, help_text="Tries whose process died; from the first on it runs alone.")
    deferrals = models.IntegerField(default=0, help_text="Tries that found the runtime unavailable; never charged.")
    redeliveries = models.IntegerField(default=0)
    max_attempts = models.IntegerField(default=5)
    available_at = models.DateTimeField()
    valid_until = models.DateTimeField(null=True, blank=True)
    lane = models.CharField(max_length=LANE_KEY_LENGTH, null=True, blank=True)  # noqa: DJ001  # NULL: settled
    accepted_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True)
    settled_at = models.DateTimeField(null=True, blank=True)
    last_error = models.TextField(blank=True)
    maybe_delivered = models.BooleanField(default=False, help_text="Another machine may have taken it and did not say so.")
    peer_answer = models.JSONField(default=dict, help_text="What the other machine said when it took it.")

    objects = MessageQuerySet.as_manager()

    class Meta:
        db_table = "agent_inbox_messages"
        constraints = [
            models.UniqueConstraint(fields=["project", "message_id"], name="message_id_once_per_project"),
            models.CheckConstraint(condition=Q(transport__in=["local", "suzent_peer"]), name="message_transport_known"),
            models.CheckConstraint(condition=Q(kind__in=[
                "agent_message", "user_message", "subagent_task", "subagent_result", "remote_agent_message", "delivery_failure",
            ]), name="message_kind_known"),
            models.CheckConstraint(
                condition=Q(status__in=["pending", "processing"], lane__isnull=False, settled_at=None)
                | Q(status__in=["delivered", "failed"], lane=None, settled_at__isnull=False),
                name="message_settled_has_no_lane",
            ),
            models.CheckConstraint(
                condition=Q(status="failed", reason__isnull=False, reason__in=[
                    "exhausted", "expired", "withdrawn", "rejected", "target_gone", "worker_died", "timeout", "hop_limit",
                ]) | (~Q(status="failed") & Q(reason=None)),
                name="message_reason_if_failed",
            ),
        ]
        indexes = [
            # Reader: MessageQuerySet.heads, once for every claim and every settled message.
            models.Index(fields=["lane", "status", "id"], condition=Q(lane__isnull=False), name="message_head"),
            # Reader: MessageQuerySet.overdue, the sweep.
            models.Index(fields=["valid_until"], condition=Q(lane__isnull=False, valid_until__isnull=False), name="message_overdue"),
            # Readers: GET /api/messages, direction=sent and direction=received, newest first.
            models.Index(fields=["sender", "-id"], name="message_sent"),
            models.Index(fields=["session", "-id"], name="message_received"),
            # Readers: mailbox, console, and what comes from there (how long its chain is): the mail to an agent on another machine, newest first.
            models.Index(fields=["target", "-id"], condition=Q(session=None), name="message_sent_away"),
            # Reader: MessageQuerySet.failed: the operator's first page, GET /api/messages?status=failed.
            models.Index(fields=["-id"], condition=Q(reason__isnull=False), name="message_failed"),
            # Reader: MessageQuerySet.settled_before, retention.
            models.Index(fields=["settled_at"], condition=Q(settled_at__isnull=False), name="message_settled"),
        ]

    def __str__(self) -> str:
        return self.message_id

    @property
    def lane_key(self) -> str:
        """Its lane, whether it still waits there or not."""
        return lane_key_of(self.target)

    @property
    def is_task(self) -> bool:
        return self.kind == self.Kind.SUBAGENT_TASK

    @property
    def is_timed(self) -> bool:
        """A task that has begun and has a time-out: that is its validity from then on."""
        return self.is_task and self.valid_until is not None

    @property
    def digest(self) -> str:
        return digest_of(sender=self.sender_id, target=self.target, kind=self.kind, content=self.content, payload=self.payload)


class Attempt(models.Model):
    """One claim of a message: by whom, under which epoch, and how it ended."""

    class Outcome(models.TextChoices):
        DELIVERED = "delivered"
        RETRIED = "retried"
        FAILED = "failed"
        RELEASED = "released"
        LOST = "lost"
        STOPPED = "stopped"

    message = models.ForeignKey(Message, on_delete=models.CASCADE, related_name="attempts_made", db_index=False)
    number = models.IntegerField()
    owner = models.CharField(max_length=128)
    epoch = models.BigIntegerField()
    turn = models.ForeignKey(Turn, null=True, on_delete=models.SET_NULL, related_name="attempts")
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)
    outcome = models.CharField(max_length=16, choices=Outcome.choices, null=True)  # noqa: DJ001  # NULL: still open
    error = models.TextField(blank=True)

    class Meta:
        constraints = [
            # Also the index of every reader: the attempts of a message in order.
            models.UniqueConstraint(fields=["message", "number"], name="attempt_numbered"),
            models.CheckConstraint(
                condition=Q(outcome=None, finished_at=None)
                | Q(
                    outcome__isnull=False, finished_at__isnull=False,
                    outcome__in=["delivered", "retried", "failed", "released", "lost", "stopped"],
                ),
                name="attempt_finished_with_outcome",
            ),
        ]

    def __str__(self) -> str:
        return f"attempt {self.number}"


class Intervention(models.Model):
    """What a person (or the sender) did to a message: which verb, who, why."""

    class Verb(models.TextChoices):
        WITHDRAW = "withdraw"
        REDELIVER = "redeliver"

    message = models.ForeignKey(Message, on_delete=models.CASCADE, related_name="interventions")
    verb = models.CharField(max_length=16, choices=Verb.choices)
    who = models.CharField(max_length=200)
    why = models.TextField(blank=True)
    at = models.DateTimeField()

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(verb__in=["withdraw", "redeliver"]), name="intervention_verb_known")]

    def __str__(self) -> str:
        return f"{self.verb} by {self.who}"


class SubagentTask(models.Model):
    """A piece of work that one agent gave to a sub-agent made for it. Its status is moved by results.py alone."""

    class Status(models.TextChoices):
        QUEUED = "queued"
        RUNNING = "running"
        COMPLETED = "completed"
        FAILED = "failed"
        CANCELLED = "cancelled"
        TIMED_OUT = "timed_out"

    task_id = models.CharField(max_length=64, unique=True)
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="subagent_tasks", db_index=False)
    parent = models.ForeignKey(Session, on_delete=models.PROTECT, related_name="tasks_given", db_index=False)
    child = models.OneToOneField(Session, on_delete=models.PROTECT, related_name="task")
    description = models.TextField()
    options = models.JSONField(default=dict, help_text="What the call asked for beside the description.")
    status = models.CharField(max_length=16, choices=Status.choices, default=Status.QUEUED)
    result = models.TextField(blank=True, help_text="What the sub-agent answered, whole.")
    error = models.TextField(blank=True, help_text="Why it did not complete.")
    stop_note = models.CharField(max_length=400, blank=True, help_text="Who asked it to stop, and how; told when it ends.")
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    objects = SubagentTaskQuerySet.as_manager()

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(status__in=["queued", "running"], ended_at=None)
                | Q(status__in=["completed", "failed", "cancelled", "timed_out"], ended_at__isnull=False),
                name="subagent_task_ended_with_status",
            ),
        ]
        indexes = [
            # Readers: GET /api/subagents, of a project and of a parent, newest first; the parent's page in the console.
            models.Index(fields=["project", "-id"], name="subagent_task_newest"),
            models.Index(fields=["parent", "-id"], name="subagent_task_given"),
            # Reader: SubagentTaskQuerySet.ended_before, retention.
            models.Index(fields=["ended_at"], condition=Q(ended_at__isnull=False), name="subagent_task_ended"),
        ]

    def __str__(self) -> str:
        return self.task_id


class DedupeKey(models.Model):
    """What purging leaves of a message: its id stays used, and the same message sent again gets the same answer."""

    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="dedupe_keys", db_index=False)
    message_id = models.CharField(max_length=128)
    sender = models.CharField(max_length=128, blank=True, help_text="The session that sent it; empty where that was none.")
    target = models.CharField(max_length=LANE_KEY_LENGTH)
    transport = models.CharField(max_length=16, choices=Message.Transport.choices)
    caused_by = models.CharField(max_length=128, blank=True)
    digest = models.CharField(max_length=64)
    status = models.CharField(max_length=16, choices=[(status.value, status.label) for status in (Message.Status.DELIVERED, Message.Status.FAILED)])
    settled_at = models.DateTimeField()

    objects = DedupeKeyQuerySet.as_manager()

    class Meta:
        constraints = [
            # Also the index of transitions.accept, for every id that a sender chose.
            models.UniqueConstraint(fields=["project", "message_id"], name="dedupe_key_once_per_project"),
            models.CheckConstraint(condition=Q(status__in=["delivered", "failed"]), name="dedupe_key_status_settled"),
            models.CheckConstraint(condition=Q(transport__in=["local", "suzent_peer"]), name="dedupe_key_transport_known"),
        ]
        indexes = [
            # Reader: DedupeKeyQuerySet.settled_before, retention.
            models.Index(fields=["settled_at"], name="dedupe_key_settled"),
        ]

    def __str__(self) -> str:
        return self.message_id


class Wake(models.Model):
    """A queued task by name (``dispatch``, ``answer``): at most one of each waits in the broker at a time."""

    name = models.CharField(primary_key=True, max_length=32)
    queued_at = models.DateTimeField(null=True)
    answered_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return self.name
