"""Durable writes, and writes that wait for a database that went away."""

import threading
import time

import pytest
from django.db import OperationalError, connection, transaction

from suzent_site.transactions import durable, hint_on_commit, until_answered


def test_a_durable_block_inside_a_transaction_is_refused(transactional_db):
    with transaction.atomic(), pytest.raises(RuntimeError, match="durable"), durable():
        raise AssertionError("it must not get here")


def test_a_hint_that_waits_for_somebody_keeps_no_other_thread_from_writing(transactional_db):
    reached, go_on = threading.Event(), threading.Event()
    slow = threading.Thread(target=write_with, args=(lambda: (reached.set(), go_on.wait(20)),))
    other = threading.Thread(target=write_with, args=(lambda: None,))
    slow.start()
    assert reached.wait(20)
    other.start()
    other.join(10)
    held_up = other.is_alive()
    go_on.set()
    slow.join(20)
    other.join(20)
    assert not held_up


def write_with(hint):
    with durable():
        hint_on_commit(hint)
    connection.close()


def test_a_hint_is_given_after_the_commit_and_only_then(transactional_db):
    given = []
    with pytest.raises(ZeroDivisionError), durable():
        hint_on_commit(lambda: given.append("rolled back"))
        raise ZeroDivisionError
    with durable():
        hint_on_commit(lambda: given.append(connection.in_atomic_block))
        assert given == []
    with transaction.atomic():
        hint_on_commit(lambda: given.append("atomic"))
    assert given == [False, "atomic"]


def test_a_hint_that_goes_wrong_is_logged_and_reaches_nobody(transactional_db, caplog):
    with durable():
        hint_on_commit(lambda: 1 // 0)
    assert "division" in caplog.text


def test_an_act_is_repeated_until_the_database_answers(transactional_db):
    answers, waits = [OperationalError("gone"), OperationalError("gone"), "done"], []
    assert until_answered(lambda: answer(answers), give_up_at=time.monotonic() + 60, wait=waits.append) == "done"
    assert waits == [0.05, 0.1]


def answer(answers):
    if isinstance(answers[0], Exception):
        raise answers.pop(0)
    return answers.pop(0)


def test_past_its_time_the_last_error_is_raised(transactional_db):
    with pytest.raises(OperationalError, match="gone"):
        until_answered(lambda: answer([OperationalError("gone")]), give_up_at=time.monotonic(), wait=lambda pause: None)


def test_another_error_is_not_repeated(transactional_db):
    with pytest.raises(ZeroDivisionError):
        until_answered(lambda: 1 // 0, give_up_at=time.monotonic() + 60)
