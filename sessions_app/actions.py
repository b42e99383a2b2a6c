"""What people and agents do to projects, sessions and tokens: one transaction each."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict, Unpack

from django.conf import settings
from django.db import IntegrityError
from django.utils.module_loading import import_string

from sessions_app import lanes, turns
from sessions_app.models import AGENT_ID, ApiToken, Project, Session, lane_key_of
from sessions_app.text import refuse_unstorable
from suzent_site.errors import Conflict, Invalid, SuzentError
from suzent_site.sealed import digest_of
from suzent_site.transactions import durable

RESERVED_PREFIXES = ("ses_", "subagent-", "cron-", "social-", "suzent:", "peer:")
TITLE_LIMIT = 200  # characters
BATCH_AT_MOST = 20  # messages in one turn
CONFIG_LIMIT = 64 * 1024  # bytes as JSON


class IdTaken(Conflict):
    """That id is in use, or was once: ids are never used again."""

    code = "id_taken"


class SessionGone(SuzentError):
    """That session is archived."""

    code = "target_gone"
    status = 410


def create_project(slug: str, *, name: str = "", runtimes: Sequence[str] | None = None, roots: Sequence[str] = ()) -> Project:
    """Make a project. Raises Invalid, IdTaken."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", slug):
        raise Invalid("slug", "must be 1 to 64 letters, digits, - or _, and begin with a letter or digit")
    project = Project(slug=slug, name=_sound_title("name", name), roots=list(roots))
    if runtimes is not None:
        project.runtimes = _known_runtimes(runtimes)
    with durable():
        if Project.objects.filter(slug=slug).exists():
            raise IdTaken
        project.save(force_insert=True)
    return project


class NewSession(TypedDict, total=False):
    """What may be said of a session that is to be made."""

    agent_id: str
    title: str
    runtime: str
    config: dict[str, Any]
    kind: Session.Kind
    parent: Session | None


def open_session(project: Project, *, now: datetime, **about: Unpack[NewSession]) -> Session:
    """Make a session and its lane. Without ``agent_id`` an id is made. Raises Invalid, IdTaken, Conflict."""
    session = _drafted(project, now=now, **about)
    with _ids_taken_once(), durable():
        _insert(session)
    return session


def open_session_with_token(project: Project, *, now: datetime, **about: Unpack[NewSession]) -> tuple[Session, Minted]:
    """Make a session, its lane and its token, or nothing. Raises as ``open_session``."""
    session = _drafted(project, now=now, **about)
    with _ids_taken_once(), durable():
        _insert(session)
        minted = _minted(project, session=session, now=now, expires_at=None)
    return session, minted


def insert_session_of_ours(project: Project, own_id: str, *, now: datetime, **about: Unpack[NewSession]) -> Session:
    """Make a session whose id we made ourselves, and its lane. A step. Raises Invalid, IdTaken, Conflict."""
    session = _drafted(project, now=now, **about)
    session.agent_id = own_id
    _insert(session)
    return session


def _drafted(project: Project, *, now: datetime, **about: Unpack[NewSession]) -> Session:
    agent_id = about.get("agent_id", "")
    return Session(
        agent_id=_free_to_choose(agent_id) if agent_id else f"ses_{secrets.token_hex(10)}",
        project=project,
        title=_sound_title("title", about.get("title", "")),
        runtime=allowed_runtime(project, about.get("runtime") or project.runtimes[0]),
        config=_sound_config(about.get("config") or {}),
        kind=about.get("kind", Session.Kind.INTERACTIVE),
        parent=about.get("parent"),
        created_at=now,
        updated_at=now,
    )


@contextmanager
def _ids_taken_once() -> Iterator[None]:
    """Another connection may take the id between our look and our insert."""
    try:
        yield
    except IntegrityError as error:
        raise IdTaken from error


def _insert(session: Session) -> None:
    _refuse_if_archived(session.project)
    if Session.objects.filter(pk=session.pk).exists():
        raise IdTaken
    session.save(force_insert=True)
    lanes.ensure(session.lane_key)


def change_session(
    session: Session, *, now: datetime, title: str | None = None, runtime: str | None = None, config: dict[str, Any] | None = None
) -> Session:
    """Change what may change of a session; None leaves a field as it is. Raises Invalid, SessionGone."""
    changes: dict[str, Any] = {"updated_at": now}
    if title is not None:
        changes["title"] = _sound_title("title", title)
    if runtime is not None:
        changes["runtime"] = allowed_runtime(session.project, runtime)
    if config is not None:
        changes["config"] = _sound_config(config)
    with durable():
        if not Session.objects.open().filter(pk=session.pk).update(**changes):
            raise SessionGone
    session.refresh_from_db()
    return session


def archive_session(session: Session, *, now: datetime, who: str = "") -> bool:
    """End a session: its turn is fenced off, what is below it is stopped, its mail fails as target_gone.

    False: it was archived.
    """
    with _whole_family(session) as below:
        if not Session.objects.open().filter(pk=session.pk).update(archived_at=now, updated_at=now):
            return False
        turns.request_stop(below, now=now)
        turns.fence_off(session.pk, error="the session was archived", now=now)
        lanes.seize(session.lane_key, now=now)
        import_string(settings.STOP_TASKS)(session, below, who=who, archived=True, now=now)
        lanes.wake_on_commit()
    return True


def stop_session(session: Session, *, now: datetime, who: str = "") -> bool:
    """Ask the running turns of the session and its descendants to stop; tasks that wait there never start.

    ``who`` asks, for those who are told of it. False: nothing ran or waited.
    """
    with _whole_family(session) as below:
        asked = turns.request_stop(below, now=now)
        ended: int = import_string(settings.STOP_TASKS)(session, below, who=who, archived=False, now=now)
    return asked + ended > 0


@contextmanager
def _whole_family(session: Session) -> Iterator[list[str]]:
    """A transaction that holds the lanes of the session and all below it, and of its parent, which may be told.

    Whoever is made below a session is made under its lane. So once all lanes are locked nobody is born any more, and
    who was born while we waited for them shows: then it is begun again, since locks are taken in the order of keys.
    """
    while True:
        with durable():
            found = descendants_of(session)
            lanes.lock(lane_key_of(agent_id) for agent_id in (*found, session.parent_id) if agent_id)
            if set(descendants_of(session)) == set(found):
                yield found
                return


def descendants_of(session: Session) -> list[str]:
    """The session's id and those of all sessions below it."""
    found, level = [session.pk], [session.pk]
    while level:
        level = list(Session.objects.filter(parent__in=level).values_list("pk", flat=True))
        found += level
    return found


@dataclass(frozen=True)
class Minted:
    """A new token with its secret, which is shown once and kept nowhere."""

    token: ApiToken
    secret: str


def mint_token(project: Project, *, now: datetime, session: Session | None = None, expires_at: datetime | None = None) -> Minted:
    """Make a bearer token of a session, or of the project where there is none. Raises Invalid."""
    if session is not None and session.project_id != project.pk:
        raise Invalid("agent", "belongs to another project")
    with durable():
        return _minted(project, session=session, now=now, expires_at=expires_at)


def _minted(project: Project, *, session: Session | None, now: datetime, expires_at: datetime | None) -> Minted:
    secret = secrets.token_urlsafe(32)
    token = ApiToken.objects.create(
        digest=digest_of(secret), hint=f"{secret[:4]}…{secret[-4:]}", project=project, session=session,
        created_at=now, expires_at=expires_at,
    )  # fmt: skip
    return Minted(token, secret)


def find_token(secret: str, *, now: datetime) -> ApiToken | None:
    """The usable token with this secret: found by its digest, so no comparison leaks time."""
    usable = ApiToken.objects.usable(now).select_related("project", "session")
    return usable.filter(digest=digest_of(secret)).first()


def revoke_token(token: ApiToken, *, now: datetime) -> bool:
    """Refuse the token from now on, everywhere. False: it was revoked."""
    with durable():
        return ApiToken.objects.filter(pk=token.pk, revoked_at=None).update(revoked_at=now) == 1


def _free_to_choose(agent_id: str) -> str:
    if not re.fullmatch(AGENT_ID, agent_id):
        raise Invalid("agent_id", "must be 1 to 128 of A-Z a-z 0-9 _ . : - and begin with a letter or digit")
    if agent_id.lower().startswith(RESERVED_PREFIXES):
        raise Invalid("agent_id", f"must not begin with one of ours ({', '.join(RESERVED_PREFIXES)})")
    return agent_id


def _sound_title(field: str, text: str) -> str:
    if len(text) > TITLE_LIMIT:
        raise Invalid(field, f"must be at most {TITLE_LIMIT} characters; it has {len(text)}")
    refuse_unstorable(text, field=field)
    return text


def allowed_runtime(project: Project, runtime: str) -> str:
    """Raises Invalid for a runtime that the project's agents may not have."""
    if runtime not in project.runtimes or runtime not in settings.RUNTIMES:
        raise Invalid("runtime", f"must be one of this project's: {', '.join(sorted(set(project.runtimes) & set(settings.RUNTIMES)))}")
    return runtime


def _known_runtimes(runtimes: Sequence[str]) -> list[str]:
    unknown = [name for name in runtimes if name not in settings.RUNTIMES]
    if unknown or not runtimes:
        raise Invalid("runtimes", f"must be some of {', '.join(settings.RUNTIMES)}")
    return list(runtimes)


def _sound_config(config: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(config, dict):
        raise Invalid("config", "must be a JSON object")
    try:
        written = json.dumps(config, allow_nan=False)
    except ValueError as error:
        raise Invalid("config", "must be JSON, which has no NaN and no Infinity") from error
    if len(written) > CONFIG_LIMIT:
        raise Invalid("config", f"must be at most {CONFIG_LIMIT} bytes as JSON; it has {len(written)}")
    refuse_unstorable(config, field="config")
    _refuse_unsound_batch(config)
    _refuse_unsound_tools(config)
    _refuse_unsound_model(config)
    return config


def batch_size(config: dict[str, Any]) -> int:
    """How many messages that wait for a session one turn of it takes: ``config.batch``, true or a number; 1 without it."""
    wished = config.get("batch", False)
    return BATCH_AT_MOST if wished is True else int(wished) or 1


def _refuse_unsound_batch(config: dict[str, Any]) -> None:
    wished = config.get("batch", False)
    if not isinstance(wished, bool) and not (isinstance(wished, int) and 1 <= wished <= BATCH_AT_MOST):
        raise Invalid("config.batch", f"must be true, false or a whole number from 1 to {BATCH_AT_MOST}")


def _refuse_unsound_tools(config: dict[str, Any]) -> None:
    for field in ("tools", "tools_denied"):
        names = config.get(field, [])
        if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise Invalid(f"config.{field}", "must be a list of tool names")


def _refuse_unsound_model(config: dict[str, Any]) -> None:
    """Sub-agents inherit it and cron jobs show it, so it is a text, whatever the runtime makes of it."""
    if not isinstance(config.get("model"), str | None):
        raise Invalid("config.model", "must be the name of a model")


def _refuse_if_archived(project: Project) -> None:
    if Project.objects.filter(pk=project.pk, archived_at__isnull=False).exists():
        raise Conflict(f"The project {project.pk} is archived.")
