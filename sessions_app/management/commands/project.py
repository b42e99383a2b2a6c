"""Projects for scripts."""

from __future__ import annotations

from typing import Any

from sessions_app import actions
from suzent_site.script_command import AddVerb, ScriptCommand


class Command(ScriptCommand):
    help = "Make projects. One line of JSON on standard output."

    def verbs(self, add: AddVerb) -> None:
        create = add("create", help="make a project")
        create.add_argument("slug", metavar="SLUG", help="its short name; it cannot change later")
        create.add_argument("--name", default="", help="as people call it")

    def create(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"slug": actions.create_project(options["slug"], name=options["name"]).slug}
