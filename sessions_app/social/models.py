"""Channels to other platforms, who may write there, who asks to, what was refused, and the replies that are to be sent."""

from __future__ import annotations

from typing import Any

from django.core.validators import RegexValidator
from django.db import models
from django.db.models import Q

from sessions_app.social.querysets import SocialIdentityQuerySet, SocialReplyQuerySet

CHANNEL_NAME = r"[a-z0-9][a-z0-9_]{0,31}"  # no hyphen: social-<channel>-<target> is to be read in one way only
SENDER_LENGTH = 128
NEUTRAL = "Hello. I do not know you yet. If you were told to expect this, pass on this code:"


class SocialChannel(models.Model):
    """One account at one platform. Its name is the platform's name in session ids and in the list of who may write."""

    class Driver(models.TextChoices):
        TELEGRAM = "telegram"
        WEBHOOK = "webhook"

    name = models.CharField(
        primary_key=True, max_length=32, validators=[RegexValidator(rf"\A{CHANNEL_NAME}\Z", "Small letters, digits and _, at most 32.")],
        help_text="In its sessions' ids and its URL; it cannot change. Small letters, digits and _.",
    )  # fmt: skip
    driver = models.CharField(max_length=16, choices=Driver.choices, help_text="Telegram is polled; a webhook is called by the platform.")
    project = models.ForeignKey("sessions_app.Project", on_delete=models.PROTECT, related_name="channels", help_text="Its sessions belong to this project for ever.")
    runtime = models.CharField(max_length=64, blank=True, help_text="What answers in its new sessions; empty: the project's first.")
    active = models.BooleanField(default=True, help_text="Off: nothing is taken in and nothing is sent.")
    secret_sealed = models.TextField(blank=True, editable=False)
    secret_variable = models.CharField(
        max_length=64, blank=True, validators=[RegexValidator(r"\ASUZENT_SOCIAL_[A-Z0-9_]{1,40}\Z", "SUZENT_SOCIAL_ and capital letters, digits or _.")],
        help_text="Read the secret from this environment variable, SUZENT_SOCIAL_…, instead of the database.",
    )  # fmt: skip
    url = models.CharField(
        max_length=500, blank=True,
        help_text="Telegram: the Bot API, empty for Telegram's own. Webhook: where replies are posted; empty: they are kept in the session only.",
    )  # fmt: skip
    own_id = models.CharField(
        max_length=SENDER_LENGTH, blank=True, help_text="Our own sender id there: what it sends is not answered. Telegram's is found in the token."
    )
    pairing = models.BooleanField(
        default=False, help_text="Strangers get a code, once in ten minutes, by which you can let them in. Off: whom codes let in stays out too."
    )
    pairing_text = models.CharField(max_length=500, default=NEUTRAL, help_text="What a stranger is told; the code follows. Say nothing that is not for everybody.")
    trouble = models.CharField(max_length=500, blank=True, editable=False)
    created_at = models.DateTimeField(editable=False)

    class Meta:
        verbose_name = "channel"
        constraints = [models.CheckConstraint(condition=Q(driver__in=["telegram", "webhook"]), name="social_driver_known")]

    def __str__(self) -> str:
        return self.name


class SocialIdentity(models.Model):
    """A sender whom the operator has judged. The id alone counts; a name proves nothing and is only shown."""

    class Verdict(models.TextChoices):
        ALLOWED = "allowed"
        DENIED = "denied"

    class Source(models.TextChoices):
        LIST = "list"
        PAIRING = "pairing"

    channel = models.ForeignKey(SocialChannel, on_delete=models.CASCADE, related_name="identities")
    sender_id = models.CharField(max_length=SENDER_LENGTH, help_text="Exactly as the platform writes it, e.g. 123456789. Not the user name.")
    verdict = models.CharField(max_length=16, choices=Verdict.choices, default=Verdict.ALLOWED, help_text="Denied: never asked to pair either.")
    source = models.CharField(max_length=16, choices=Source.choices, default=Source.LIST, editable=False)
    label = models.CharField(max_length=200, blank=True, help_text="For you to remember who it is.")
    created_at = models.DateTimeField(editable=False)

    objects = SocialIdentityQuerySet.as_manager()

    class Meta:
        verbose_name = "social identity"
        verbose_name_plural = "social identities"
        constraints = [
            # Reader: identities.judge, for every event and every reply.
            models.UniqueConstraint(fields=["channel", "sender_id"], name="social_identity_once"),
            models.CheckConstraint(condition=Q(verdict__in=["allowed", "denied"]), name="social_verdict_known"),
            models.CheckConstraint(condition=Q(source__in=["list", "pairing"]), name="social_source_known"),
        ]

    def __str__(self) -> str:
        return f"{self.channel_id} {self.sender_id}"


class PairingRequest(models.Model):
    """A stranger who was given a code. Only its digest is kept: the operator has it from the person, or has it not."""

    channel = models.ForeignKey(SocialChannel, on_delete=models.CASCADE, related_name="pairing_requests")
    sender_id = models.CharField(max_length=SENDER_LENGTH)
    sender_name = models.CharField(max_length=200, blank=True)
    digest = models.CharField(max_length=64)
    wrong_tries = models.PositiveSmallIntegerField(default=0)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["channel", "sender_id"], name="pairing_request_once")]

    def __str__(self) -> str:
        return f"{self.channel_id} {self.sender_id}"


class SocialRefusal(models.Model):
    """How many events of a channel were refused, and why: one row a reason."""

    channel = models.ForeignKey(SocialChannel, on_delete=models.CASCADE, related_name="refusals")
    reason = models.CharField(max_length=32)
    count = models.BigIntegerField(default=0)
    last_at = models.DateTimeField()

    class Meta:
        verbose_name = "refused events"
        verbose_name_plural = "refused events"
        constraints = [models.UniqueConstraint(fields=["channel", "reason"], name="social_refusal_once")]

    def __str__(self) -> str:
        return f"{self.channel_id} {self.reason}: {self.count}"


class SocialReply(models.Model):
    """A text that is to be sent to somebody: written in the commit that it answers for, sent by ``manage.py social``."""

    class Kind(models.TextChoices):
        REPLY = "reply"
        PAIRING = "pairing"

    class Status(models.TextChoices):
        PENDING = "pending"
        SENDING = "sending"
        SENT = "sent"
        UNCERTAIN = "uncertain"
        FAILED = "failed"
        WITHHELD = "withheld"

    OPEN = (Status.PENDING, Status.SENDING)

    channel = models.ForeignKey(SocialChannel, on_delete=models.CASCADE, related_name="replies")
    session = models.ForeignKey("sessions_app.Session", null=True, on_delete=models.CASCADE, related_name="replies")
    kind = models.CharField(max_length=16, choices=Kind.choices, default=Kind.REPLY)
    sender_id = models.CharField(max_length=SENDER_LENGTH, help_text="Whom it answers; removed from the list, they get nothing more.")
    route: Any = models.JSONField()
    text = models.TextField()
    status = models.CharField(max_length=16, choices=Status.choices, default=Status.PENDING)
    parts_sent = models.PositiveIntegerField(default=0, help_text="Parts that the platform has confirmed.")
    repeated = models.BooleanField(default=False, help_text="The next part may have arrived already and is marked as a repeat.")
    tries = models.PositiveSmallIntegerField(default=0, help_text="Times that the platform has refused the next part.")
    next_at = models.DateTimeField(help_text="Not before this moment.")
    claimed_by = models.CharField(max_length=128, blank=True)
    claimed_until = models.DateTimeField(null=True)
    created_at = models.DateTimeField()
    settled_at = models.DateTimeField(null=True)
    last_error = models.TextField(blank=True)

    objects = SocialReplyQuerySet.as_manager()

    class Meta:
        verbose_name = "reply"
        verbose_name_plural = "replies"
        constraints = [
            models.CheckConstraint(condition=Q(kind__in=["reply", "pairing"]), name="social_reply_kind_known"),
            models.CheckConstraint(
                condition=Q(status__in=["pending", "sending"], settled_at=None)
                | Q(status__in=["sent", "uncertain", "failed", "withheld"], settled_at__isnull=False),
                name="social_reply_settled_unless_open",
            ),
            models.CheckConstraint(
                condition=Q(status="sending", claimed_until__isnull=False) | (~Q(status="sending") & Q(claimed_until=None)),
                name="social_reply_claimed_while_sending",
            ),
        ]
        indexes = [
            # Reader: SocialReplyQuerySet.due, the senders.
            models.Index(fields=["next_at"], condition=Q(settled_at=None), name="social_reply_due"),
            # Reader: SocialReplyQuerySet.due, what stands before it in its session.
            models.Index(fields=["session", "id"], condition=Q(settled_at=None), name="social_reply_order"),
            # Reader: SocialReplyQuerySet.settled_before, retention.
            models.Index(fields=["settled_at"], condition=Q(settled_at__isnull=False), name="social_reply_settled"),
        ]

    def __str__(self) -> str:
        return f"reply {self.pk} on {self.channel_id}"
