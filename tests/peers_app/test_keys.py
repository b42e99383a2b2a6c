"""``manage.py keys rotate``: what peers and their offers keep sealed."""

import io
import json
import stat

import pytest
from cryptography.fernet import Fernet
from django.core.management import call_command

from peers_app.models import Peer
from suzent_site.sealed import FILE, CannotUnseal, unseal
from tests.peers_app.pairing import paired

pytestmark = pytest.mark.django_db
TOKEN = "T" * 43


@pytest.fixture
def keys(settings, tmp_path):
    """An installation with a key in its data directory."""
    key = Fernet.generate_key().decode()
    (tmp_path / FILE).write_text(f"{key}\n")
    settings.SUZENT_DATA_DIR, settings.SUZENT_FIELD_KEYS = tmp_path, [key]
    return tmp_path / FILE


def a_peer():
    device = paired("B", address="http://b:9")
    for address in ("http://b:9", "http://elsewhere:9"):
        device.post("/nodes/peer-offer", {"base_url": address, "token": TOKEN})
    return Peer.objects.get()


def rotate():
    out = io.StringIO()
    call_command("keys", "rotate", stdout=out)
    return json.loads(out.getvalue())


def test_everything_is_sealed_anew_under_a_new_key_that_running_processes_find(keys):
    before = a_peer()
    assert rotate() == {"new_key": True, "sealed_anew": 2, "cannot_unseal": 0, "changed_meanwhile": 0}
    newest, _ = keys.read_text().strip().split(",")
    after = Peer.objects.get()
    assert Fernet(newest).decrypt(after.sealed_token.encode()).decode() == TOKEN
    assert (after.token, unseal(after.offered_token), unseal(before.sealed_token)) == (TOKEN, TOKEN, TOKEN)
    assert stat.S_IMODE(keys.stat().st_mode) == 0o600


def test_keys_of_the_environment_are_the_operators_to_change(keys, settings):
    a_peer()
    first, second = Fernet.generate_key().decode(), settings.SUZENT_FIELD_KEYS[0]
    settings.SUZENT_FIELD_KEYS = [first, second]
    kept = keys.read_text()
    assert rotate() == {"new_key": False, "sealed_anew": 2, "cannot_unseal": 0, "changed_meanwhile": 0}
    assert keys.read_text() == kept
    assert Fernet(first).decrypt(Peer.objects.get().sealed_token.encode()).decode() == TOKEN


def test_a_secret_whose_key_is_lost_is_counted_and_kept(keys, settings):
    peer = a_peer()
    keys.write_text(Fernet.generate_key().decode())
    settings.SUZENT_FIELD_KEYS = [keys.read_text()]
    assert rotate()["cannot_unseal"] == 2
    with pytest.raises(CannotUnseal):
        _ = Peer.objects.get().token
    assert Peer.objects.get().sealed_token == peer.sealed_token
