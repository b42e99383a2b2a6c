"""URLs of webhooks, below /channels/social/."""

from django.urls import path

from sessions_app.social.views import Webhook

urlpatterns = [path("<str:name>", Webhook.as_view()), path("<str:name>/", Webhook.as_view())]
