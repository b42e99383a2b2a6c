"""What every page of the operators' console shares.

The engine owns its rows: a page shows them and an action calls a verb of the engine. No form writes a row itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import unquote
from django.core.exceptions import SuspiciousOperation
from django.core.paginator import Paginator
from django.db import models
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.templatetags.static import static
from django.utils.functional import cached_property
from unfold.admin import ModelAdmin, TabularInline
from unfold.forms import BaseDialogForm

from suzent_site.errors import SuzentError

COUNTED = 10_000  # rows: counting a million for the foot of a page would take longer than the page
AT_ONCE = 500  # rows of one action: each is a transaction of its own, and a browser waits for all of them


class AtLeast(int):
    """A count that stopped counting: it reads ``10,000+``, never as the number itself."""

    def __str__(self) -> str:
        return f"{int(self):,}+"


def counted(rows: Any) -> int:
    """The exact number up to COUNTED, else AtLeast(COUNTED)."""
    number: int = rows.order_by()[: COUNTED + 1].count()
    return AtLeast(COUNTED) if number > COUNTED else number


class CappedPaginator(Paginator):  # type: ignore[type-arg]  # generic in the stubs only
    """Pages over the first rows; whoever needs more narrows by filter or search."""

    @cached_property
    def count(self) -> int:
        return counted(self.object_list)


class JSONText(forms.JSONField):
    """What is shown again after a refusal can be sent: half of a surrogate pair stays the escape that it came as."""

    def prepare_value(self, value: Any) -> Any:
        shown = super().prepare_value(value)
        return re.sub("[\ud800-\udfff]", lambda half: f"\\u{ord(half[0]):04x}", shown) if isinstance(shown, str) else shown


class _OwnTransactions(admin.ModelAdmin):  # type: ignore[type-arg]
    """Django wraps a form's page in a transaction; a verb of the engine has its own, and that one must be outermost."""

    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        _refuse_nul([object_id or "", *_values(request)])
        try:
            return self._changeform_view(request, object_id, form_url, extra_context)  # type: ignore[attr-defined,no-any-return]
        except SuzentError as refusal:
            request.refusal = refusal  # type: ignore[attr-defined]  # the form shows it, see RefusableForm
            return self._changeform_view(request, object_id, form_url, extra_context)  # type: ignore[attr-defined,no-any-return]


class ConsoleAdmin(ModelAdmin, _OwnTransactions):
    """The base of every page of ours: capped counts, no deletion, verbs in transactions of their own."""

    formfield_overrides: ClassVar[dict[type[models.Field[Any, Any]], dict[str, Any]]] = {models.JSONField: {"form_class": JSONText}}
    paginator = CappedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER  # a count beside every filter would read every row
    list_per_page = 100
    list_filter_sheet = False
    list_fullwidth = True
    actions_on_bottom = False
    kept_back: ClassVar[frozenset[str]] = frozenset()  # columns that no page shows: a filter in the address would tell them letter by letter

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        _refuse_nul(_values(request))
        return super().changelist_view(request, extra_context)

    def history_view(self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        _refuse_nul([object_id])
        return super().history_view(request, object_id, extra_context)

    def get_form(self, request: HttpRequest, obj: Model | None = None, change: bool = False, **kwargs: Any) -> type[forms.ModelForm[Any]]:
        form: type[forms.ModelForm[Any]] = super().get_form(request, obj, change, **kwargs)
        return type(form.__name__, (form,), {"refusal": getattr(request, "refusal", None)})

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        return lookup.partition("__")[0] not in self.kept_back and super().lookup_allowed(lookup, value, request)

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_act_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """May call the engine's verbs: whoever has Django's permission to change these rows."""
        return request.user.has_perm(f"{self.opts.app_label}.change_{self.opts.model_name}")

    def find_row(self, request: HttpRequest, object_id: str) -> Any:
        """The row that an address of the console names, or None."""
        _refuse_nul([object_id])
        return self.get_object(request, unquote(object_id))

    def row_of(self, request: HttpRequest, object_id: str) -> Any:
        """The same, but raises Http404."""
        if (row := self.find_row(request, object_id)) is None:
            raise Http404
        return row

    def act_on_chosen(self, request: HttpRequest, rows: QuerySet[Any], act: Callable[[Any], object], *, done: str) -> None:
        """Call one verb for every chosen row and say what became of them.

        A row that the verb refuses (SuzentError) or leaves alone (False) is skipped; so is one that has left the list
        since the page was loaded.
        """
        chosen = list(rows[:AT_ONCE])
        changed = sum(_was_done(act, row) for row in chosen)
        asked = counted(rows) if request.POST.get("select_across") == "1" else len(set(request.POST.getlist(ACTION_CHECKBOX_NAME)))
        self.message_user(request, _outcome(done, changed, max(asked, len(chosen))), _level(changed))


def _was_done(act: Callable[[Any], object], row: Any) -> bool:
    try:
        return act(row) is not False
    except SuzentError:
        return False


def _level(changed: int) -> int:
    return messages.SUCCESS if changed else messages.WARNING


def _outcome(done: str, changed: int, asked: int) -> str:
    said = [f"{done}: {changed}."]
    if skipped := min(asked, AT_ONCE) - changed:
        said.append(f"Skipped: {skipped}, not in a state that allows it (any more).")
    if asked > AT_ONCE:
        said.append(f"Left for another time: {AtLeast(asked - AT_ONCE) if isinstance(asked, AtLeast) else asked - AT_ONCE}, since {AT_ONCE} go at once.")
    return " ".join(said)


class RefusableForm(forms.ModelForm):  # type: ignore[type-arg]
    """A form whose save is a verb of the engine: what the verb refuses is shown beside its field."""

    refusal: SuzentError | None = None

    def clean(self) -> dict[str, Any] | None:
        cleaned = super().clean()
        if self.refusal:
            field = self.refusal.extra.get("field", "").partition(".")[0]  # config.batch: something within a field
            self.add_error(field if field in self.fields else None, self.refusal.detail)
        return cleaned


class EngineOwned(ConsoleAdmin):
    """Rows that only the engine writes: to be read."""

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        name = self.opts.model_name
        return any(request.user.has_perm(f"{self.opts.app_label}.{verb}_{name}") for verb in ("view", "change"))


class EngineOwnedInline(TabularInline):
    """Rows of the engine below the row they belong to: to be read by whoever may read that one."""

    extra = 0
    hide_title = True
    can_delete = False

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return True


class PlainDialog(BaseDialogForm):
    """Asks before it acts; the question itself is in the dialog's text."""


def operator_name(request: HttpRequest) -> str:
    """Who acts, as it is kept with what they did."""
    return f"operator {request.user.get_username()}"


def leave_dialog(request: HttpRequest, to: str) -> HttpResponse:
    """On to ``to``. A dialog is posted by htmx, which needs to be told to load another page."""
    if "HX-Request" in request.headers:
        return HttpResponse(headers={"HX-Redirect": to})
    return HttpResponseRedirect(to)


def icon(request: HttpRequest) -> str:
    """The picture in the browser's tab."""
    return static("suzent/icon.svg")


def stylesheet(request: HttpRequest) -> str:
    """One of UNFOLD's STYLES."""
    return static("suzent/console.css")


def _values(request: HttpRequest) -> Iterable[str]:
    for name, values in request.GET.lists():
        yield name
        yield from values


def _refuse_nul(values: Iterable[str]) -> None:
    """PostgreSQL cannot even compare with U+0000; SQLite finds nothing. Both answer 400."""
    if any("\x00" in value for value in values):
        raise SuspiciousOperation("A NUL character has no place in an address.")
