"""Who else speaks to us: grants (they may drive us), peers (we may drive them), and requests for a grant."""

from __future__ import annotations

import secrets

from django.core.validators import RegexValidator
from django.db import models
from django.db.models import Q

from peers_app.querysets import GrantQuerySet, PeerQuerySet, RequestQuerySet
from sessions_app.models import Project
from suzent_site.sealed import seal, unseal

DEVICE_ID_LENGTH = 12  # lower-case hexadecimal digits
IDENTITY_LENGTH = 32  # lower-case hexadecimal digits: one installation, whatever its address
URL_LENGTH = 300
NAME_LENGTH = 100


def new_device_id() -> str:
    return secrets.token_hex(DEVICE_ID_LENGTH // 2)


def _device_id() -> models.CharField[str, str]:
    return models.CharField(
        primary_key=True, max_length=DEVICE_ID_LENGTH, default=new_device_id, editable=False,
        validators=[RegexValidator(r"\A[0-9a-f]{12}\Z")],
    )  # fmt: skip


class Installation(models.Model):
    """This installation, as others know it: one row, made when it is first asked for."""

    identity = models.CharField(max_length=IDENTITY_LENGTH)
    checked_at = models.DateTimeField(null=True, help_text="The last round of checks that a hint of a changed grant began.")

    def __str__(self) -> str:
        return self.identity


class DeviceGrant(models.Model):
    """A device that may drive us: write to, read and stop the sessions of its own name, and nothing else."""

    class Scope(models.TextChoices):
        AGENT = "agent"
        READ = "read"

    class State(models.TextChoices):
        ACTIVE = "active"
        PAUSED = "paused"
        REVOKED = "revoked"

    device_id = _device_id()
    display_name = models.CharField(max_length=NAME_LENGTH)
    digest = models.CharField(max_length=64, null=True, unique=True, editable=False)  # noqa: DJ001  # NULL: nobody has fetched its token yet
    hint = models.CharField(max_length=16, blank=True, editable=False)
    scope = models.CharField(max_length=16, choices=Scope.choices, default=Scope.AGENT)
    state = models.CharField(max_length=16, choices=State.choices, default=State.ACTIVE)
    node_identity = models.CharField(max_length=IDENTITY_LENGTH, blank=True, help_text="The installation it claims to be; unproven.")
    callback_url = models.CharField(max_length=URL_LENGTH, blank=True, help_text="Where it says it can be reached.")
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="grants")
    runtime = models.CharField(max_length=64, default="echo", help_text="What runs its sessions.")
    tools = models.JSONField(default=list, blank=True, help_text="Our tools that its sessions may use; none unless you tick them.")
    replaces = models.ForeignKey("self", null=True, blank=True, on_delete=models.SET_NULL, related_name="replaced_by")
    lineage = models.CharField(
        max_length=DEVICE_ID_LENGTH, editable=False, help_text="The first of the grants that replaced each other: message ids repeat within it.",
    )  # fmt: skip
    created_at = models.DateTimeField()
    created_by = models.CharField(max_length=200, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True, help_text="When it was revoked.")

    objects = GrantQuerySet.as_manager()

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(scope__in=["agent", "read"]), name="grant_scope_known"),
            models.CheckConstraint(
                condition=Q(state__in=["active", "paused"], ended_at=None) | Q(state="revoked", ended_at__isnull=False),
                name="grant_ended_if_revoked",
            ),
            models.CheckConstraint(condition=~Q(lineage=""), name="grant_has_lineage"),
        ]

    def __str__(self) -> str:
        return self.device_id

    @property
    def agent_id(self) -> str:
        """Its default session; the others are ``<this>:<name>``."""
        return f"suzent:{self.device_id}"


class Peer(models.Model):
    """A device that we may drive: only the agents of its project see it, as ``peer:<peer_id>``."""

    class State(models.TextChoices):
        ASKING = "asking"
        READY = "ready"
        OFFLINE = "offline"
        PAUSED = "paused"
        REVOKED = "revoked"
        OFF = "off"

    peer_id = _device_id()
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="peers")
    name = models.CharField(max_length=NAME_LENGTH)
    base_url = models.CharField(max_length=URL_LENGTH, blank=True, help_text="http(s)://host:port; empty until an offered address is approved.")
    sealed_token = models.TextField(blank=True, editable=False)
    hint = models.CharField(max_length=16, blank=True, editable=False)
    state = models.CharField(max_length=16, choices=State.choices, default=State.ASKING)
    request_id = models.CharField(max_length=64, blank=True, editable=False, help_text="Of our request there, while we ask.")
    expires_at = models.DateTimeField(null=True, blank=True, help_text="When our request there expires, while we ask.")
    node_identity = models.CharField(max_length=IDENTITY_LENGTH, blank=True)
    verified = models.BooleanField(default=False, help_text="It has proved that it holds our grant; it is never spoken to unproved again.")
    reverse_grant = models.OneToOneField(
        DeviceGrant, null=True, blank=True, on_delete=models.SET_NULL, related_name="peer", help_text="The grant by which it drives us.",
    )  # fmt: skip
    offered_url = models.CharField(max_length=URL_LENGTH, blank=True, help_text="An address that it offered and nobody has approved yet.")
    offered_token = models.TextField(blank=True, editable=False)
    created_at = models.DateTimeField()
    last_contact_at = models.DateTimeField(null=True, blank=True, help_text="Its last answer, or its last authenticated call.")
    last_error = models.TextField(blank=True)

    objects = PeerQuerySet.as_manager()

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(state__in=["asking", "ready", "offline", "paused", "revoked", "off"]), name="peer_state_known"
            ),
            models.CheckConstraint(
                condition=Q(state="asking", expires_at__isnull=False) & ~Q(request_id="") | ~Q(state="asking") & Q(request_id="", expires_at=None),
                name="peer_request_while_asking",
            ),
            models.CheckConstraint(
                condition=~Q(state__in=["ready", "offline", "paused"]) | ~Q(sealed_token="") & ~Q(base_url=""),
                name="peer_in_use_has_token",
            ),
            # One peer for one address; what is off has given its address up.
            models.UniqueConstraint(
                fields=["project", "base_url"], condition=~Q(state="off") & ~Q(base_url=""), name="peer_once_per_address"
            ),
        ]

    def __str__(self) -> str:
        return self.agent_id

    @property
    def agent_id(self) -> str:
        return f"peer:{self.peer_id}"

    @property
    def lane_key(self) -> str:
        """Made by pairing.py with the row; paused while the state is neither ready nor offline."""
        return f"peer:{self.peer_id}"

    @property
    def token(self) -> str:
        """Raises CannotUnseal."""
        return unseal(self.sealed_token)

    @token.setter
    def token(self, secret: str) -> None:
        self.sealed_token = seal(secret)


class GrantRequest(models.Model):
    """A stranger asks for a grant. Its id is unguessable, and is all that the first poll after approval needs."""

    class State(models.TextChoices):
        PENDING = "pending"
        APPROVED = "approved"
        DENIED = "denied"

    request_id = models.CharField(primary_key=True, max_length=64, editable=False)
    controller_name = models.CharField(max_length=NAME_LENGTH)
    controller_addr = models.CharField(max_length=URL_LENGTH, blank=True)
    controller_identity = models.CharField(max_length=IDENTITY_LENGTH, blank=True)
    came_from = models.CharField(max_length=64, blank=True, help_text="The address that the request came from.")
    state = models.CharField(max_length=16, choices=State.choices, default=State.PENDING)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    answered_at = models.DateTimeField(null=True, blank=True)
    answered_by = models.CharField(max_length=200, blank=True)
    grant = models.OneToOneField(DeviceGrant, null=True, blank=True, on_delete=models.CASCADE, related_name="request")
    served_at = models.DateTimeField(null=True, blank=True, help_text="When the token was made and handed out, once.")

    objects = RequestQuerySet.as_manager()

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(state="pending", grant=None, answered_at=None)
                | Q(state="denied", grant=None, answered_at__isnull=False)
                | Q(state="approved", grant__isnull=False, answered_at__isnull=False),
                name="request_answered_whole",
            ),
            models.CheckConstraint(condition=Q(served_at=None) | Q(state="approved"), name="request_served_if_approved"),
        ]
        indexes = [
            # Reader: RequestQuerySet.since, the cap on requests.
            models.Index(fields=["created_at"], name="request_newest"),
        ]

    def __str__(self) -> str:
        return self.request_id
