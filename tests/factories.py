"""Rows as the product makes them: through actions and transitions, never by setting a status.

``MessageFactory()`` is a pending message between two sessions of one project; ``claimed``, ``delivered`` and
``failed`` take one as far as the engine would.
"""

from datetime import datetime

import factory

from inbox_app import transitions
from inbox_app.deliveries import Acknowledgement, Draft, Setback, Work
from inbox_app.models import Message
from inbox_app.provenance import header
from sessions_app import actions, lanes, turns
from sessions_app.clock import database_now
from sessions_app.cron import actions as cron_actions
from sessions_app.models import ApiToken, CronJob, Lane, Project, Session, TranscriptEntry
from sessions_app.turns import Commit, Entry, Mark

SHIFT = "shift:test"


class ProjectFactory(factory.django.DjangoModelFactory):
    class Meta:
        model = Project

    slug = factory.Sequence(lambda n: f"project-{n}")

    @classmethod
    def _create(cls, model_class, slug, **kwargs):
        return actions.create_project(slug, **kwargs)


class SessionFactory(factory.django.DjangoModelFactory):
    class Meta:
        model = Session

    project = factory.SubFactory(ProjectFactory)
    agent_id = factory.Sequence(lambda n: f"agent-{n}")
    now = factory.LazyFunction(database_now)

    @classmethod
    def _create(cls, model_class, project, **kwargs):
        return actions.open_session(project, **kwargs)


class CronJobFactory(factory.django.DjangoModelFactory):
    """Everything that cron's create_job takes. ``now``: when it was made."""

    class Meta:
        model = CronJob

    project = factory.SubFactory(ProjectFactory)
    name = factory.Sequence(lambda n: f"job {n}")
    expression = "0 6 * * *"
    prompt = "Good morning."
    now = factory.LazyFunction(database_now)

    @classmethod
    def _create(cls, model_class, project, **kwargs):
        return cron_actions.create_job(project, **kwargs)


class TokenFactory(factory.Factory):
    """A Minted: ``.token`` and its ``.secret``. Without a session it is a project token."""

    class Meta:
        model = ApiToken

    session = factory.SubFactory(SessionFactory)
    project = factory.LazyAttribute(lambda made: made.session.project)
    now = factory.LazyFunction(database_now)

    @classmethod
    def _create(cls, model_class, project, **kwargs):
        return actions.mint_token(project, **kwargs)


class MessageFactory(factory.django.DjangoModelFactory):
    """Everything that Draft takes; ``sender=None`` with a ``sender_label`` for a message of a person."""

    class Meta:
        model = Message

    sender = factory.SubFactory(SessionFactory)
    target = factory.SubFactory(SessionFactory, project=factory.LazyAttribute(lambda made: _project_of(made.factory_parent.sender)))
    message_id = factory.Sequence(lambda n: f"message-{n}")
    content = factory.Sequence(lambda n: f"Please look at number {n}.")
    kind = Message.Kind.AGENT_MESSAGE
    now = factory.LazyFunction(database_now)

    @classmethod
    def _create(cls, model_class, sender, target, now, **kwargs):
        draft = Draft(project_id=target.project_id, target=target, sender_id=sender and sender.pk, **kwargs)
        return transitions.accept(draft, now=now).message


def _project_of(sender: Session | None) -> Project:
    return sender.project if sender else ProjectFactory()


def claimed(message: Message, *, owner: str = SHIFT, now: datetime | None = None) -> Work:
    """The message's turn, begun. Other lanes are left as they are."""
    now = now or database_now()
    others = list(Lane.objects.due(now).exclude(key=message.session.lane_key).values_list("key", flat=True))
    for key in others:
        lanes.pause(key, now=now)
    work = transitions.claim(owner, now=now, limit=1000)
    for key in others:
        lanes.resume(key, now=now)
    return next(item for item in work if isinstance(item, Work) and item.message.pk == message.pk)


def committed(work: Work, *, reply: str = "Done.") -> Work:
    """Its turn's commit: the target's user entry with the header, one assistant entry, the marker."""
    message = work.message
    entries = [
        Entry(TranscriptEntry.Role.USER, message.content, parts=[header(message)], message_id=message.message_id),
        Entry(TranscriptEntry.Role.ASSISTANT, reply),
    ]
    turns.commit([Commit(work.turn, work.hold, entries, [Mark(message.message_id, digest="")])], now=database_now())
    return work


def delivered(message: Message, *, reply: str = "Done.") -> Message:
    work = committed(claimed(message), reply=reply)
    transitions.acknowledge([Acknowledgement(work.hold, work.message)], now=database_now())
    return Message.objects.get(pk=message.pk)


def failed(message: Message, *, error: str = "It broke.") -> Message:
    """Failed as exhausted: every charged try ended in ``error``. A sender gets its notice."""
    for _ in range(message.max_attempts):
        setback = Setback(error, retry_at=database_now(), charged=True)
        transitions.release(claimed(message), setback, now=database_now())
    return Message.objects.get(pk=message.pk)
