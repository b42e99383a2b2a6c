"""Who can be reached: projects, sessions, transcripts, markers, turns, lanes, the processes that hold them, tokens."""

from __future__ import annotations

from django.core.validators import RegexValidator
from django.db import models
from django.db.models import F, Q

from sessions_app.cron.models import CronJob, CronRun
from sessions_app.querysets import (
    REMOTE_PREFIX,
    LaneQuerySet,
    MarkerQuerySet,
    SessionQuerySet,
    TokenQuerySet,
    TurnQuerySet,
)
from sessions_app.social.models import PairingRequest, SocialChannel, SocialIdentity, SocialRefusal, SocialReply

__all__ = [
    "AGENT_ID", "LANE_KEY_LENGTH", "ApiToken", "CronJob", "CronRun", "DeliveryMarker", "Holder", "Lane", "PairingRequest",
    "Project", "Session", "SocialChannel", "SocialIdentity", "SocialRefusal", "SocialReply", "TranscriptEntry", "Turn",
]  # fmt: skip

AGENT_ID = r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}"
LANE_KEY_LENGTH = 140



def lane_key_of(address: str) -> str:
    """The lane in which whatever is for this address waits and runs."""
    return address if address.startswith(REMOTE_PREFIX) else f"agent:{address}"


def default_runtimes() -> list[str]:
    return ["echo", "scripted"]


class Project(models.Model):
    """The authorization boundary for agents."""

    slug = models.SlugField(primary_key=True, max_length=64, help_text="Short name in URLs and commands; it cannot change.")
    name = models.CharField(max_length=200, blank=True)
    runtimes = models.JSONField(default=default_runtimes, help_text="The runtimes that agents of this project may choose.")
    roots = models.JSONField(default=list, blank=True, help_text="Directories that an agent's working directory may lie in.")
    archived_at = models.DateTimeField(null=True, blank=True, editable=False)

    def __str__(self) -> str:
        return self.slug


class Session(models.Model):
    """One addressable conversation of an agent. The id is its address and is never reused."""

    class Kind(models.TextChoices):
        INTERACTIVE = "interactive"
        SUBAGENT = "subagent"
        CRON = "cron"
        SOCIAL = "social"
        REMOTE = "remote"
        DREAM = "dream"
        WAKEUP = "wakeup"

    INTERNAL_KINDS = (Kind.DREAM, Kind.WAKEUP)

    agent_id = models.CharField(primary_key=True, max_length=128, validators=[RegexValidator(rf"\A{AGENT_ID}\Z")])
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="sessions", db_index=False)
    title = models.CharField(max_length=200, blank=True)
    kind = models.CharField(max_length=16, choices=Kind.choices, default=Kind.INTERACTIVE)
    parent = models.ForeignKey("self", null=True, blank=True, on_delete=models.PROTECT, related_name="children")
    runtime = models.CharField(max_length=64, default="echo")
    config = models.JSONField(default=dict, blank=True)
    reply_route = models.JSONField(null=True, blank=True)
    last_seq = models.BigIntegerField(default=0)
    archived_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()

    objects = SessionQuerySet.as_manager()

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(kind__in=[
                "interactive", "subagent", "cron", "social", "remote", "dream", "wakeup",
            ]), name="session_kind_known"),
            models.CheckConstraint(condition=Q(last_seq__gte=0), name="session_last_seq_not_negative"),
        ]
        indexes = [
            # Reader: SessionQuerySet.recent, behind agent_list and the sessions page.
            models.Index(fields=["project", "-updated_at", "agent_id"], name="session_recent"),
        ]

    def __str__(self) -> str:
        return self.agent_id

    @property
    def lane_key(self) -> str:
        return lane_key_of(self.agent_id)


class Turn(models.Model):
    """One run of a session's agent, made in the transaction that takes the lane (or its next message)."""

    class Origin(models.TextChoices):
        MESSAGE = "message"
        INTERACTIVE = "interactive"
        CRON = "cron"
        SOCIAL = "social"
        PEER = "peer"

    class State(models.TextChoices):
        RUNNING = "running"
        COMMITTED = "committed"
        FAILED = "failed"
        STOPPED = "stopped"

    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="turns", db_index=False)
    origin = models.CharField(max_length=16, choices=Origin.choices)
    message_ids = models.JSONField(default=list)
    hops = models.IntegerField(default=0, help_text="How long the chain is of what it sends, where no message says so.")
    state = models.CharField(max_length=16, choices=State.choices, default=State.RUNNING)
    epoch = models.BigIntegerField()
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)
    stop_requested_at = models.DateTimeField(null=True)
    error = models.TextField(blank=True)
    usage = models.JSONField(default=dict)

    objects = TurnQuerySet.as_manager()

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(origin__in=["message", "interactive", "cron", "social", "peer"]), name="turn_origin_known"),
            models.CheckConstraint(
                condition=Q(state="running", finished_at=None) | Q(state__in=["committed", "failed", "stopped"], finished_at__isnull=False),
                name="turn_finished_unless_running",
            ),
            # One turn of a session at a time, whatever goes wrong above.
            models.UniqueConstraint(fields=["session"], condition=Q(finished_at=None), name="turn_one_running_per_session"),
        ]
        indexes = [
            # Reader: admin/sessions.py, conversation_of: the newest turns of a session.
            models.Index(fields=["session", "-id"], name="turn_newest"),
            # Reader: TurnQuerySet.finished_before, retention.
            models.Index(fields=["finished_at"], condition=Q(finished_at__isnull=False), name="turn_finished"),
        ]

    def __str__(self) -> str:
        return f"turn {self.pk} of {self.session_id}"


class TranscriptEntry(models.Model):
    """One line of a conversation. Appended, never rewritten."""

    class Role(models.TextChoices):
        USER = "user"
        ASSISTANT = "assistant"
        SYSTEM = "system"
        TOOL = "tool"

    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="entries", db_index=False)
    seq = models.BigIntegerField()
    role = models.CharField(max_length=16, choices=Role.choices)
    text = models.TextField()
    parts = models.JSONField(default=list)
    visible = models.BooleanField(default=True)
    turn = models.ForeignKey(Turn, null=True, on_delete=models.SET_NULL, related_name="entries")
    message_id = models.CharField(max_length=128, blank=True)
    created_at = models.DateTimeField()

    class Meta:
        verbose_name_plural = "transcript entries"
        constraints = [
            # Also the index of every reader: the newest entries of a session, and those before a position.
            models.UniqueConstraint(fields=["session", "seq"], name="transcript_position"),
            models.CheckConstraint(condition=Q(role__in=["user", "assistant", "system", "tool"]), name="transcript_role_known"),
        ]
        indexes = [
            # Reader: transcripts.read, which counts what it leaves out.
            models.Index(fields=["session", "seq"], condition=Q(visible=False), name="transcript_hidden"),
        ]

    def __str__(self) -> str:
        return f"{self.session_id} #{self.seq}"


class DeliveryMarker(models.Model):
    """The hidden marker of a transcript: this message (or platform event) has had its committed turn.

    A row, never text: no text can forge it, and it outlives trimming the transcript and purging the message.
    """

    class Source(models.TextChoices):
        MESSAGE = "message"
        EVENT = "event"

    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="markers", db_index=False)
    source = models.CharField(max_length=16, choices=Source.choices)
    key = models.CharField(max_length=200)
    digest = models.CharField(max_length=64)
    seq = models.BigIntegerField()
    created_at = models.DateTimeField()

    objects = MarkerQuerySet.as_manager()

    class Meta:
        constraints = [
            # Reader: turns.marked, once for every claim.
            models.UniqueConstraint(fields=["session", "source", "key"], name="delivery_marker_once"),
            models.CheckConstraint(condition=Q(source__in=["message", "event"]), name="delivery_marker_source_known"),
        ]
        indexes = [
            # Reader: MarkerQuerySet.left_before, retention.
            models.Index(fields=["created_at"], name="delivery_marker_left"),
        ]

    def __str__(self) -> str:
        return f"{self.source} {self.key}"


class Lane(models.Model):
    """The right to run something for one address: the one lease of the system. Written by lanes.py alone."""

    key = models.CharField(primary_key=True, max_length=LANE_KEY_LENGTH)
    due_at = models.DateTimeField(null=True)
    lease_owner = models.CharField(max_length=128, null=True)  # noqa: DJ001  # NULL, not "", means free
    lease_until = models.DateTimeField(null=True)
    epoch = models.BigIntegerField(default=0)
    wanted_until = models.DateTimeField(null=True)
    paused_at = models.DateTimeField(null=True)
    failures = models.IntegerField(default=0)

    objects = LaneQuerySet.as_manager()

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(lease_owner=None, lease_until=None) | Q(lease_owner__isnull=False, lease_until__isnull=False),
                name="lane_lease_whole",
            ),
            models.CheckConstraint(condition=Q(lease_until=None) | Q(due_at__isnull=False, due_at=F("lease_until")), name="lane_held_is_due_at_its_end"),
        ]
        indexes = [
            # Reader: LaneQuerySet.due, the claim and the watchdog. SQLite can use this condition, not one on a value.
            models.Index(fields=["due_at"], condition=Q(due_at__isnull=False), name="lane_due"),
            # Reader: lanes.renew and lanes.end_leases.
            models.Index(fields=["lease_owner"], condition=Q(lease_owner__isnull=False), name="lane_held"),
        ]

    def __str__(self) -> str:
        return self.key


class Holder(models.Model):
    """A process that holds lanes, and its heartbeat."""

    class Kind(models.TextChoices):
        SHIFT = "shift"
        WEB = "web"
        SOCIAL = "social"

    owner = models.CharField(primary_key=True, max_length=128)
    kind = models.CharField(max_length=16, choices=Kind.choices)
    host = models.CharField(max_length=200)
    boot_id = models.CharField(max_length=64)
    pid = models.IntegerField()
    process_started = models.BigIntegerField(help_text="Start of the process in clock ticks since boot: a pid alone can be reused.")
    free = models.IntegerField(default=0, help_text="How many more turns it would take now.")
    beat_at = models.DateTimeField(help_text="The last pass of its claim loop.")
    renewed_uptime = models.FloatField(help_text="Seconds since boot at its last renewal; no clock step moves it.")

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(kind__in=["shift", "web", "social"]), name="holder_kind_known")]

    def __str__(self) -> str:
        return self.owner


class ApiToken(models.Model):
    """A bearer token, kept as a digest only. Without a session it is a project token."""

    digest = models.CharField(max_length=64, unique=True, editable=False)
    hint = models.CharField(max_length=16)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="tokens")
    session = models.ForeignKey(Session, null=True, blank=True, on_delete=models.CASCADE, related_name="tokens")
    created_at = models.DateTimeField()
    last_used_at = models.DateTimeField(null=True, blank=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    objects = TokenQuerySet.as_manager()

    def __str__(self) -> str:
        return self.hint
