"""The default runtime: it needs nothing and answers what it was told."""

from __future__ import annotations

from sessions_app.runtimes.base import RunningTurn, Runtime, TurnResult


class Echo(Runtime):
    def run(self, turn: RunningTurn) -> TurnResult:
        return TurnResult("\n".join(f"ok: {given.text}" for given in turn.inputs))
