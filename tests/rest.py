"""Callers of the REST surface: two agents and their project, a stranger in another project, an operator."""

import json
import threading
from dataclasses import dataclass, field

import pytest
from django.contrib.auth.models import Permission
from django.test import Client
from django.utils import timezone

from inbox_app import dispatcher, transitions
from sessions_app.actions import create_project, mint_token, open_session
from sessions_app.clock import database_now
from sessions_app.models import Project, Session


@dataclass
class Api:
    """One caller. Without a token, nobody; ``acting`` goes into X-Suzent-Agent."""

    token: str = ""
    acting: str = ""
    client: Client = field(default_factory=Client)

    def tool(self, name, **arguments):
        return self.post(f"/api/tools/{name}", arguments)

    def send(self, agent_id, message, **more):
        return self.tool("agent_send", agent_id=agent_id, message=message, **more)

    def get(self, path, **query):
        return self.client.get(path, query, headers=self.headers())

    def post(self, path, body=None):
        return self.raw(path, json.dumps({} if body is None else body))

    def raw(self, path, body, content_type="application/json"):
        return self.client.post(path, body, content_type=content_type, headers=self.headers())

    def patch(self, path, body):
        return self.client.patch(path, json.dumps(body), content_type="application/json", headers=self.headers())

    def delete(self, path):
        return self.client.delete(path, headers=self.headers())

    def headers(self):
        given = {"Authorization": f"Bearer {self.token}" if self.token else "", "X-Suzent-Agent": self.acting}
        return {name: value for name, value in given.items() if value}


@dataclass
class Agent:
    session: Session
    api: Api

    @property
    def id(self):
        return self.session.agent_id


@dataclass
class Town:
    project: Project
    owner: Api
    planner: Agent
    writer: Agent
    stranger: Agent

    def acting(self, agent):
        """The project token in the name of an agent."""
        return Api(self.owner.token, acting=agent.id)

    def opened(self, agent_id, **options):
        return open_agent(self.project, agent_id, **options)


def open_agent(project, agent_id, **options):
    now = timezone.now()
    session = open_session(project, now=now, agent_id=agent_id, **options)
    return Agent(session, Api(mint_token(project, now=now, session=session).secret))


def claimed(agent, *, owner="tests"):
    """The agent's next message, taken by a shift and in its turn."""
    works = {work.message.target: work for work in transitions.claim(owner, now=database_now(), limit=10)}
    return works[agent.id]


def delivered(agent):
    """The agent's next message, through its turn to its acknowledgement."""
    work = claimed(agent)
    ended = dispatcher.run_and_commit(work, threading.Event())
    transitions.acknowledge([ended.acknowledgement], now=database_now())
    return work.message


@pytest.fixture
def town(db):
    here, there = create_project("demo"), create_project("elsewhere")
    return Town(
        project=here,
        owner=Api(mint_token(here, now=timezone.now()).secret),
        planner=open_agent(here, "planner", title="Planner"),
        writer=open_agent(here, "writer", title="Writer"),
        stranger=open_agent(there, "stranger"),
    )


OPERATOR = (
    "view_message", "change_message", "view_session", "add_session", "change_session",
    "view_cronjob", "add_cronjob", "change_cronjob", "view_cronrun",
)  # fmt: skip
ONLOOKER = ("view_message", "view_session", "view_cronjob", "view_cronrun")


def staff(user_model, name, rights=()):
    """A staff user with these of Django's permissions."""
    user = user_model.objects.create_user(name, password="x", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=rights))
    return user


@pytest.fixture
def operator(db, django_user_model):
    user = staff(django_user_model, "olga", OPERATOR)
    client = Client()
    client.force_login(user)
    return Api(client=client)


def refused(response, status, *, code=None, field=None):
    """Whether the answer is this error, in the one shape."""
    body = response.json()
    assert (response.status_code, set(body)) == (status, {"code", "detail", "extra"}), body
    assert code is None or body["code"] == code, body
    assert field is None or body["extra"].get("field") == field, body
    return True
