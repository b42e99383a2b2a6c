"""``manage.py bench --only peers``: the devices that it measures against, and how it is reached."""

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command
from django.utils.module_loading import import_string

from peers_app import bench
from tests.peers_app.test_delivery import now_again, pair, send, try_once

pytestmark = pytest.mark.django_db


def test_a_device_of_the_bench_takes_mail_as_one_of_version_0_9_1_and_notes_when(town):
    arrived = {}
    with bench.device(arrived) as address:
        message = send(town, pair(town, address))
        try_once()
    assert (now_again(message).status, list(arrived)) == ("delivered", [message.message_id])


def test_what_can_be_measured_beside_the_engines_own_is_named_in_settings():
    assert [import_string(path) for path in settings.BENCHES.values()] == [bench.PeersBench]
    with pytest.raises(CommandError, match="invalid choice: 'elsewhere'.*peers"):
        call_command("bench", "--only", "elsewhere")
