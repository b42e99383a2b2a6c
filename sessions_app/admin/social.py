"""Channels to other platforms, who may write there, who asks to, and the replies that are to be sent."""

from __future__ import annotations

from typing import Any, cast

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.safestring import SafeString
from unfold.decorators import action, display
from unfold.forms import BaseDialogForm
from unfold.widgets import UnfoldAdminPasswordWidget, UnfoldAdminTextInputWidget

from sessions_app.admin.clock import WithClock, moment
from sessions_app.clock import database_now
from sessions_app.models import PairingRequest, SocialChannel, SocialIdentity, SocialRefusal, SocialReply
from sessions_app.social import channels, identities, outbox
from suzent_site.console import ConsoleAdmin, EngineOwnedInline, RefusableForm, leave_dialog
from suzent_site.errors import SuzentError
from suzent_site.shown import as_json, in_a_line, whole

ABOUT = ("runtime", "secret_variable", "url", "own_id", "pairing", "pairing_text", "active")


class ChannelForm(RefusableForm):
    secret = forms.CharField(
        required=False, strip=True, max_length=channels.SECRET_LIMIT, widget=UnfoldAdminPasswordWidget(attrs={"autocomplete": "new-password"}),
        help_text="Telegram: the bot's token. Webhook: what the platform signs with. Stored sealed and never shown; empty leaves it as it is.",
    )  # fmt: skip

    class Meta:
        model = SocialChannel
        fields = ("name", "driver", "project", *ABOUT)


class RefusalInline(EngineOwnedInline):
    model = SocialRefusal
    fields = ("reason", "count", "last_at")
    readonly_fields = fields
    ordering = ("-last_at",)


@admin.register(SocialChannel)
class ChannelAdmin(ConsoleAdmin):
    """Name, driver and project are fixed once the channel is there: its sessions carry them."""

    form = ChannelForm
    list_display = ("name", "driver", "project", "active", "pairing", "has_secret", "shown_trouble")
    list_filter = ("driver", "active")
    search_fields = ("name__startswith",)
    kept_back = frozenset({"secret_sealed"})
    ordering = ("name",)
    inlines = (RefusalInline,)

    def get_fields(self, request: HttpRequest, obj: SocialChannel | None = None) -> tuple[str, ...]:
        fixed = ("name", "driver", "project")
        if obj is not None and not self.has_change_permission(request, obj):
            return (*fixed, *ABOUT, "has_secret", "whole_trouble")
        return (*fixed, "secret", *ABOUT) if obj is None else (*fixed, "has_secret", "secret", *ABOUT, "whole_trouble")

    def get_readonly_fields(self, request: HttpRequest, obj: SocialChannel | None = None) -> tuple[str, ...]:
        return ("name", "driver", "project", "has_secret", "whole_trouble") if obj else ()

    def save_model(self, request: HttpRequest, obj: SocialChannel, form: forms.ModelForm[SocialChannel], change: bool) -> None:
        about = cast(Any, {name: form.cleaned_data[name] for name in (*ABOUT, "secret") if name in form.cleaned_data})
        if change:
            channels.change_channel(obj, **about)
        else:
            channels.create_channel(obj.name, driver=obj.driver, project=obj.project, now=database_now(), **about)

    @display(description="Has a secret", boolean=True)
    def has_secret(self, obj: SocialChannel) -> bool:
        """Without one nothing passes."""
        try:
            return bool(channels.secret_of(obj))
        except SuzentError:
            return False

    @display(description="Trouble")
    def shown_trouble(self, obj: SocialChannel) -> SafeString:
        return in_a_line(obj.trouble or "—")

    @display(description="Trouble")
    def whole_trouble(self, obj: SocialChannel) -> SafeString:
        return whole(obj.trouble or "None.")


class IdentityForm(RefusableForm):
    def clean(self) -> dict[str, Any]:
        """The row of somebody who is there already is in nobody's way: it is the one that is judged."""
        cleaned = super().clean() or {}
        there = SocialIdentity.objects.filter(channel=cleaned.get("channel"), sender_id=cleaned.get("sender_id", "")).first()
        self.instance = there or self.instance
        return cleaned


@admin.register(SocialIdentity)
class IdentityAdmin(ConsoleAdmin):
    """Adding somebody who is there already judges them anew."""

    list_display = ("shown_sender", "channel", "verdict", "source", "shown_label", "created_at")
    list_filter = ("channel", "verdict", "source")
    search_fields = ("=sender_id",)
    search_help_text = "A sender id"
    ordering = ("channel", "sender_id")
    fields = ("channel", "sender_id", "verdict", "label")
    form = IdentityForm
    actions = ("remove_chosen",)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return obj is None and super().has_change_permission(request, obj)

    def save_model(self, request: HttpRequest, obj: SocialIdentity, form: forms.ModelForm[SocialIdentity], change: bool) -> None:
        verdict = SocialIdentity.Verdict(obj.verdict)
        made = identities.judge(obj.channel, obj.sender_id, verdict=verdict, label=obj.label, now=database_now())
        obj.pk = made.pk

    @display(description="Sender id", ordering="sender_id")
    def shown_sender(self, obj: SocialIdentity) -> SafeString:
        return in_a_line(obj.sender_id)

    @display(description="Label")
    def shown_label(self, obj: SocialIdentity) -> SafeString:
        return in_a_line(obj.label)

    @action(description="Take off the list", permissions=["act"])
    def remove_chosen(self, request: HttpRequest, queryset: QuerySet[SocialIdentity]) -> None:
        self.act_on_chosen(request, queryset, identities.remove, done="Taken off the list")


class CodeDialog(BaseDialogForm):
    code = forms.CharField(
        max_length=20, widget=UnfoldAdminTextInputWidget(attrs={"autocomplete": "off"}), help_text="The six characters that this person tells you."
    )


@admin.register(PairingRequest)
class PairingRequestAdmin(WithClock):
    list_display = ("shown_sender", "channel", "shown_name", "asked", "ends", "wrong_tries")
    list_filter = ("channel",)
    kept_back = frozenset({"digest"})
    list_select_related = ("channel",)
    ordering = ("-created_at",)
    fields = ("shown_sender", "channel", "shown_name", "asked", "ends", "wrong_tries")
    readonly_fields = fields
    actions_detail = ("approve",)

    @display(description="Sender id")
    def shown_sender(self, obj: PairingRequest) -> SafeString:
        return in_a_line(obj.sender_id)

    @display(description="Calls themselves")
    def shown_name(self, obj: PairingRequest) -> SafeString:
        return in_a_line(obj.sender_name)

    @display(description="Asked", ordering="created_at")
    def asked(self, obj: PairingRequest) -> str:
        return moment(obj.created_at, obj)

    @display(description="Ends", ordering="expires_at")
    def ends(self, obj: PairingRequest) -> str:
        return moment(obj.expires_at, obj)

    @action(
        description="Let in",
        permissions=["act"],
        icon="person_add",
        dialog={
            "title": "Let this person in?",
            "description": "Ask them for the code that they were given. A name in a chat proves nothing.",
            "form_class": CodeDialog,
            "form_submit_text": "Let in",
        },
    )
    def approve(self, request: HttpRequest, form: CodeDialog, object_id: str) -> HttpResponse:
        asked = self.row_of(request, object_id)
        try:
            identities.approve(asked, form.cleaned_data["code"], now=database_now())
        except SuzentError as refusal:
            self.message_user(request, refusal.detail, messages.ERROR)
            return leave_dialog(request, reverse("admin:sessions_app_pairingrequest_changelist"))
        self.message_user(request, "They are on the list now.")
        return leave_dialog(request, reverse("admin:sessions_app_socialidentity_changelist"))


@admin.register(SocialReply)
class ReplyAdmin(WithClock):
    list_display = ("id", "channel", "session", "shown_text", "shown_status", "parts_sent", "written", "next", "shown_error")
    list_filter = ("status", "channel", "kind")
    search_fields = ("=session__agent_id", "=sender_id")
    search_help_text = "An agent id or a sender id"
    list_select_related = ("session", "channel")
    ordering = ("-id",)
    fields = (
        "channel", "session", "kind", "sender_id", "shown_route", "whole_text", "status", "parts_sent", "repeated", "tries", "next", "written",
        "settled_at", "whole_error",
    )  # fmt: skip
    readonly_fields = ("shown_route", "whole_text", "whole_error", "next", "written")
    actions = ("send_chosen_again",)

    @display(description="Status", label={
        "pending": "default", "sending": "info", "sent": "success", "uncertain": "warning", "failed": "danger", "withheld": "warning",
    })  # fmt: skip
    def shown_status(self, obj: SocialReply) -> str:
        return obj.status

    @display(description="Text")
    def shown_text(self, obj: SocialReply) -> SafeString:
        return in_a_line(_text_of(obj), limit=60)

    @display(description="Text")
    def whole_text(self, obj: SocialReply) -> SafeString:
        return whole(_text_of(obj))

    @display(description="Route")
    def shown_route(self, obj: SocialReply) -> SafeString:
        return as_json(obj.route)

    @display(description="Written", ordering="created_at")
    def written(self, obj: SocialReply) -> str:
        return moment(obj.created_at, obj)

    @display(description="Next try")
    def next(self, obj: SocialReply) -> str:
        return "—" if obj.settled_at else moment(obj.next_at, obj)

    @display(description="Error")
    def shown_error(self, obj: SocialReply) -> SafeString:
        return in_a_line(obj.last_error, limit=60)

    @display(description="Error")
    def whole_error(self, obj: SocialReply) -> SafeString:
        return whole(obj.last_error)

    @action(description="Send again", permissions=["act"])
    def send_chosen_again(self, request: HttpRequest, queryset: QuerySet[SocialReply]) -> None:
        self.act_on_chosen(request, queryset, lambda reply: outbox.send_again(reply, now=database_now()), done="Will be sent again")


def _text_of(reply: SocialReply) -> str:
    """The code of a pairing is for the person who was given it."""
    return "A code, for a stranger." if reply.kind == SocialReply.Kind.PAIRING else reply.text
