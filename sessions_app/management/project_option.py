"""The option --project of the commands for scripts."""

from __future__ import annotations

from argparse import ArgumentParser

from sessions_app.models import Project
from suzent_site.errors import Invalid


def add_project(parser: ArgumentParser) -> None:
    parser.add_argument("--project", metavar="P", default="", help="slug of the project; not needed when there is only one")


def chosen_project(slug: str) -> Project:
    """The project of that slug; without one, the only project there is. Raises Invalid."""
    found = list(Project.objects.filter(**({"slug": slug} if slug else {"archived_at": None}))[:2])
    if len(found) == 1:
        return found[0]
    if slug:
        raise Invalid("--project", f"there is no project {slug}")
    raise Invalid("--project", "name one: there are several" if found else "there is none yet: manage.py project create SLUG")
