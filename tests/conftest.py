"""What holds for every test: the ones for a database or broker that is not there are skipped, and say so."""

import functools
import gc
import os
import shutil
import sqlite3

import hypothesis
import pytest
from django.conf import settings
from django.db import connection, transaction
from django.test import TransactionTestCase

# No deadline: the machine may be busy. What "ci" tries is always the same, so that only a change turns it red; "nightly"
# tries something new each time and for about an hour: pytest --hypothesis-profile=nightly tests/simulation
settings_of_all = hypothesis.settings(deadline=None, print_blob=True, stateful_step_count=50)
hypothesis.settings.register_profile("ci", settings_of_all, max_examples=50, derandomize=True, database=None)
hypothesis.settings.register_profile("nightly", settings_of_all, max_examples=6_000)
hypothesis.settings.load_profile("ci")

pytest_plugins = ["tests.rest"]

MADE_BY_MIGRATE = {"django_content_type", "auth_permission"}


@pytest.fixture(scope="session", autouse=True)
def quick_cleaning():
    """After a test with transactions of its own its rows are deleted.

    Django would truncate every table and make all permissions anew: 1 to 2 s a test on PostgreSQL, ten times of the test.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", _delete_all_rows)
        yield


def _close_sqlite():
    """In every thread. A fork must inherit no connection: it would close the copy and undo what its owner writes.

    A worker has none when it forks its nursery; this process may have some in threads that earlier tests left behind.
    """
    for found in gc.get_objects():
        if issubclass(type(found), sqlite3.Connection):  # isinstance would ask a weak proxy, whose object may be gone
            found.close()


os.register_at_fork(before=_close_sqlite)


def _delete_all_rows(case):
    with transaction.atomic(), connection.cursor() as cursor:  # foreign keys are checked at its end
        for table in _tables():
            cursor.execute(f"DELETE FROM {connection.ops.quote_name(table)}")


@functools.cache
def _tables():
    names = connection.introspection.django_table_names(only_existing=True, include_views=False)
    return [name for name in names if name not in MADE_BY_MIGRATE]


def pytest_collection_modifyitems(items):
    for item in items:
        if "acceptance" in item.path.parts:
            item.add_marker("processes")
        for marker, (is_there, reason) in NEEDS.items():
            if item.get_closest_marker(marker) and not is_there():
                item.add_marker(pytest.mark.skip(reason=reason))


NEEDS = {
    "postgresql": (lambda: settings.DATABASES["default"]["ENGINE"].endswith("postgresql"), "runs on PostgreSQL only"),
    "redis": (lambda: bool(settings.REDIS_URL), "runs with REDIS_URL only"),
    "browser": (lambda: bool(shutil.which("chromium")), "needs the system's Chromium"),
}
