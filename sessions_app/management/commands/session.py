"""Sessions for scripts."""

from __future__ import annotations

import json
from typing import Any

from sessions_app import actions
from sessions_app.clock import database_now
from sessions_app.management.project_option import add_project, chosen_project
from suzent_site.errors import Invalid
from suzent_site.script_command import AddVerb, ScriptCommand


class Command(ScriptCommand):
    help = "Make sessions. One line of JSON on standard output."

    def verbs(self, add: AddVerb) -> None:
        create = add("create", help="make a session with a token of its own; the token is shown this once")
        add_project(create)
        create.add_argument("--id", default="", help="its address; left out, one is made (ses_…)")
        create.add_argument("--title", default="", help="what it is called in lists")
        create.add_argument("--runtime", default="", help="one of the project's; left out, its first")
        create.add_argument("--config", metavar="JSON", default="{}", help="a JSON object for the runtime")

    def create(self, options: dict[str, Any]) -> dict[str, Any]:
        session, minted = actions.open_session_with_token(
            chosen_project(options["project"]), now=database_now(), agent_id=options["id"], title=options["title"],
            runtime=options["runtime"], config=_config(options["config"]),
        )  # fmt: skip
        return {"agent_id": session.agent_id, "token": minted.secret}


def _config(text: str) -> dict[str, Any]:
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Invalid("--config", f"is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise Invalid("--config", "must be a JSON object")
    return config
