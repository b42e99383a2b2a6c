"""The console's pages for who can be reached: projects, sessions, tokens; lanes, their holders and turns."""

from sessions_app.admin import lanes, projects, sessions, tokens

__all__ = ["lanes", "projects", "sessions", "tokens"]
