"""People and their rights in the console's theme; the task queue's own pages are closed.

Whoever may add a django-q2 schedule may run any Python function, and its lists show task contents. Our tasks carry
ids only, the dispatcher needs nobody's hand, and what it does is on our own pages.
"""

from __future__ import annotations

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, User
from django_q.models import Failure, OrmQ, Schedule, Success
from unfold.admin import ModelAdmin
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

for closed in (Schedule, Success, Failure, OrmQ, User, Group):
    if admin.site.is_registered(closed):
        admin.site.unregister(closed)


admin.site.index_title = "What needs you now"


@admin.register(User)
class OperatorAdmin(UserAdmin, ModelAdmin):  # type: ignore[type-arg]
    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm


@admin.register(Group)
class OperatorGroupAdmin(GroupAdmin, ModelAdmin):
    pass
