"""The console's first page: what needs an operator now. Every figure links to the rows it counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.apps import apps
from django.conf import settings
from django.contrib import admin
from django.db.models import Exists, OuterRef, Sum
from django.http import HttpRequest
from django.urls import reverse
from django.utils.module_loading import import_string

from inbox_app.models import Message, Wake
from inbox_app.querysets import MessageQuerySet
from inbox_app.readiness import ANSWERED_WITHIN
from inbox_app.wake import ANSWER, living_shifts
from sessions_app.clock import database_now
from sessions_app.cron import announcements
from sessions_app.cron.models import CronJob
from sessions_app.models import Lane
from sessions_app.social.models import SocialReply
from suzent_site.console import counted
from suzent_site.shown import age

STATES = ("failed", "stale", "processing", "pending", "delivered")
NEWEST_FAILURES = 5


def in_state(messages: MessageQuerySet, state: str, *, now: datetime) -> MessageQuerySet:
    """The messages shown as ``state``: the statuses, and of what is in processing apart what nobody holds."""
    leased = Exists(Lane.objects.filter(key=OuterRef("lane"), lease_until__gt=now))
    words: dict[str, Callable[[], MessageQuerySet]] = {
        "failed": messages.failed,
        "unsettled": messages.unsettled,
        "pending": messages.pending,
        "processing": lambda: messages.processing().filter(leased),
        "stale": lambda: messages.processing().filter(~leased),
        "delivered": messages.delivered,
    }
    return words.get(state, messages.all)()


def states(*, now: datetime) -> list[tuple[str, int]]:
    """How many messages are in each state; a count past the limit says so (``10,000+``)."""
    return [(state, counted(in_state(Message.objects.all(), state, now=now))) for state in STATES]


@dataclass(frozen=True)
class Figure:
    title: str
    value: str
    said: str
    link: str
    alarming: bool = False


def dashboard(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """UNFOLD's DASHBOARD_CALLBACK. Whoever may not read messages sees none of it."""
    if not (request.user.has_perm("inbox_app.view_message") or request.user.has_perm("inbox_app.change_message")):
        return context
    now = database_now()
    failures = Message.objects.failed().select_related("sender", "session").order_by("-id")
    return {**context, "figures": figures(now=now), "failures": failures[:NEWEST_FAILURES], "now": now}


def figures(*, now: datetime) -> list[Figure]:
    numbers = dict(states(now=now))
    return [
        _failed(numbers["failed"]),
        _waiting(numbers["pending"], now=now),
        _running(numbers["processing"], numbers["stale"]),
        _shifts(now=now),
        _paused(),
        _cron(),
        _replies(),
        *(import_string(path)(now=now) for path in settings.FIGURES),
        _answer(now=now),
    ]


def _failed(number: int) -> Figure:
    said = "Look at each, then retry." if number else "Nothing has failed."
    return Figure("Failed messages", str(number), said, _messages("failed"), alarming=number > 0)


def _waiting(number: int, *, now: datetime) -> Figure:
    oldest = Message.objects.pending().order_by("accepted_at").first()
    if oldest is None:
        return Figure("Waiting messages", "0", "Nothing is waiting.", _messages("pending"))
    since = age(oldest.accepted_at, now=now)
    return Figure("Waiting messages", str(number), f"The oldest has waited {since}.", reverse("admin:inbox_app_message_change", args=[oldest.pk]))


def _running(number: int, stale: int) -> Figure:
    if stale:
        return Figure("Running messages", str(number), f"{stale} stale: the lease has passed.", _messages("stale"), alarming=True)
    said = "Each under a live lease." if number else "No message is being handled."
    return Figure("Running messages", str(number), said, _messages("processing"))


def _shifts(*, now: datetime) -> Figure:
    live = living_shifts(now=now)
    number, free = live.count(), live.aggregate(free=Sum("free"))["free"] or 0
    if number:
        said = f"Room for {free} more turns."
    else:
        said = "Mail is due: one should start at once." if Lane.objects.due(now).exists() else "None needed: a message starts one."
    return Figure("Live shifts", str(number), said, reverse("admin:sessions_app_holder_changelist"))


def _paused() -> Figure:
    number = counted(Lane.objects.paused())
    said = "Their mail waits until you resume them." if number else "No lane is paused."
    return Figure("Paused lanes", str(number), said, reverse("admin:sessions_app_lane_changelist", query={"state": "paused"}))


def _cron() -> Figure:
    number = counted(CronJob.objects.kept().gave_up())
    said = "Switched off after failing: see why, then switch them on." if number else "No cron job has given up."
    link = reverse("admin:sessions_app_cronjob_changelist", query={"state": "gave up"})
    return Figure("Cron jobs that gave up", str(number), said, link, alarming=number > 0)


def _replies() -> Figure:
    number = counted(SocialReply.objects.in_doubt())
    said = "They may have arrived: ask, or send them again." if number else "Every platform said what it took."
    link = reverse("admin:sessions_app_socialreply_changelist", query={"status__exact": SocialReply.Status.UNCERTAIN})
    return Figure("Replies in doubt", str(number), said, link, alarming=number > 0)


def _answer(*, now: datetime) -> Figure:
    link = reverse("admin:inbox_app_wake_changelist")
    answered = Wake.objects.filter(name=ANSWER).values_list("answered_at", flat=True).first()
    if answered is None:
        return Figure("Last worker answer", "never", "Is the cluster running? manage.py up starts it.", link, alarming=True)
    late = now - answered > ANSWERED_WITHIN
    said = "No worker answers: is the cluster running?" if late else "A worker is alive."
    return Figure("Last worker answer", f"{age(answered, now=now)} ago", said, link, alarming=late)


def _messages(state: str) -> str:
    return reverse("admin:inbox_app_message_changelist", query={"status": state})


def navigation(request: HttpRequest) -> list[dict[str, Any]]:
    """UNFOLD's SIDEBAR navigation: what an operator opens, most often first; nothing a user may not read."""
    return [
        _group("Inbox", [("Messages", "inbox_app_message", "mail"), ("Lanes", "sessions_app_lane", "route")], request),
        _group("Agents", [
            ("Sessions", "sessions_app_session", "forum"),
            ("Subagent tasks", "inbox_app_subagenttask", "account_tree"),
            ("Cron jobs", "sessions_app_cronjob", "schedule"),
            ("Cron runs", "sessions_app_cronrun", "history"),
            ("Turns", "sessions_app_turn", "play_arrow"),
            ("Projects", "sessions_app_project", "folder"),
            ("Tokens", "sessions_app_apitoken", "key"),
        ], request),
        _group("Devices", [
            ("Grant requests", "peers_app_grantrequest", "contact_mail"),
            ("Device grants", "peers_app_devicegrant", "devices"),
            ("Peers", "peers_app_peer", "share"),
        ], request),
        _group("Platforms", [
            ("Channels", "sessions_app_socialchannel", "hub"),
            ("Social identities", "sessions_app_socialidentity", "badge"),
            ("Pairing requests", "sessions_app_pairingrequest", "person_add"),
            ("Replies", "sessions_app_socialreply", "reply"),
        ], request),
        _group("Machine", [
            ("Live processes", "sessions_app_holder", "memory"),
            ("Wake-ups", "inbox_app_wake", "alarm"),
            ("People", "auth_user", "person"),
            ("Groups", "auth_group", "group"),
        ], request),
    ]  # fmt: skip


def _group(title: str, pages: list[tuple[str, str, str]], request: HttpRequest) -> dict[str, Any]:
    return {"title": title, "separator": True, "items": [_item(*page) for page in pages if _may_read(request, page[1])]}


def _item(title: str, page: str, icon: str) -> dict[str, Any]:
    item = {"title": title, "icon": icon, "link": reverse(f"admin:{page}_changelist")}
    waiting = len(announcements.waiting(None)) if page == "sessions_app_cronjob" else 0
    return {**item, "badge": str(waiting)} if waiting else item


def _may_read(request: HttpRequest, page: str) -> bool:
    app, _, model = page.rpartition("_")
    return bool(admin.site.get_model_admin(apps.get_model(app, model)).has_view_permission(request))
