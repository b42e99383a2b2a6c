"""The keys that seal secrets in the database."""

from __future__ import annotations

from collections import Counter
from typing import Any

from django.apps import apps
from django.conf import settings

from suzent_site import sealed
from suzent_site.script_command import AddVerb, ScriptCommand
from suzent_site.transactions import durable


class Command(ScriptCommand):
    help = "Change the keys that seal secrets in the database. One line of JSON on standard output."

    def verbs(self, add: AddVerb) -> None:
        add("rotate", help=(
            "put a new key in front of those in the data directory and seal everything anew; where SUZENT_FIELD_KEYS is set in "
            "the environment, seal everything anew with its first key. Older keys stay until you take them out"
        ))  # fmt: skip

    def rotate(self, options: dict[str, Any]) -> dict[str, Any]:
        stored = sealed.keys_are_stored()
        if stored:
            sealed.store_new_key()
        became = Counter(outcome for column in settings.SEALED for outcome in _seal_anew(column))
        return {"new_key": stored, "sealed_anew": became["sealed"], "cannot_unseal": became["kept"], "changed_meanwhile": became["changed"]}


def _seal_anew(column: str) -> list[str]:
    """What became of each secret of ``app.Model.column``: ``sealed``, ``kept`` (no key opens it), ``changed`` by somebody else."""
    model, _, name = column.rpartition(".")
    rows = apps.get_model(model)._default_manager.exclude(**{name: ""})
    return [_row(rows.filter(pk=pk, **{name: secret}), name, secret) for pk, secret in rows.values_list("pk", name)]


def _row(row: Any, name: str, secret: str) -> str:
    try:
        anew = sealed.seal_anew(secret)
    except sealed.CannotUnseal:
        return "kept"
    with durable():
        return "sealed" if row.update(**{name: anew}) else "changed"
