"""Durable writes, and writes that wait for a database that went away."""

import time

import pytest
from django.db import OperationalError, transaction

from suzent_site.transactions import durable, until_answered


def test_a_durable_block_inside_a_transaction_is_refused(transactional_db):
    with transaction.atomic(), pytest.raises(RuntimeError, match="durable"), durable():
        raise AssertionError("it must not get here")


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
