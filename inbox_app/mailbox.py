"""Which messages a caller may see, one by one and in pages."""

from __future__ import annotations

import re

from django.db.models import Q

from inbox_app.models import MESSAGE_ID, DedupeKey, Message
from inbox_app.querysets import MessageQuerySet
from sessions_app.authentication import Caller
from sessions_app.models import Project
from sessions_app.pages import seal, unseal
from sessions_app.querysets import REMOTE_PREFIX
from suzent_site.errors import Conflict, Invalid, NotFound


class Ambiguous(Conflict):
    """More than one project has a message of this id: name one by project."""

    code = "ambiguous"


def visible_to(caller: Caller, *, project: str | None = None) -> MessageQuerySet:
    """Sent or received by the caller's session; of the whole project for its token; everything for operators."""
    messages = Message.objects.filter(project__in=_projects(caller, project=project))
    if caller.session is None:
        return messages
    return messages.of(caller.session)


def _projects(caller: Caller, *, project: str | None) -> list[str]:
    """Spelled out, because the index by message id begins with the project. Raises NotFound for a foreign one."""
    within_reach = Project.objects.all() if caller.project_id is None else Project.objects.filter(pk=caller.project_id)
    slugs = list(within_reach.filter(**{} if project is None else {"pk": project}).values_list("pk", flat=True))
    if project is not None and not slugs:
        raise NotFound
    return slugs


def message_named(caller: Caller, message_id: str, *, project: str | None = None) -> Message:
    """Raises NotFound, in the same words for foreign and missing ids, and Ambiguous for operators."""
    if not re.fullmatch(MESSAGE_ID, message_id):
        raise NotFound
    found = list(visible_to(caller, project=project).filter(message_id=message_id)[:2])
    if not found:
        raise NotFound
    if len(found) > 1:
        raise Ambiguous
    return found[0]


def has_seen(caller: Caller, message_id: str, *, project: str) -> bool:
    """Whether the caller may refer to this message: it can see it, or could until it was purged."""
    if visible_to(caller, project=project).filter(message_id=message_id).exists():
        return True
    purged = DedupeKey.objects.filter(project__in=_projects(caller, project=project), message_id=message_id)
    if caller.session is not None:
        purged = purged.filter(Q(sender=caller.session.agent_id) | Q(target=caller.session.agent_id))
    return purged.exists()


def page_of_messages(
    caller: Caller,
    *,
    limit: int,
    direction: str | None = None,
    agent_id: str | None = None,
    status: str | None = None,
    project: str | None = None,
    cursor: str = "",
) -> tuple[list[Message], str | None]:
    """The newest ``limit`` messages from the cursor on, and the cursor of the next page or None."""
    before = unseal("messages", cursor)[0] if cursor else None
    found: dict[int, Message] = {}
    for side in _sides(caller, direction=direction, agent_id=agent_id):
        messages = Message.objects.filter(side, project__in=_projects(caller, project=project))
        if status is not None:
            messages = messages.in_status(status)
        if before is not None:
            messages = messages.filter(pk__lt=before)
        found |= {message.pk: message for message in messages.order_by("-pk")[: limit + 1]}
    newest = [found[pk] for pk in sorted(found, reverse=True)]
    page = newest[:limit]
    return page, seal("messages", page[-1].pk) if len(newest) > limit else None


def _sides(caller: Caller, *, direction: str | None, agent_id: str | None) -> list[Q]:
    """One filter for each index that can answer: what was sent and what was received are two."""
    own = caller.session.agent_id if caller.session else None
    other = agent_id
    if own is None:
        own, other = agent_id, None
    if own is None:
        if direction is not None:
            raise Invalid("direction", "needs agent_id: sent or received by whom?")
        return [Q()]
    sent = Q(sender=own) if other is None else Q(sender=own, target=other)
    to_own = Q(session=None, target=own) if own.startswith(REMOTE_PREFIX) else Q(session=own)
    received = to_own if other is None else to_own & Q(sender=other)
    return [side for name, side in (("sent", sent), ("received", received)) if direction in (None, name)]
