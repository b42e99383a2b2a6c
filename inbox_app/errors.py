"""What a message can be refused for, and what an operator may be told."""

from __future__ import annotations

from suzent_site.errors import Conflict, SuzentError


class MessageIdConflict(Conflict):
    """This message_id has been used for another message."""

    code = "message_id_conflict"


class TargetGone(SuzentError):
    """The target is archived; nothing was sent."""

    code = "target_gone"
    status = 410


class MailboxFull(SuzentError):
    """Too many messages wait for this target; nothing was sent. Try again later."""

    code = "mailbox_full"
    status = 429


class RateLimited(SuzentError):
    """This sender sends too fast; nothing was sent. Try again later."""

    code = "rate_limited"
    status = 429


class HopLimit(SuzentError):
    """This message would make the chain of agents that wake each other too long; nothing was sent."""

    code = "hop_limit"
    status = 422


class NotPending(Conflict):
    """Only a message that has not started can be withdrawn."""

    code = "not_pending"


class MaybeDelivered(Conflict):
    """The other machine may have this message already: a try ended without a definite answer."""

    code = "maybe_delivered"


class NotFailed(Conflict):
    """Only a failed message can be retried."""

    code = "not_failed"


class TaskEnded(Conflict):
    """The task of this message has ended; start a new one."""

    code = "task_ended"
