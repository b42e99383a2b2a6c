"""The console's pages for devices: who asks to drive us, who may, and whom we may drive. Tokens show as hints only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.safestring import SafeString
from unfold.decorators import action, display
from unfold.forms import BaseDialogForm
from unfold.widgets import UnfoldAdminCheckboxSelectMultipleWidget, UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from inbox_app.tools import TOOLS
from peers_app import discovery, grants, installation, pairing
from peers_app.models import NAME_LENGTH, URL_LENGTH, DeviceGrant, GrantRequest, Peer
from sessions_app.admin.clock import WithClock, moment
from sessions_app.clock import database_now
from sessions_app.models import Project
from suzent_site.console import PlainDialog, RefusableForm, leave_dialog, operator_name
from suzent_site.errors import SuzentError
from suzent_site.shown import age, in_a_line

REACH = "admin/peers_app/reach.html"
FROM_OUTSIDE = "192.0.2.1"  # an address of nobody, kept for examples: where a packet to there would leave from is all that is asked
COLORS = {
    "pending": "warning", "approved": "success", "denied": "default", "expired": "default", "active": "success", "ready": "success",
    "asking": "info", "offline": "warning", "paused": "warning", "revoked": "danger", "off": "default",
}  # fmt: skip


def _runtimes() -> list[tuple[str, str]]:
    return [(name, name) for name in settings.RUNTIMES]


def _tools() -> list[tuple[str, str]]:
    return [(name, name) for name in TOOLS]


class RightsDialog(BaseDialogForm):
    """What a device's sessions may do here."""

    runtime = forms.ChoiceField(choices=_runtimes, initial="echo", widget=UnfoldAdminSelectWidget, help_text="What answers in its sessions.")
    tools = forms.MultipleChoiceField(
        choices=_tools, required=False, widget=UnfoldAdminCheckboxSelectMultipleWidget,
        help_text="Tools of ours that its sessions may use. Ticked, the device reaches the agents of the project through them.",
    )  # fmt: skip


class ApprovalDialog(RightsDialog):
    project = forms.ModelChoiceField(
        queryset=Project.objects.filter(archived_at=None), widget=UnfoldAdminSelectWidget, help_text="Where its sessions live."
    )
    replace = forms.ModelChoiceField(
        queryset=DeviceGrant.objects.filter(replaced_by=None), required=False, widget=UnfoldAdminSelectWidget, empty_label="add as a new device",
        help_text="Only if you know that it is this device again: that grant ends, and its project and rights go over.",
    )  # fmt: skip
    field_order: ClassVar[list[str]] = ["project", "replace", "runtime", "tools"]


class GrantDialog(RightsDialog):
    display_name = forms.CharField(max_length=NAME_LENGTH, required=False, widget=UnfoldAdminTextInputWidget, help_text="Empty: it stays as it is.")
    scope = forms.ChoiceField(choices=DeviceGrant.Scope.choices, initial="agent", widget=UnfoldAdminSelectWidget, help_text="Read: only its own session.")
    field_order: ClassVar[list[str]] = ["display_name", "scope", "runtime", "tools"]


class DevicePage(WithClock):
    """Read-only rows; each action calls one verb and says what became of it."""

    list_before_template = REACH
    said: ClassVar[str]  # above the list: whose rows these are

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        above = {"said": self.said, "reach": installation.our_address(seen_from=FROM_OUTSIDE)}
        return super().changelist_view(request, {**(extra_context or {}), **above})

    def one(self, request: HttpRequest, object_id: str, act: Callable[[Any], object], done: str) -> HttpResponse:
        """Call a verb for a row; what it refuses is told."""
        row = self.row_of(request, object_id)
        try:
            act(row)
        except SuzentError as refusal:
            self.message_user(request, refusal.detail, messages.ERROR)
        else:
            self.log_change(request, row, done)
            self.message_user(request, done)
        return leave_dialog(request, reverse(f"admin:peers_app_{self.opts.model_name}_changelist"))

    def only(self, request: HttpRequest, object_id: Any, useful: dict[str, tuple[str, ...]]) -> list[Any]:
        """The actions that would change something in the state that the row is in."""
        row = self.find_row(request, object_id)
        names = {f"peers_app_{self.opts.model_name}_{name}" for name in useful.get(row.state if row else "", ())}
        return [item for item in super().get_actions_detail(request, object_id) if item.action_name in names]

    @display(description="State", label=COLORS)
    def shown_state(self, obj: Any) -> str:
        return str(obj.state)


def _asks(title: str, description: str, submit: str, form: type[BaseDialogForm] = PlainDialog) -> dict[str, Any]:
    return {"title": title, "description": description, "form_class": form, "form_submit_text": submit}


@admin.register(GrantRequest)
class RequestAdmin(DevicePage):
    said = "Devices that ask to drive us."
    list_display = ("request_id", "shown_name", "shown_state", "came_from", "controller_addr", "claims", "asked_at")
    list_filter = ("state",)
    ordering = ("-created_at",)
    actions_detail = ("approve", "deny")
    fields = (
        "request_id", "shown_name", "shown_state", "came_from", "controller_addr", "claims", "created_at", "expires_at", "answered_at",
        "answered_by", "grant", "served_at",
    )  # fmt: skip

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """For those who may answer: who knows a request's id can fetch its token before the device does."""
        return self.has_act_permission(request)

    def get_actions_detail(self, request: HttpRequest, object_id: Any) -> list[Any]:
        return self.only(request, object_id, {"pending": ("approve", "deny")})

    @display(description="State", label=COLORS)
    def shown_state(self, obj: GrantRequest) -> str:
        over = obj.state == GrantRequest.State.PENDING and obj.expires_at <= obj.seen_at  # type: ignore[attr-defined]  # by WithClock
        return "expired" if over else obj.state

    @display(description="Calls itself")
    def shown_name(self, obj: GrantRequest) -> SafeString:
        return in_a_line(obj.controller_name, limit=60)

    @display(description="Claims to be (unproven)")
    def claims(self, obj: GrantRequest) -> SafeString | str:
        return in_a_line(", ".join(grants.claimed_by(obj))) if grants.claimed_by(obj) else "—"

    @display(description="Asked", ordering="created_at")
    def asked_at(self, obj: GrantRequest) -> str:
        return moment(obj.created_at, obj)

    @action(description="Approve", permissions=["act"], icon="check", dialog=_asks(
        "Let this device drive us?", "It gets a session of its own and reaches nothing else. Compare name, address and what it claims with what you expect.",
        "Approve", ApprovalDialog,
    ))  # fmt: skip
    def approve(self, request: HttpRequest, form: ApprovalDialog, object_id: str) -> HttpResponse:
        chosen, who = form.cleaned_data, operator_name(request)
        return self.one(request, object_id, lambda row: grants.approve(
            row, project=chosen["project"], replace=chosen["replace"], runtime=chosen["runtime"], tools=chosen["tools"], who=who, now=database_now(),
        ), "Approved; the device fetches its token itself.")  # fmt: skip

    @action(description="Deny", permissions=["act"], icon="block", dialog=_asks("Deny this request?", "The device is told. It may ask again.", "Deny"))
    def deny(self, request: HttpRequest, form: PlainDialog, object_id: str) -> HttpResponse:
        who = operator_name(request)
        return self.one(request, object_id, lambda row: grants.deny(row, who=who, now=database_now()), "Denied.")


@admin.register(DeviceGrant)
class GrantAdmin(DevicePage):
    said = "Devices that may drive us."
    list_display = ("device_id", "shown_name", "shown_state", "scope", "project", "runtime", "hint", "callback_url", "used")
    list_filter = ("state", "scope", ("project", admin.RelatedOnlyFieldListFilter))
    list_select_related = ("project",)
    search_fields = ("device_id", "display_name__icontains")
    kept_back = frozenset({"digest"})
    ordering = ("-created_at",)
    actions_detail = ("change_rights", "pause", "resume", "rotate", "revoke")
    fields = (
        "device_id", "shown_name", "shown_state", "scope", "project", "runtime", "tools", "hint", "callback_url", "node_identity", "replaces",
        "created_at", "created_by", "last_used_at", "ended_at",
    )  # fmt: skip

    def get_actions_detail(self, request: HttpRequest, object_id: Any) -> list[Any]:
        live = ("change_rights", "rotate", "revoke")
        return self.only(request, object_id, {"active": (*live, "pause"), "paused": (*live, "resume")})

    @display(description="Name")
    def shown_name(self, obj: DeviceGrant) -> SafeString:
        return in_a_line(obj.display_name, limit=60)

    @display(description="Last used", ordering="last_used_at")
    def used(self, obj: DeviceGrant) -> str:
        return f"{age(obj.last_used_at, now=obj.seen_at)} ago" if obj.last_used_at else "never"  # type: ignore[attr-defined]

    @action(description="Rights", permissions=["act"], icon="tune", dialog=_asks(
        "What may this device do?", "From its next turn on, in all its sessions.", "Save", GrantDialog,
    ))  # fmt: skip
    def change_rights(self, request: HttpRequest, form: GrantDialog, object_id: str) -> HttpResponse:
        chosen = form.cleaned_data
        return self.one(request, object_id, lambda grant: grants.allow(
            grant, name=chosen["display_name"], scope=DeviceGrant.Scope(chosen["scope"]), runtime=chosen["runtime"], tools=chosen["tools"],
            now=database_now(),
        ), "Changed.")  # fmt: skip

    @action(description="Pause", permissions=["act"], icon="pause", dialog=_asks("Pause this device?", "Its token is refused until you resume it.", "Pause"))
    def pause(self, request: HttpRequest, form: PlainDialog, object_id: str) -> HttpResponse:
        return self.one(request, object_id, grants.pause, "Paused.")

    @action(description="Resume", permissions=["act"], icon="play_arrow", dialog=_asks("Resume this device?", "Its token is good again.", "Resume"))
    def resume(self, request: HttpRequest, form: PlainDialog, object_id: str) -> HttpResponse:
        return self.one(request, object_id, grants.resume, "Resumed.")

    @action(description="Revoke", permissions=["act"], icon="delete_forever", dialog=_asks(
        "Revoke this device?", "For good and at once: it has to ask again. Its sessions stay.", "Revoke",
    ))  # fmt: skip
    def revoke(self, request: HttpRequest, form: PlainDialog, object_id: str) -> HttpResponse:
        return self.one(request, object_id, lambda grant: grants.revoke(grant, now=database_now()), "Revoked.")

    @action(description="Rotate", permissions=["act"], url_path="rotate", icon="autorenew")
    def rotate(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Asks by GET, acts by POST; a token that has to be carried over is in this one page only."""
        grant = self.row_of(request, object_id)
        context = {**self.admin_site.each_context(request), "title": "New token", "opts": self.opts, "grant": grant}
        if request.method == "POST":
            context |= self._rotated(request, grant)
        return TemplateResponse(request, "admin/peers_app/rotated.html", context, headers={"Cache-Control": "no-store"})

    def _rotated(self, request: HttpRequest, grant: DeviceGrant) -> dict[str, Any]:
        try:
            secret = pairing.rotate(grant, now=database_now())
        except SuzentError as refusal:
            return {"refusal": refusal.detail}
        self.log_change(request, grant, "Rotated its token.")
        return {"rotated": True, "token": secret}


class AskForm(RefusableForm):
    """``base_url`` is the address to ask at."""

    base_url = forms.CharField(
        max_length=URL_LENGTH, label="Address", widget=UnfoldAdminTextInputWidget, help_text="http(s)://host:port of the device. Its operator approves."
    )

    class Meta:
        model = Peer
        fields = ("base_url", "project")

    def validate_unique(self) -> None:
        """Asking again at an address is for pairing.ask to judge."""

    def validate_constraints(self) -> None:
        """The row that this form would make is never saved."""


@admin.register(Peer)
class PeerAdmin(DevicePage):
    said = "Devices that we may drive: agents write to peer:<id>."
    form = AskForm
    list_display = ("shown_name", "agent_id", "shown_state", "base_url", "project", "proof", "contact", "shown_error")
    list_filter = ("state", ("project", admin.RelatedOnlyFieldListFilter))
    list_select_related = ("project",)
    search_fields = ("peer_id", "name__icontains", "base_url__icontains")
    kept_back = frozenset({"request_id", "sealed_token", "offered_token"})
    ordering = ("-created_at",)
    autocomplete_fields = ("project",)
    actions_list = ("look_around",)
    actions_detail = ("pause", "resume", "offer", "remove")

    def get_fields(self, request: HttpRequest, obj: Peer | None = None) -> tuple[str, ...]:
        told = (
            "shown_name", "agent_id", "shown_state", "base_url", "project", "proof", "hint", "node_identity", "reverse_grant", "offered_url",
            "created_at", "last_contact_at", "shown_error",
        )  # fmt: skip
        return ("base_url", "project") if obj is None else told

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return self.has_act_permission(request)

    def save_model(self, request: HttpRequest, obj: Peer, form: forms.ModelForm[Peer], change: bool) -> None:
        asked = pairing.ask(form.cleaned_data["base_url"], project=form.cleaned_data["project"], now=database_now())
        obj.peer_id, obj.name = asked.peer_id, asked.name

    def get_actions_detail(self, request: HttpRequest, object_id: Any) -> list[Any]:
        in_use, held = ("pause", "resume", "offer", "remove"), ("resume", "remove")
        return self.only(request, object_id, {
            "ready": in_use, "offline": in_use, "paused": held, "revoked": held, "off": held, "asking": ("remove",),
        })  # fmt: skip

    @action(description="Look around", permissions=["act"], url_path="around", icon="radar")
    def look_around(self, request: HttpRequest) -> HttpResponse:
        """Takes the seconds that it listens; changes nothing."""
        context = {**self.admin_site.each_context(request), "title": "Devices on the local network", "opts": self.opts}
        try:
            context["found"] = discovery.find()
        except SuzentError as refusal:
            context["refusal"] = refusal.detail
        return TemplateResponse(request, "admin/peers_app/around.html", context)

    @display(description="Name")
    def shown_name(self, obj: Peer) -> SafeString:
        return in_a_line(obj.name, limit=60)

    @display(description="Proof", label={"verified": "success", "unverified": "default"})
    def proof(self, obj: Peer) -> str:
        return "verified" if obj.verified else "unverified"

    @display(description="Last contact", ordering="last_contact_at")
    def contact(self, obj: Peer) -> str:
        return f"{age(obj.last_contact_at, now=obj.seen_at)} ago" if obj.last_contact_at else "never"  # type: ignore[attr-defined]

    @display(description="Last error")
    def shown_error(self, obj: Peer) -> SafeString:
        return in_a_line(obj.last_error)

    @action(description="Pause", permissions=["act"], icon="pause", dialog=_asks("Pause this peer?", "Its mail waits here until you resume it.", "Pause"))
    def pause(self, request: HttpRequest, form: PlainDialog, object_id: str) -> HttpResponse:
        return self.one(request, object_id, lambda peer: pairing.pause(peer, now=database_now()), "Paused.")

    @action(description="Resume", permissions=["act"], icon="play_arrow", dialog=_asks(
        "Use this peer?", "Its mail goes out. If it has offered an address or a token, that is what is used from now on.", "Use it",
    ))  # fmt: skip
    def resume(self, request: HttpRequest, form: PlainDialog, object_id: str) -> HttpResponse:
        return self.one(request, object_id, lambda peer: pairing.resume(peer, now=database_now()), "In use.")

    @action(description="Let it drive us", permissions=["act"], icon="swap_horiz", dialog=_asks(
        "Let this peer drive us too?", "It gets a grant and a session of its own here, and is told its token.", "Offer",
    ))  # fmt: skip
    def offer(self, request: HttpRequest, form: PlainDialog, object_id: str) -> HttpResponse:
        who = operator_name(request)
        return self.one(request, object_id, lambda peer: pairing.offer(peer, who=who, now=database_now()), "Offered.")

    @action(description="Remove", permissions=["act"], icon="delete_forever", dialog=_asks(
        "Part from this peer?", "For good, both ways: its waiting mail fails as target_gone, and its grant here ends.", "Remove",
    ))  # fmt: skip
    def remove(self, request: HttpRequest, form: PlainDialog, object_id: str) -> HttpResponse:
        return self.one(request, object_id, lambda peer: pairing.remove(peer, now=database_now()), "Removed.")
