"""What holds for every test: the ones for a database or broker that is not there are skipped, and say so."""

import shutil

import hypothesis
import pytest
from django.conf import settings

# No deadline: the machine may be busy. What "ci" tries is always the same, so that only a change turns it red; "nightly"
# tries something new each time and for about an hour: pytest --hypothesis-profile=nightly tests/simulation
settings_of_all = hypothesis.settings(deadline=None, print_blob=True, stateful_step_count=50)
hypothesis.settings.register_profile("ci", settings_of_all, max_examples=50, derandomize=True, database=None)
hypothesis.settings.register_profile("nightly", settings_of_all, max_examples=6_000)
hypothesis.settings.load_profile("ci")

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
