"""``manage.py cluster``: whatever dies, hangs or goes away, tasks are run again soon, and nothing is left behind."""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime, timedelta

import pytest

from suzent_site.processes import boot_id, process_started, this_host

pytestmark = pytest.mark.processes

WEDGE = 15  # seconds until a wedged group has been replaced, as the design says for mail that is due


def wait_for_a_whole_group(site, *, without, within=WEDGE):
    """Until a full crew is there in which the killed process is replaced and tasks go all the way through."""
    site.wait_for(lambda: len(site._crew()) == 7 and not {*without} & {*site._crew()}, within=within)
    site.wait_for_an_answer(within=within)


def hold_a_lane(site, *, pid, started, host):
    """Write what a process that holds lanes would have written."""
    now = datetime.now(UTC)
    site.rows(
        "INSERT INTO sessions_app_holder (owner, kind, host, boot_id, pid, process_started, free, beat_at, renewed_uptime)"
        " VALUES ('someone', 'web', ?, ?, ?, ?, 0, ?, 0)", host, boot_id(), pid, started, str(now),
    )
    until = str(now + timedelta(hours=1))
    site.rows(
        "INSERT INTO sessions_app_lane (key, due_at, lease_owner, lease_until, epoch, failures)"
        " VALUES ('agent:x', ?, 'someone', ?, 1, 0)", until, until,
    )


def holder_of_the_lane(site):
    return site.one("SELECT lease_owner FROM sessions_app_lane WHERE key = 'agent:x'")


def test_stop_is_quick_and_leaves_no_process(site):
    cluster = site.cluster()
    assert len(site.everyone) >= 8
    cluster.send_signal(signal.SIGTERM)
    cluster.send_signal(signal.SIGINT)
    assert cluster.wait(10) == 0
    assert site.everyone == frozenset()


@pytest.mark.parametrize("role", ["worker", "monitor", "pusher", "sentinel", "main"])
def test_a_killed_process_is_replaced_and_no_task_is_stuck(site, role):
    site.cluster()
    crew = site.crew
    pid = crew.workers[0] if role == "worker" else getattr(crew, role)
    site.kill(pid)
    wait_for_a_whole_group(site, without=[pid])
    assert site.everyone == {site.supervisor, *site._crew()}


@pytest.mark.parametrize("role", ["worker", "monitor", "pusher", "sentinel", "main", "supervisor"])
def test_mail_is_delivered_soon_although_a_process_was_killed(site, role):
    site.up()
    token = site.open_session("asker")
    site.open_session("helper")
    crew = site.crew
    site.kill(site.supervisor if role == "supervisor" else crew.workers[0] if role == "worker" else getattr(crew, role))
    site.wait_until_delivered(*[site.send(token, "helper", f"{n}") for n in range(5)], within=WEDGE + 5)
    assert site.one("SELECT count(*) FROM sessions_app_transcriptentry WHERE role = 'assistant'") == 5


def test_all_idle_workers_killed_at_once_are_replaced(site):
    site.cluster()
    workers = site.crew.workers
    site.kill(*workers)
    wait_for_a_whole_group(site, without=workers)


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
    site.wait_until_gone(monitor, within=8)
    site.wait_for_an_answer(within=WEDGE)


def test_broker_contents_that_vanish_do_not_matter(site):
    site.cluster()
    site.empty_broker()
    site.wait_for_an_answer(within=WEDGE)
    assert "group_killed" not in site.log


def test_two_clusters_schedule_the_sweep_once_and_both_work(site):
    site.cluster()
    site.start("cluster")
    site.wait_for(lambda: site.log.count("group_started") == 2, within=10)
    assert site.one("SELECT count(*) FROM django_q_schedule WHERE name = 'sweep'") == 1
    site.wait_for_an_answer(within=WEDGE)


def test_lanes_of_a_process_that_is_gone_are_freed_at_once(site):
    site.cluster()
    hold_a_lane(site, pid=os.getpid(), started=process_started(os.getpid()) - 1, host=this_host())  # its pid was given anew
    site.wait_for(lambda: holder_of_the_lane(site) is None, within=3)
    assert site.one("SELECT count(*) FROM sessions_app_holder WHERE owner = 'someone'") == 0


@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_lanes_of_a_process_that_may_live_stay_held(site, where):
    site.cluster()
    hold_a_lane(site, pid=os.getpid(), started=process_started(os.getpid()), host=this_host() if where == "here" else where)
    site.wait_for_an_answer(within=WEDGE)
    assert holder_of_the_lane(site) == "someone"
