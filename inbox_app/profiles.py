"""What a sub-agent may use: profiles from the settings, tool lists, and the rule that it has no sub-agents of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.conf import settings

from sessions_app.models import Session
from suzent_site.errors import Invalid

SPAWN = "agent"
OWN_TOOLS = (SPAWN, "agent_list", "agent_read", "agent_send", "agent_stop")


def may_use(session: Session, tool: str) -> bool:
    """Whether ``config.tools`` names it, where there is such a list, and ``config.tools_denied`` does not."""
    if session.kind == Session.Kind.SUBAGENT and tool == SPAWN:
        return False
    allowed = _all_of(session)
    return tool not in session.config.get("tools_denied", []) and (allowed is None or tool in allowed)


def _all_of(session: Session) -> list[str] | None:
    """The names of all that it may use; None: no such limit. A session that a device drives has nothing by itself."""
    unless_said: list[str] | None = [] if session.kind == Session.Kind.REMOTE else None
    allowed: list[str] | None = session.config.get("tools", unless_said)
    return allowed


def known_tools() -> set[str]:
    """Our own and those that some profile names: a runtime has them or not."""
    return {*OWN_TOOLS, *(tool for profile in settings.SUBAGENT_PROFILES.values() for tool in profile["tools"])}


def check_tools(names: Iterable[str], *, field: str) -> None:
    """Raises Invalid for a tool that nobody knows, or one that no sub-agent has."""
    unknown = sorted(set(names) - known_tools())
    if unknown:
        raise Invalid(field, f"names the unknown tool {unknown[0]!r}; there are: {', '.join(sorted(known_tools()))}")
    if field == "tools_allowed" and SPAWN in names:
        raise Invalid(field, f"names {SPAWN!r}, which no sub-agent has: it cannot have sub-agents of its own")


def config_for(
    parent: Session, *, subagent_type: str = "", tools_allowed: Sequence[str] | None = None, tools_denied: Sequence[str] = (),
    model_override: str = "", cwd: str = "", isolation: str = "",
) -> dict[str, Any]:
    """The config of a sub-agent. A list of its own goes before its profile's; the model is its parent's unless one is named.

    Nothing that its parent may not use: or that limit could be passed by whoever has the tool ``agent``.
    """
    profile: Mapping[str, Any] = settings.SUBAGENT_PROFILES[subagent_type] if subagent_type else {}
    config = {
        "subagent_type": subagent_type,
        "instructions": profile.get("instructions", ""),
        "model": model_override or parent.config.get("model", ""),
        "cwd": cwd,
        "isolation": isolation,
        "tools_denied": [*tools_denied, *parent.config.get("tools_denied", [])],
    }
    said = {name: value for name, value in config.items() if value}
    limit = _all_of(parent)
    asked = tools_allowed if tools_allowed is not None else profile.get("tools", limit)
    if asked is None:
        return said
    both = [tool for tool in asked if limit is None or tool in limit]
    return {**said, "tools": [tool for tool in both if tool not in config["tools_denied"]]}
