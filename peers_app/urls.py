"""URLs of the peer protocol, spelled as wire.md spells them."""

from django.urls import path

from peers_app import views

urlpatterns = [
    path("nodes/grant-request", views.Ask.as_view()),
    path("nodes/grant-status/<str:request_id>", views.Poll.as_view()),
    path("channels/suzent/inbox", views.Inbox.as_view()),
    path("channels/suzent/session", views.Session.as_view()),
    path("channels/suzent/stop", views.Stop.as_view()),
    path("channels/suzent/whoami", views.WhoAmI.as_view()),
    path("channels/suzent/proof", views.Proof.as_view()),
    path("channels/suzent/inbound", views.Inbound.as_view()),
    path("channels/suzent/grant-changed", views.GrantChanged.as_view()),
    path("nodes/peer-offer", views.PeerOffer.as_view()),
    path("channels/<path:rest>", views.Elsewhere.as_view()),
    path("nodes/<path:rest>", views.Elsewhere.as_view()),
]
