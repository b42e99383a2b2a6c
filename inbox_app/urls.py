"""URLs of tools and messages, below /api/."""

from django.urls import path

from inbox_app import views
from inbox_app.tools import TOOLS

urlpatterns = [
    path("tools", views.Tools.as_view()),
    *(path(f"tools/{tool.name}", views.tool_call(tool).as_view()) for tool in TOOLS.values()),
    path("subagents", views.Subagents.as_view()),
    path("subagents/<str:task_id>", views.SubagentDetail.as_view()),
    path("messages", views.Messages.as_view()),
    path("messages/<str:message_id>", views.MessageDetail.as_view()),
    path("messages/<str:message_id>/withdraw", views.MessageWithdraw.as_view()),
    path("messages/<str:message_id>/retry", views.MessageRetry.as_view()),
]
