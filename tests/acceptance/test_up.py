"""``manage.py up`` as real processes: its checks, its start, its end."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from contextlib import closing

import pytest

from tests.acceptance.conftest import ROOT

pytestmark = [pytest.mark.processes, pytest.mark.once]


def refusal(site) -> str:
    """What ``up`` says when it refuses to start: one sentence on standard error, exit code 1."""
    ended = site.run("up", check=False)
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1
    return ended.stderr


def test_first_start_is_ready_soon_and_says_how_to_log_in(make_site):
    site = make_site(new=True)
    site.up(within=30)  # about 3 s on a quiet machine
    assert site.get("/readyz").json == {"status": "ready", "failing": {}}
    assert site.get("/healthz").json == {"status": "alive"}
    assert f"{site.url}/admin/" in site.log
    assert f"{site.url}/api/docs" in site.log
    assert len(re.findall(r"one-time password +\S{12,}", site.log)) == 1


def test_second_start_makes_no_second_operator(site):
    first = site.up()
    first.send_signal(signal.SIGTERM)
    assert first.wait(20) == 0
    site.up()
    assert site.one("SELECT count(*) FROM auth_user") == 1
    assert site.log.count("one-time password") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_stop_leaves_no_process(site, number):
    up = site.up()
    assert len(site.everyone) >= 10
    up.send_signal(number)
    up.send_signal(number)
    assert up.wait(20) == 0
    assert site.everyone == frozenset()


def test_stop_lets_a_running_turn_finish(site):
    up = site.up()
    message = a_running_turn(site, seconds=3)
    up.send_signal(signal.SIGTERM)
    assert up.wait(20) == 0
    assert site.status_of(message) == "delivered"
    assert site.everyone == frozenset()


def test_stop_gives_a_turn_back_that_outlasts_the_grace_period(make_site):
    site = make_site(SUZENT_SHUTDOWN_GRACE="1")
    up = site.up()
    message = a_running_turn(site, seconds=60)
    up.send_signal(signal.SIGTERM)
    assert up.wait(15) == 0
    assert site.rows("SELECT status, attempts, losses FROM agent_inbox_messages WHERE message_id = ?", message) == [("pending", 0, 0)]
    assert site.everyone == frozenset()


def a_running_turn(site, *, seconds):
    token = site.open_session("asker")
    site.open_session("sleeper", runtime="scripted")
    message = site.send(token, "sleeper", f"!sleep {seconds}")
    site.wait_for(lambda: site.status_of(message) == "processing", within=10)
    return message


def test_demo_plays_to_its_end(make_site):
    site = make_site(new=True)
    site.up("--demo")
    site.wait_for(lambda: "That was all of it" in site.log, within=30)


def test_up_stops_in_order_when_nobody_reads_its_output_any_more(site):
    with subprocess.Popen(
        [sys.executable, "manage.py", "up"], cwd=ROOT, env=site.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as up:
        site.started.append(up)
        up.stdout.readline()
        assert site.everyone
        up.stdout.close()
        up.wait(30)
    assert site.everyone == frozenset()


def test_killed_up_leaves_no_process_after_five_seconds(site):
    up = site.up()
    everyone = site.everyone
    site.kill(up.pid)
    up.wait()
    site.wait_until_gone(*everyone, within=5)


def test_web_server_that_dies_is_started_again(site):
    site.up()
    web = site.web
    site.kill(web)
    site.wait_until_gone(web, within=5)
    site.wait_for(site.is_ready, within=10)
    assert site.web != web


def test_supervisor_that_dies_takes_its_group_along_and_is_started_again(site):
    site.up()
    crew, supervisor = site.crew, site.supervisor
    site.kill(supervisor)
    site.wait_until_gone(supervisor, crew.main, crew.sentinel, *crew.workers, crew.monitor, crew.pusher, within=5)
    site.wait_for_an_answer(within=10)
    assert site.supervisor != supervisor


def test_port_in_use_is_one_sentence(site):
    with closing(socket.create_server(("127.0.0.1", site.port))):
        assert "SUZENT_PORT" in refusal(site)


def test_unmakeable_data_directory_is_one_sentence(make_site, tmp_path):
    (tmp_path / "file").touch()
    assert "SUZENT_DATA_DIR" in refusal(make_site(new=True, SUZENT_DATA_DIR=str(tmp_path / "file" / "data")))


def test_database_that_is_down_is_one_sentence(make_site):
    said = refusal(make_site(new=True, DATABASE_URL="postgres://nobody:secret@127.0.0.1:1/nothing"))
    assert "database cannot be reached" in said
    assert "secret" not in said


def test_database_folder_that_is_missing_is_one_sentence(make_site, tmp_path):
    assert "database cannot be reached" in refusal(make_site(new=True, DATABASE_URL=f"sqlite:///{tmp_path}/missing/file"))


def test_redis_that_is_down_is_one_sentence(make_site):
    assert "Redis cannot be reached" in refusal(make_site(new=True, REDIS_URL="redis://127.0.0.1:1/0"))


@pytest.mark.parametrize(("name", "value"), [("SUZENT_PORT", "many"), ("SUZENT_LEASE_SECONDS", "0"), ("REDIS_URL", "nonsense")])
def test_wrong_setting_is_one_sentence_that_names_it(make_site, name, value):
    assert name in refusal(make_site(new=True, **{name: value}))
