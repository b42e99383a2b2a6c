"""URLs of sessions, below /api/."""

from django.urls import path

from sessions_app import views

urlpatterns = [
    path("sessions", views.Sessions.as_view()),
    path("sessions/<str:agent_id>", views.SessionDetail.as_view()),
]
