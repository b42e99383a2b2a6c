from django.apps import AppConfig
from django.core.checks import register

from sessions_app.checks import dotted_paths


class SessionsConfig(AppConfig):
    name = "sessions_app"
    verbose_name = "Agents"

    def ready(self) -> None:
        register(dotted_paths, "suzent")
