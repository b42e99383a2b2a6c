"""The console's pages for who can be reached: projects, sessions, tokens; lanes, their holders and turns; cron jobs and runs; channels."""

from sessions_app.admin import cron, lanes, projects, sessions, social, tokens

__all__ = ["cron", "lanes", "projects", "sessions", "social", "tokens"]
