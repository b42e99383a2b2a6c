from django.apps import AppConfig


class InboxConfig(AppConfig):
    name = "inbox_app"
    verbose_name = "Inbox"
