"""What holds for every test: the ones for a database or broker that is not there are skipped, and say so."""

import shutil

import pytest
from django.conf import settings

pytest_plugins = ["tests.rest"]


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
