"""The console's pages for what is to be delivered: messages with their attempts and interventions."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, ClassVar, cast

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.utils import quote
from django.contrib.admin.views.main import ORDER_VAR
from django.db.models import Count, IntegerField, OuterRef, Q, QuerySet, Subquery, Value
from django.db.models.functions import Coalesce, Concat
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.decorators import action, display
from unfold.forms import BaseDialogForm
from unfold.views import ChangeList
from unfold.widgets import UnfoldAdminTextInputWidget

from inbox_app import console, transitions
from inbox_app.models import Attempt, Intervention, Message, Wake
from inbox_app.querysets import MessageQuerySet
from inbox_app.subagents_admin import family_of
from sessions_app.admin.clock import WithClock
from sessions_app.admin.lanes import LaneAdmin
from sessions_app.admin.sessions import SessionAdmin
from sessions_app.clock import database_now
from sessions_app.models import Lane, Project, Session
from sessions_app.querysets import REMOTE_PREFIX
from suzent_site.console import EngineOwned, EngineOwnedInline, leave_dialog, operator_name
from suzent_site.errors import SuzentError
from suzent_site.shown import age, as_json, in_a_line, label, whole

STATUS_COLORS = {"failed": "danger", "stale": "warning", "processing": "info", "pending": "default", "delivered": "success"}


class ByStatus(admin.SimpleListFilter):
    title = "status"
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [*((name, name) for name in console.STATES), ("unsettled", "unsettled")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Message]) -> QuerySet[Message]:
        return console.in_state(cast(MessageQuerySet, queryset), self.value() or "", now=database_now())


class ByAge(admin.SimpleListFilter):
    title = "age"
    parameter_name = "age"
    AGES: ClassVar[dict[str, tuple[str, timedelta]]] = {
        "10min": ("under 10 minutes", timedelta(minutes=10)),
        "1h": ("under an hour", timedelta(hours=1)),
        "1d": ("under a day", timedelta(days=1)),
        "7d": ("under a week", timedelta(days=7)),
        "over1h": ("over an hour", timedelta(hours=1)),
        "over1d": ("over a day", timedelta(days=1)),
    }

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, title) for name, (title, _) in self.AGES.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Message]) -> QuerySet[Message]:
        chosen = self.value()
        if chosen not in self.AGES:
            return queryset
        border = database_now() - self.AGES[chosen][1]
        return queryset.filter(accepted_at__lt=border) if chosen.startswith("over") else queryset.filter(accepted_at__gte=border)


class FailedFirst(ChangeList):
    """Unless a column is chosen, what failed comes first, then the rest, each newest first.

    Two walks along an index each; one ORDER BY over both would sort every row.
    """

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        if ORDER_VAR in self.params:
            return
        whole = self.show_all and self.can_show_all
        start = 0 if whole else (self.page_num - 1) * self.list_per_page
        self.result_list = failed_first(self.queryset, start, start + (self.list_max_show_all if whole else self.list_per_page))


def failed_first(rows: MessageQuerySet, start: int, stop: int) -> list[Message]:
    failed = rows.failed()
    ahead = failed.order_by().count()
    rest = rows.filter(reason=None)[max(start - ahead, 0) : max(stop - ahead, 0)]
    return [*failed[start:stop], *rest]


class AttemptInline(EngineOwnedInline):
    model = Attempt
    ordering = ("-number",)
    fields = ("number", "outcome", "shown_error", "owner", "epoch", "turn", "started_at", "finished_at")
    readonly_fields = fields
    verbose_name_plural = "attempts"

    @display(description="Error")
    def shown_error(self, obj: Attempt) -> SafeString:
        return in_a_line(obj.error, limit=500)


class InterventionInline(EngineOwnedInline):
    model = Intervention
    ordering = ("-at",)
    fields = ("verb", "shown_who", "shown_why", "at")
    readonly_fields = fields
    verbose_name_plural = "interventions"

    @display(description="Who")
    def shown_who(self, obj: Intervention) -> SafeString:
        return in_a_line(obj.who)

    @display(description="Why")
    def shown_why(self, obj: Intervention) -> SafeString:
        return in_a_line(obj.why, limit=500)


class ReasonDialog(BaseDialogForm):
    reason = forms.CharField(required=False, max_length=500, widget=UnfoldAdminTextInputWidget, help_text="Kept with the message.")


@admin.register(Message)
class MessageAdmin(WithClock):
    list_display = ("message_id", "shown_status", "shown_kind", "route", "tries", "shown_age", "next_attempt", "shown_error")
    list_display_links = ("message_id",)
    list_filter = (ByStatus, "transport", "kind", ("project", admin.RelatedOnlyFieldListFilter), ByAge)
    search_fields = ("message_id",)
    search_help_text = "A message id, or the agent id of its sender or target; whole, not a part"
    ordering = ("-id",)
    list_before_template = "admin/inbox_app/message/states.html"
    actions = ("retry_chosen", "withdraw_chosen",)
    actions_detail = ("retry", "withdraw",)
    inlines = (AttemptInline, InterventionInline)
    fieldsets = (
        (None, {"fields": ("message_id", "status_label", "reason", "shown_error_whole", "route", "kind", "transport", "maybe_delivered", "shown_answer", "project")}),
        ("Content", {"fields": ("shown_content", "shown_payload", "in_reply_to", "root_id", "hops")}),
        ("Tries", {"fields": ("attempts", "max_attempts", "losses", "deferrals", "redeliveries", "shown_lane")}),
        ("Times", {"fields": ("accepted_at", "available_at", "started_at", "settled_at", "valid_until")}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Message]:
        lane = Lane.objects.filter(key=OuterRef("lane"))
        lease, backs_off = lane.values("lease_until"), lane.filter(failures__gt=0, lease_owner=None).values("due_at")
        rows: QuerySet[Message] = super().get_queryset(request)
        return rows.annotate(lease_until=Subquery(lease), lane_due_at=Subquery(backs_off)).select_related("sender", "session")

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return FailedFirst

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Message], search_term: str
    ) -> tuple[QuerySet[Message], bool]:
        """Whole ids, so that each look is one along an index, however many rows there are."""
        if not (term := search_term.strip()):
            return queryset, False
        by_id = Q(project__in=Project.objects.values("pk"), message_id=term)
        to_it = Q(session=None, target=term) if term.startswith(REMOTE_PREFIX) else Q(session=term)
        return queryset.filter(by_id | Q(sender=term) | to_it), False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        context = {**(extra_context or {}), "states": console.states(now=database_now()), "chosen": request.GET.get("status", "")}
        return super().changelist_view(request, context)

    def get_actions_detail(self, request: HttpRequest, object_id: Any) -> list[Any]:
        """Only what would change something; who comes by a stale page is told why nothing did."""
        message = self.find_row(request, object_id)
        useful = {"failed": "inbox_app_message_retry", "pending": "inbox_app_message_withdraw"}.get(message.status if message else "")
        return [item for item in super().get_actions_detail(request, object_id) if item.action_name == useful]

    @display(description="Status", ordering="status", label=STATUS_COLORS)
    def shown_status(self, obj: Message) -> str:
        return state_of(obj)

    @display(description="Status")
    def status_label(self, obj: Message) -> SafeString:
        return label(state_of(obj), STATUS_COLORS[state_of(obj)])

    @display(description="Kind", ordering="kind")
    def shown_kind(self, obj: Message) -> str:
        return obj.kind.replace("_", " ")

    @display(description="From → to")
    def route(self, obj: Message) -> SafeString:
        sender = obj.sender_id or obj.sender_label or "system"
        return format_html("{} → {}", in_a_line(sender, limit=40), in_a_line(obj.session_id or obj.target, limit=40))

    @display(description="Tries", ordering="attempts")
    def tries(self, obj: Message) -> str:
        lost = f" +{obj.losses} lost" if obj.losses else ""
        return f"{obj.attempts}/{obj.max_attempts}{lost}"

    @display(description="Age", ordering="accepted_at")
    def shown_age(self, obj: Message) -> str:
        return age(obj.accepted_at, now=obj.seen_at)  # type: ignore[attr-defined]  # annotated by WithClock

    @display(description="Next try")
    def next_attempt(self, obj: Message) -> str:
        if obj.status != Message.Status.PENDING:
            return "—"
        now: datetime = obj.seen_at  # type: ignore[attr-defined]
        at = max(obj.available_at, obj.lane_due_at or obj.available_at)  # type: ignore[attr-defined]  # annotated above
        return age(at, now=now) if at > now else "now"

    @display(description="Reason, last error")
    def shown_error(self, obj: Message) -> SafeString:
        return in_a_line(": ".join(filter(None, (obj.reason, obj.last_error))) or "—", limit=60)

    @display(description="Last error")
    def shown_error_whole(self, obj: Message) -> SafeString | str:
        return whole(obj.last_error) if obj.last_error else "—"

    @display(description="Content")
    def shown_content(self, obj: Message) -> SafeString:
        return whole(obj.content)

    @display(description="Payload")
    def shown_payload(self, obj: Message) -> SafeString | str:
        return as_json(obj.payload) if obj.payload else "—"

    @display(description="Peer's answer")
    def shown_answer(self, obj: Message) -> SafeString | str:
        return as_json(obj.peer_answer) if obj.peer_answer else "—"

    @display(description="Lane")
    def shown_lane(self, obj: Message) -> SafeString | str:
        if obj.lane is None:
            return "— (settled)"
        return format_html('<a href="{}">{}</a>', reverse("admin:sessions_app_lane_change", args=[quote(obj.lane)]), obj.lane)

    @action(
        description="Retry",
        permissions=["act"],
        icon="replay",
        dialog={
            "title": "Retry this message?",
            "description": "It waits for its target again, with fresh attempts and a fresh validity.",
            "form_class": ReasonDialog,
            "form_submit_text": "Retry",
        },
    )
    def retry(self, request: HttpRequest, form: ReasonDialog, object_id: str) -> HttpResponse:
        return self._one(request, object_id, lambda message: self._retry(request, message, form.cleaned_data["reason"]), "Will be tried again.")

    @action(
        description="Withdraw",
        permissions=["act"],
        icon="undo",
        dialog={
            "title": "Withdraw this message?",
            "description": "It will not be delivered: it fails as withdrawn. Only a message that waits can be withdrawn.",
            "form_class": ReasonDialog,
            "form_submit_text": "Withdraw",
        },
    )
    def withdraw(self, request: HttpRequest, form: ReasonDialog, object_id: str) -> HttpResponse:
        return self._one(request, object_id, lambda message: self._withdraw(request, message, form.cleaned_data["reason"]), "Withdrawn.")

    @action(description="Retry", permissions=["act"])
    def retry_chosen(self, request: HttpRequest, queryset: QuerySet[Message]) -> None:
        self.act_on_chosen(request, queryset.order_by("id"), lambda message: self._retry(request, message, ""), done="Will be tried again")

    @action(description="Withdraw", permissions=["act"])
    def withdraw_chosen(self, request: HttpRequest, queryset: QuerySet[Message]) -> None:
        self.act_on_chosen(request, queryset.order_by("id"), lambda message: self._withdraw(request, message, ""), done="Withdrawn")

    def _one(self, request: HttpRequest, object_id: str, act: Any, done: str) -> HttpResponse:
        message = self.row_of(request, object_id)
        try:
            act(message)
        except SuzentError as refusal:
            self.message_user(request, f"Nothing was changed. {refusal.detail}", messages.WARNING)
        else:
            self.message_user(request, done)
        return leave_dialog(request, reverse("admin:inbox_app_message_change", args=[object_id]))

    def _retry(self, request: HttpRequest, message: Message, reason: str) -> None:
        transitions.redeliver(message, who=operator_name(request), now=database_now(), reason=reason)

    def _withdraw(self, request: HttpRequest, message: Message, reason: str) -> None:
        transitions.withdraw(message, who=operator_name(request), by_sender=False, now=database_now(), reason=reason)


def state_of(message: Message) -> str:
    """The status; but what is in processing under a lease that has passed is stale, not running."""
    if message.status != Message.Status.PROCESSING:
        return message.status
    until, now = message.lease_until, message.seen_at  # type: ignore[attr-defined]  # annotated by MessageAdmin
    return "processing" if until and until > now else "stale"


@admin.register(Wake)
class WakeAdmin(EngineOwned):
    list_display = ("name", "queued_at", "answered_at")


def waiting_in(lane: Any) -> Any:
    """How many messages wait in the lane named by an expression, for one page of rows."""
    unsettled = Message.objects.unsettled().filter(lane=lane).order_by().values("lane").annotate(n=Count("pk")).values("n")
    return Coalesce(Subquery(unsettled), 0, output_field=IntegerField())


class SessionsWithMail(SessionAdmin):
    list_display = (*SessionAdmin.list_display, "waiting")
    change_form_outer_after_template = "admin/inbox_app/session/page.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Session]:
        return super().get_queryset(request).annotate(mail=waiting_in(Concat(Value("agent:"), OuterRef("agent_id"))))

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> HttpResponse:
        if (session := kwargs.get("obj")) is not None:
            context["family"] = family_of(session)
        return super().render_change_form(request, context, *args, **kwargs)

    @display(description="Unsettled mail")
    def waiting(self, obj: Session) -> SafeString | str:
        return _mail_of(obj.agent_id, obj.mail)  # type: ignore[attr-defined]


class LanesWithMail(LaneAdmin):
    list_display = (*LaneAdmin.list_display, "waiting")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Lane]:
        return super().get_queryset(request).annotate(mail=waiting_in(OuterRef("key")))  # type: ignore[no-any-return]

    @display(description="Unsettled mail")
    def waiting(self, obj: Lane) -> SafeString | str:
        return _mail_of(obj.key.removeprefix("agent:"), obj.mail)  # type: ignore[attr-defined]


def _mail_of(agent_id: str, number: int) -> SafeString | str:
    if not number:
        return "0"
    page = reverse("admin:inbox_app_message_changelist", query={"q": agent_id, "status": "unsettled"})
    return format_html('<a href="{}">{}</a>', page, number)


for model, page in ((Session, SessionsWithMail), (Lane, LanesWithMail)):
    admin.site.unregister(model)
    admin.site.register(model, page)
