"""Projects: added and edited here, their slug fixed once they are there."""

from __future__ import annotations

from django import forms
from django.conf import settings
from django.contrib import admin
from django.http import HttpRequest
from django.utils.safestring import SafeString
from unfold.decorators import display

from sessions_app import actions
from sessions_app.models import Project
from suzent_site.console import ConsoleAdmin, RefusableForm
from suzent_site.shown import in_a_line


class ProjectForm(RefusableForm):
    def clean_runtimes(self) -> list[str]:
        names = self.cleaned_data["runtimes"]
        if not isinstance(names, list) or not names or not all(name in settings.RUNTIMES for name in names):
            raise forms.ValidationError(f"A JSON list with some of {', '.join(settings.RUNTIMES)}.")
        return names

    def clean_roots(self) -> list[str]:
        roots = self.cleaned_data["roots"] or []
        if not isinstance(roots, list) or not all(isinstance(root, str) and root.startswith("/") for root in roots):
            raise forms.ValidationError('A JSON list of absolute directories, e.g. ["/srv/work"].')
        return roots


@admin.register(Project)
class ProjectAdmin(ConsoleAdmin):
    form = ProjectForm
    list_display = ("slug", "shown_name", "shown_runtimes", "archived_at")
    search_fields = ("slug__startswith", "name__icontains")
    ordering = ("slug",)

    def get_fields(self, request: HttpRequest, obj: Project | None = None) -> tuple[str, ...]:
        editable = obj is None or self.has_change_permission(request, obj)
        return ("slug", "name" if editable else "shown_name", "runtimes", "roots")

    def get_readonly_fields(self, request: HttpRequest, obj: Project | None = None) -> tuple[str, ...]:
        return ("slug", "shown_name") if obj else ()

    def save_model(self, request: HttpRequest, obj: Project, form: forms.ModelForm[Project], change: bool) -> None:
        if change:
            obj.save(update_fields=["name", "runtimes", "roots"])
        else:
            actions.create_project(obj.slug, name=obj.name, runtimes=obj.runtimes, roots=obj.roots)

    @display(description="Name")
    def shown_name(self, obj: Project) -> SafeString:
        return in_a_line(obj.name)

    @display(description="Runtimes")
    def shown_runtimes(self, obj: Project) -> SafeString:
        return in_a_line(", ".join(map(str, obj.runtimes)))
