"""URLs of cron, below /api/."""

from django.urls import path

from sessions_app.cron import views

urlpatterns = [
    path("cron/jobs", views.Jobs.as_view()),
    path("cron/jobs/<str:job_id>", views.JobDetail.as_view()),
    path("cron/jobs/<str:job_id>/run", views.JobRun.as_view()),
    path("cron/runs", views.Runs.as_view()),
    path("cron/announcements", views.Announcements.as_view()),
    path("cron/preview", views.Preview.as_view()),
]
