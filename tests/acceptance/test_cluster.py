"""``manage.py cluster``: whatever dies, hangs or goes away, tasks are run again soon, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import time
from datetime import UTC, datetime, timedelta

import pytest

from suzent_site.processes import boot_id, process_started, this_host

pytestmark = pytest.mark.processes

WEDGE = 15  # seconds until a wedged group has been replaced, as the design says for mail that is due


def wait_for_a_whole_group(site, *, without, within=WEDGE):
    """Until a full crew is there in which the killed process is replaced and tasks go all the way through."""
    site.wait_for(lambda: len(site._crew()) == 7 and not {*without} & {*site._crew()}, within=within)
    site.wait_for_an_answer(within=within)


def hold_a_lane(site, key, *, started, host=None):
    """Write what a process with the pid of this one, started then and there, would have written."""
    now = datetime.now(UTC)
    site.rows(
        "INSERT INTO sessions_app_holder (owner, kind, host, boot_id, pid, process_started, free, beat_at, renewed_uptime)"
        " VALUES (?, 'web', ?, ?, ?, ?, 0, ?, 0)", f"holder-{key}", host or this_host(), boot_id(), os.getpid(), started, str(now),
    )
    until = str(now + timedelta(hours=1))
    site.rows(
        "INSERT INTO sessions_app_lane (key, due_at, lease_owner, lease_until, epoch, failures)"
        " VALUES (?, ?, ?, ?, 1, 0)", key, until, f"holder-{key}", until,
    )


def is_held(site, key):
    return site.one("SELECT lease_owner FROM sessions_app_lane WHERE key = ?", key) is not None


def test_stop_is_quick_and_leaves_no_process(site):
    cluster = site.cluster()
    assert len(site.everyone) >= 8
    cluster.send_signal(signal.SIGTERM)
    cluster.send_signal(signal.SIGINT)
    assert cluster.wait(10) == 0
    assert site.everyone == frozenset()


def test_stop_is_quick_although_a_process_of_the_queue_was_killed_just_before(site):
    """q2 may be wedged by then and would never end; no turn runs that would be worth the grace period of 30 s."""
    cluster = site.cluster()
    site.kill(*site.crew.workers, site.crew.monitor)
    cluster.send_signal(signal.SIGTERM)
    assert cluster.wait(20) == 0
    assert site.everyone == frozenset()


@pytest.mark.parametrize("role", ["worker", "every worker", "monitor", "pusher", "sentinel", "main", "supervisor"])
def test_mail_is_delivered_soon_although_an_idle_process_was_killed(office, role):
    crew = office.renew_group()
    killed = {"worker": crew.workers[:1], "every worker": crew.workers, "supervisor": [office.supervisor]}.get(role)
    killed = killed or [getattr(crew, role)]
    office.kill(*killed)
    mail = [office.send(office.token, "helper", f"{role} {n}") for n in range(5)]
    office.wait_until_delivered(*mail, within=WEDGE)
    wait_for_a_whole_group(office, without=killed)
    assert office.wait_for(lambda: office.everyone == office.those_expected, within=5) < 5


def test_killed_supervisor_takes_its_group_along(site):
    cluster = site.cluster()
    everyone = site.everyone
    site.kill(cluster.pid)
    cluster.wait()
    site.wait_until_gone(*everyone, within=5)


def test_a_process_that_is_stopped_for_longer_than_a_lease_is_replaced(make_site):
    site = make_site(SUZENT_LEASE_SECONDS="3")
    site.cluster()
    monitor = site.crew.monitor
    site.kill(monitor, number=signal.SIGSTOP)
    site.wait_until_gone(monitor, within=30)
    site.wait_for(lambda: "stopped for longer than a lease" in site.log, within=5)
    site.wait_for_an_answer(within=30)
    assert "group_killed" not in site.log, "the process was replaced, not everybody"


def test_broker_contents_that_vanish_do_not_matter(site):
    site.cluster()
    site.empty_broker()
    site.wait_for_an_answer(within=WEDGE)
    assert "group_killed" not in site.log


@pytest.mark.redis
def test_redis_that_goes_away_and_comes_back_needs_nobody(make_site):
    outage(make_site, "REDIS_URL", seconds=12)


@pytest.mark.postgresql
def test_postgresql_that_goes_away_and_comes_back_needs_nobody(make_site):
    outage(make_site, "DATABASE_URL", seconds=5)


def outage(make_site, name, *, seconds):
    """Mail that was accepted before or while the server was away is delivered soon after it is back."""
    site = make_site()
    gate = site.put_gate_before(name)
    site.up()
    token = site.open_session("asker")
    site.open_session("helper")
    gate.shut()
    time.sleep(seconds)
    early = [site.send(token, "helper", "x")] if name == "REDIS_URL" else []
    gate.open()
    site.wait_for(site.is_ready, within=30)
    site.wait_until_delivered(*early, site.send(token, "helper", "y"), within=30)
    assert "group_killed" not in site.log


def test_two_clusters_schedule_the_sweep_once_and_both_work(site):
    site.cluster()
    site.start("cluster")
    site.wait_for(lambda: site.log.count("group_started") == 2, within=10)
    assert site.one("SELECT count(*) FROM django_q_schedule WHERE name = 'sweep'") == 1
    site.wait_for_an_answer(within=WEDGE)


def test_lanes_of_a_process_that_is_gone_are_freed_at_once_and_no_others(site):
    site.cluster()
    started = process_started(os.getpid())
    hold_a_lane(site, "of-one-that-lives", started=started)
    hold_a_lane(site, "of-another-machine", started=started - 1, host="elsewhere")
    hold_a_lane(site, "of-one-that-is-gone", started=started - 1)  # its pid has been given to another since
    site.wait_for(lambda: not is_held(site, "of-one-that-is-gone"), within=3)
    assert is_held(site, "of-one-that-lives")
    assert is_held(site, "of-another-machine")
    assert site.one("SELECT count(*) FROM sessions_app_holder") == 2
