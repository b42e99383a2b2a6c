"""The cast of the tests: a planner and a writer of one project, a stranger in another, an operator.

``Person`` is an agent with its session and its token; ``Person.post(…)`` and ``.get(…)`` call the REST interface as it.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from django.contrib.auth.models import Permission, User
from django.test import Client

from sessions_app import actions
from sessions_app.clock import database_now
from sessions_app.models import Project, Session
from tests.factories import ProjectFactory, SessionFactory


@dataclass
class Caller:
    """Someone at the REST interface with a bearer token; none at all when ``secret`` is empty."""

    secret: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    def get(self, path: str, **query: Any):
        return self._client.get(path, query)

    def post(self, path: str, body: Any = None, *, headers: dict[str, str] | None = None):
        return self._client.post(path, {} if body is None else body, content_type="application/json", headers=headers or {})

    def patch(self, path: str, body: Any):
        return self._client.patch(path, body, content_type="application/json")

    def delete(self, path: str):
        return self._client.delete(path)

    def tool(self, name: str, **arguments: Any):
        """Call one of the five tools."""
        return self.post(f"/api/tools/{name}", arguments)

    @cached_property
    def _client(self) -> Client:
        bearer = {"authorization": f"Bearer {self.secret}"} if self.secret else {}
        return Client(headers={**bearer, **self.headers}, raise_request_exception=False)


@dataclass
class Person(Caller):
    session: Session | None = None

    @property
    def agent_id(self) -> str:
        return self.session.agent_id

    @property
    def project(self) -> Project:
        return self.session.project


def person(agent_id: str, *, project: Project, title: str = "", runtime: str = "") -> Person:
    session = SessionFactory(agent_id=agent_id, project=project, title=title, runtime=runtime)
    secret = actions.mint_token(project, session=session, now=database_now()).secret
    return Person(secret=secret, session=session)


def office() -> Project:
    return Project.objects.filter(slug="office").first() or ProjectFactory(slug="office")


def planner(**about: Any) -> Person:
    return person("planner", project=office(), title="The planner", **about)


def writer(**about: Any) -> Person:
    return person("writer", project=office(), title="The writer", **about)


def stranger() -> Person:
    """In a project of its own: nothing of the office may be seen or reached from here."""
    elsewhere = Project.objects.filter(slug="elsewhere").first() or ProjectFactory(slug="elsewhere")
    return person("stranger", project=elsewhere, title="The stranger")


def nobody() -> Caller:
    return Caller()


MAY_ACT = ("view_message", "change_message", "view_session", "change_session", "view_lane", "change_lane", "view_turn", "view_holder")
MAY_LOOK = tuple(name for name in MAY_ACT if name.startswith("view_"))


def operator(name: str = "olga", *, may: tuple[str, ...] = MAY_ACT) -> User:
    """A staff user who may do what an operator does with messages, sessions and lanes, and nothing else."""
    user = User.objects.create_user(name, password="", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=may))
    return user


def onlooker(name: str = "otto") -> User:
    """A staff user who may look and not act."""
    return operator(name, may=MAY_LOOK)


def administrator(name: str = "ada") -> User:
    return User.objects.create_superuser(name)


def browser_of(user: User) -> Client:
    """A signed-in browser at the console."""
    client = Client()
    client.force_login(user)
    return client
