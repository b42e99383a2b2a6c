from django.apps import AppConfig


class PeersConfig(AppConfig):
    name = "peers_app"
    verbose_name = "Devices"
