"""What the console's first page says of devices."""

from __future__ import annotations

from datetime import datetime

from django.urls import reverse

from inbox_app.console import Figure
from peers_app.models import GrantRequest
from suzent_site.console import counted


def asking(*, now: datetime) -> Figure:
    number = counted(GrantRequest.objects.open(now))
    said = "Approve or deny: a request ends ten minutes after it came." if number else "No device asks to drive us."
    return Figure("Devices that ask", str(number), said, reverse("admin:peers_app_grantrequest_changelist"), alarming=number > 0)
