"""Tokens for scripts."""

from __future__ import annotations

from typing import Any

from sessions_app import actions
from sessions_app.clock import database_now
from sessions_app.management.project_option import add_project, chosen_project
from sessions_app.models import Session
from suzent_site.errors import Invalid
from suzent_site.script_command import AddVerb, ScriptCommand


class Command(ScriptCommand):
    help = "Make bearer tokens. One line of JSON on standard output."

    def verbs(self, add: AddVerb) -> None:
        create = add("create", help="make a token of the project, or of one session; it is shown this once")
        add_project(create)
        create.add_argument("--agent", metavar="ID", default="", help="the session it is for; left out, the whole project")

    def create(self, options: dict[str, Any]) -> dict[str, Any]:
        project = chosen_project(options["project"])
        session = None
        if options["agent"]:
            session = Session.objects.open().addressable_from(project).filter(agent_id=options["agent"]).first()
            if session is None:
                raise Invalid("--agent", f"there is no open session {options['agent']} in {project.slug}")
        return {"token": actions.mint_token(project, session=session, now=database_now()).secret}
