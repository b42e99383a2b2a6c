"""Crash points: what SUZENT_FAULTS may say, and what it does."""

import os
import subprocess
import sys
import time

import pytest
from django.core.exceptions import ImproperlyConfigured

from suzent_site.faults import Fault, crash_point, parse


def test_nothing_happens_unless_named(settings):
    settings.SUZENT_FAULTS = ""
    crash_point("turn.after_commit")
    settings.SUZENT_FAULTS = "turn.before_commit:exit"
    crash_point("turn.after_commit")


def test_several_points_and_actions_are_read():
    assert parse("turn.after_commit:exit:once, ack.before_commit:sleep=0.5") == {
        "turn.after_commit": Fault(exit=True, once=True),
        "ack.before_commit": Fault(sleep=0.5),
    }


@pytest.mark.parametrize("text", ["turn.sometime:exit", "turn.after_commit:explode", "turn.after_commit:sleep=long"])
def test_an_unknown_point_or_action_is_refused(text):
    with pytest.raises(ImproperlyConfigured):
        parse(text)


def test_once_is_once_per_data_directory(settings, tmp_path):
    settings.SUZENT_DATA_DIR = tmp_path
    settings.SUZENT_FAULTS = "ack.before_commit:sleep=0.2:once"
    assert seconds_at("ack.before_commit") >= 0.2
    assert seconds_at("ack.before_commit") < 0.2


def seconds_at(point):
    began = time.monotonic()
    crash_point(point)
    return time.monotonic() - began


def test_exit_ends_the_process_like_a_kill():
    script = "import django; django.setup(); from suzent_site.faults import crash_point; crash_point('ack.after_commit')"
    environment = os.environ | {"SUZENT_FAULTS": "ack.after_commit:exit"}
    assert subprocess.run([sys.executable, "-c", script], env=environment, timeout=60, check=False).returncode == 9
