"""What the environment may say, asked of a fresh process as an operator would start it."""

import json
import os
import subprocess
import sys
from urllib.parse import urlsplit

import pytest

NOT_INHERITED = ("DATABASE_URL", "REDIS_URL", "SECRET_KEY", "DEBUG", "DJANGO_SETTINGS_MODULE")


def started(data_dir, script="", before="", **environment):
    inherited = {
        name: value for name, value in os.environ.items() if name not in NOT_INHERITED and not name.startswith("SUZENT_")
    }
    return subprocess.run(
        [sys.executable, "-c", f"{before}\nimport json; from suzent_site import settings as s; {script}"],
        env=inherited | {"SUZENT_DATA_DIR": str(data_dir)} | environment, capture_output=True, text=True, timeout=60, check=False,
    )


def said(data_dir, expression, **environment):
    process = started(data_dir, f"print(json.dumps({expression}))", **environment)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def test_the_defaults_need_nothing_but_a_directory(tmp_path):
    assert said(tmp_path, "[s.DEBUG, s.SUZENT_HOST, s.SUZENT_PORT, s.DATABASES['default']['NAME'], 'orm' in s.Q_CLUSTER]") == [
        False, "127.0.0.1", 25314, str(tmp_path / "suzent.sqlite3"), True,
    ]
    assert len((tmp_path / "secret_key").read_text()) > 50


def test_sqlite_is_opened_for_many_writers(tmp_path):
    options = said(tmp_path, "s.DATABASES['default']['OPTIONS']")
    assert options["transaction_mode"] == "IMMEDIATE"
    assert options["timeout"] == 20
    assert "journal_mode=WAL" in options["init_command"]


def test_redis_takes_over_broker_and_cache(tmp_path):
    redis_url = "redis://127.0.0.1:6379/9"
    broker, cache = said(tmp_path, "[s.Q_CLUSTER['redis'], s.CACHES['default']['LOCATION']]", REDIS_URL=redis_url)
    assert broker.startswith(redis_url)
    assert cache.startswith(redis_url)


def test_a_forwarded_header_proves_nothing_by_itself(tmp_path):
    request = "__import__('django.test').test.RequestFactory().get('/', headers={'x-forwarded-proto': 'https'})"
    proxied = {"SUZENT_TRUSTED_PROXIES": "10.0.0.1", "DJANGO_SETTINGS_MODULE": "suzent_site.settings"}
    assert said(tmp_path, f"{request}.is_secure()", **proxied) is False


def test_the_public_url_turns_on_what_https_needs(tmp_path):
    expression = "[s.ALLOWED_HOSTS, s.CSRF_TRUSTED_ORIGINS, s.SESSION_COOKIE_SECURE, s.SECURE_HSTS_SECONDS > 0]"
    hosts, origins, *secure = said(tmp_path, expression, SUZENT_PUBLIC_URL="https://suzent.example/")
    assert "suzent.example" in hosts
    assert origins == ["https://suzent.example"]
    assert secure == [True, True]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SUZENT_PORT", "99999"),
        ("SUZENT_PORT", "http"),
        ("SUZENT_DISCOVERY_INTERFACES", "eth0"),
        ("SUZENT_LEASE_SECONDS", "0"),
        ("SUZENT_TURN_CONCURRENCY", "many"),
        ("SUZENT_LANE_LIMIT", "-1"),
        ("DATABASE_URL", "mysql://localhost/suzent"),
        ("DATABASE_URL", "garbage"),
        ("SUZENT_TURN_TIMEOUT", "15m"),
        ("SUZENT_TURN_TIMEOUT", "1e400"),
        ("SUZENT_SHUTDOWN_GRACE", "nan"),
        ("SUZENT_PUBLIC_URL", "suzent.example"),
        ("SUZENT_LOG_LEVEL", "LOUD"),
        ("SUZENT_FIELD_KEYS", "not-a-key"),
    ],
)
def test_a_bad_setting_is_refused_by_name(tmp_path, name, value):
    process = started(tmp_path, **{name: value})
    assert process.returncode != 0
    assert f"ImproperlyConfigured: {name} must" in process.stderr


@pytest.mark.parametrize("faults", ["nonsense", "turn.nowhere:exit", "turn.after_commit:sleep=long"])
def test_a_mistyped_drill_is_refused_at_the_start_and_not_at_the_first_message(tmp_path, faults):
    process = started(tmp_path, SUZENT_FAULTS=faults)
    assert process.returncode != 0
    assert "ImproperlyConfigured: SUZENT_FAULTS: " in process.stderr


def test_a_number_is_read_as_it_is_written(tmp_path):
    assert said(tmp_path, "s.SUZENT_TURN_TIMEOUT", SUZENT_TURN_TIMEOUT="1e3") == 1000


def test_ids_are_kept_at_least_as_long_as_their_messages(tmp_path):
    kept = "[s.SUZENT_RETENTION_DAYS, s.SUZENT_DEDUPE_DAYS]"
    assert said(tmp_path, kept) == [30, 90]
    assert said(tmp_path, kept, SUZENT_RETENTION_DAYS="400") == [400, 400]
    refused = started(tmp_path, SUZENT_DEDUPE_DAYS="10")
    assert refused.returncode != 0
    assert "SUZENT_DEDUPE_DAYS must not be less than SUZENT_RETENTION_DAYS" in refused.stderr


@pytest.mark.parametrize("host", ["127.1.2.3", "localhost"])
def test_what_nobody_reaches_is_not_announced(tmp_path, host):
    process = started(tmp_path, SUZENT_DISCOVERY="1", SUZENT_HOST=host)
    assert process.returncode != 0
    assert "SUZENT_DISCOVERY needs SUZENT_HOST" in process.stderr.strip().splitlines()[-1]


def test_announcing_needs_its_extra(tmp_path):
    process = started(tmp_path, before="import sys; sys.modules['zeroconf'] = None", SUZENT_DISCOVERY="1", SUZENT_HOST="0.0.0.0")
    assert "SUZENT_DISCOVERY needs the extra discovery" in process.stderr.strip().splitlines()[-1]


def test_the_installation_is_announced_only_where_somebody_asked_for_it(tmp_path):
    assert said(tmp_path, "s.AT_WEB_START") == []
    assert said(tmp_path, "s.AT_WEB_START", SUZENT_DISCOVERY="1", SUZENT_HOST="0.0.0.0") == ["peers_app.discovery.announce"]


def test_an_open_server_answers_to_the_addresses_that_others_are_told(tmp_path):
    script = "from peers_app.installation import our_address; print(our_address(seen_from='192.0.2.1')); print(s.ALLOWED_HOSTS)"
    opened = {"SUZENT_HOST": "0.0.0.0", "SUZENT_DISCOVERY_INTERFACES": "10.1.2.3", "DJANGO_SETTINGS_MODULE": "suzent_site.settings"}
    process = started(tmp_path, f"import django; django.setup(); {script}", **opened)
    told, allowed = process.stdout.splitlines()
    assert (urlsplit(told).hostname or "10.1.2.3") in allowed  # nothing is told where no network leads out
    assert "10.1.2.3" in allowed
