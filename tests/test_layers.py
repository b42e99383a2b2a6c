"""What Ruff cannot see: which way imports go, who may write what, where a process may sleep or catch everything."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ("suzent_site", "sessions_app", "inbox_app", "peers_app")  # each may import those before it
MAY_NAME_ANY_APP = {"suzent_site/settings.py", "suzent_site/urls.py"}
WRITES = {"create", "bulk_create", "get_or_create", "update_or_create", "update", "bulk_update", "delete"}


@dataclass(frozen=True)
class Owned:
    """Columns of a table that one module alone may write. Without columns: the whole table, deleting included."""

    model: str
    writer: str
    columns: frozenset[str] = field(default_factory=frozenset)
    within: tuple[str, ...] = LAYERS  # where a column of that name can only be this one


OWNED = [
    Owned("Message", "inbox_app/transitions.py", frozenset({"status"}), within=("inbox_app",)),
    Owned("Attempt", "inbox_app/attempts.py"),
    Owned("Turn", "sessions_app/turns.py", frozenset({"state"}), within=("sessions_app", "inbox_app")),
    Owned("Lane", "sessions_app/lanes.py"),
    Owned(
        "Lane", "sessions_app/lanes.py",
        frozenset({"due_at", "lease_owner", "lease_until", "wanted_until", "paused_at", "failures"}),
    ),
    Owned("TranscriptEntry", "sessions_app/turns.py"),
    Owned("DeliveryMarker", "sessions_app/turns.py"),
    Owned("SocialReply", "sessions_app/social/outbox.py"),
    Owned("CronRun", "sessions_app/cron/runs.py"),
]
SLEEPERS = (
    "suzent_site/faults.py",
    "suzent_site/transactions.py",
    "suzent_site/processes.py",  # its only sleep is the watch on a parent that may die
    "sessions_app/runtimes/",
    # Between two looks at what is to end.
    "inbox_app/cluster/supervisor.py",
    "inbox_app/bench/",  # the bench command's measurements
    "peers_app/bench.py",
)
# Rule 9: around one delivery (dispatcher, transport) or direct turn, and around one pass of a worker loop (shift, watchdog, social).
BORDERS = {
    "inbox_app/dispatcher.py", "sessions_app/direct.py", "sessions_app/social/loops.py", "inbox_app/shift.py",
    "inbox_app/cluster/watchdog.py", "peers_app/transport.py",
}  # fmt: skip


@cache
def modules() -> dict[str, ast.Module]:
    files = [file for layer in LAYERS for file in sorted((ROOT / layer).rglob("*.py"))]
    named = {file.relative_to(ROOT).as_posix(): file for file in files}
    return {name: ast.parse(file.read_text()) for name, file in named.items() if "/migrations/" not in name}


def layer_of(module: str) -> str:
    return module.replace(".", "/").split("/")[0]


def test_imports_go_one_way():
    assert not [f"{place} imports {name}" for place, name in imports() if points_up(place, name)]


def points_up(place: str, imported: str) -> bool:
    if layer_of(imported) not in LAYERS or place.split(":")[0] in MAY_NAME_ANY_APP:
        return False
    return LAYERS.index(layer_of(imported)) > LAYERS.index(layer_of(place))


def imports() -> Iterator[tuple[str, str]]:
    for module, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                yield from ((f"{module}:{node.lineno}", alias.name) for alias in node.names)
            if isinstance(node, ast.ImportFrom):
                yield f"{module}:{node.lineno}", node.module or layer_of(module)


def test_imports_stand_at_the_top_of_their_module():
    assert not [
        f"{module}:{inner.lineno}"
        for module, tree in modules().items()
        for outer in ast.walk(tree) if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(outer) if isinstance(inner, ast.Import | ast.ImportFrom)
    ]


@pytest.mark.parametrize("owned", OWNED, ids=lambda owned: f"{owned.model}-{'-'.join(sorted(owned.columns)) or 'rows'}")
def test_only_one_module_writes(owned):
    assert not [
        f"{module}:{node.lineno}"
        for module, tree in modules().items()
        if layer_of(module) in owned.within and module != owned.writer
        for node in ast.walk(tree) if is_write(node, owned)
    ]


def is_write(node: ast.AST, owned: Owned) -> bool:
    if isinstance(node, ast.Call):
        return makes_rows(node, owned) or sets_columns(node, owned)
    targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
    return isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) and any(
        isinstance(target, ast.Attribute) and target.attr in owned.columns for target in targets
    )


def makes_rows(call: ast.Call, owned: Owned) -> bool:
    """``Lane(…)``, ``Lane.objects.….delete()`` and the like."""
    if owned.columns:
        return False
    made = isinstance(call.func, ast.Name) and call.func.id == owned.model
    return made or (verb_of(call) in WRITES and root_of(call) == owned.model)


def sets_columns(call: ast.Call, owned: Owned) -> bool:
    """``….update(status=…)``, ``Message(status=…)``; also on a variable whose class we cannot see."""
    named = {keyword.arg for keyword in call.keywords} | saved_fields(call)
    root = root_of(call)
    is_other_model = root != owned.model and root[:1].isupper()
    writes = verb_of(call) in WRITES | {"save"} or root == owned.model == getattr(call.func, "id", "")
    return writes and not is_other_model and bool(named & owned.columns)


def saved_fields(call: ast.Call) -> set[str]:
    """The constants of ``save(update_fields=[…])`` and ``bulk_update(rows, […])``."""
    if verb_of(call) not in {"save", "bulk_update"}:
        return set()
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return {node.value for value in given for node in ast.walk(value) if isinstance(node, ast.Constant)}


def verb_of(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def root_of(node: ast.expr) -> str:
    """``Lane`` in ``Lane.objects.filter(…).update``; '' if the chain does not begin with a name."""
    while isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def test_nobody_sleeps_but_commands_runtimes_and_crash_points():
    assert not [
        f"{module}:{node.lineno}"
        for module, tree in modules().items()
        if not module.startswith(SLEEPERS) and "/management/commands/" not in module
        for node in ast.walk(tree) if is_sleep(node)
    ]


def is_sleep(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module == "time" and any(alias.name == "sleep" for alias in node.names)
    return isinstance(node, ast.Attribute) and ast.unparse(node) == "time.sleep"


def test_everything_is_caught_at_the_two_worker_borders_only():
    assert not [
        f"{module}:{node.lineno}"
        for module, tree in modules().items() if module not in BORDERS
        for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and is_broad(node)
    ]


def is_broad(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    return bool({"Exception", "BaseException"} & {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)})


@pytest.mark.parametrize(
    ("line", "model"),
    [
        ("Message.objects.filter(pk=1).update(status='failed')", "Message"),
        ("message.status = 'failed'", "Message"),
        ("message.save(update_fields=['status'])", "Message"),
        ("Message(status='pending')", "Message"),
        ("rows.update(state='committed')", "Turn"),
        ("lane.due_at = now", "Lane"),
        ("Lane.objects.get_or_create(key=key)", "Lane"),
        ("TranscriptEntry.objects.bulk_create(entries)", "TranscriptEntry"),
        ("DeliveryMarker.objects.filter(pk=1).delete()", "DeliveryMarker"),
    ],
)
def test_a_write_past_its_owner_is_seen(line, model):
    assert any(is_write(node, owned) for owned in OWNED if owned.model == model for node in ast.walk(ast.parse(line)))


@pytest.mark.parametrize(
    "line",
    [
        "Response(body, status=202)",
        "Message.objects.filter(status='failed')",
        "Intervention.objects.create(message=message, epoch=1)",
        "SubagentTask.objects.filter(pk=1).update(status='running')",
        "TranscriptEntry.objects.filter(session=session).count()",
    ],
)
def test_reading_and_other_tables_are_not_writes(line):
    assert not any(is_write(node, owned) for owned in OWNED for node in ast.walk(ast.parse(line)))
