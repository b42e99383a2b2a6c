"""Two connections at once, ordered by events and barriers, never by hope."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from django.db import connection

WAIT = 20  # seconds until a test that hangs fails instead


@pytest.fixture
def together():
    """Run functions in a thread and a connection each, let go at the same moment; their results (or errors) in order."""

    def run(*acts):
        barrier = threading.Barrier(len(acts))

        def one(act):
            connection.ensure_connection()
            barrier.wait(WAIT)
            try:
                return act()
            except Exception as error:  # noqa: BLE001  # an error is an answer too
                return error
            finally:
                connection.close()

        with ThreadPoolExecutor(len(acts)) as pool:
            return list(pool.map(one, acts))

    return run


class Other:
    """A thread with a connection of its own that stops before its next COMMIT until it is told to go on."""

    def __init__(self, act):
        self._reached, self._go_on = threading.Event(), threading.Event()
        self._result = None
        self._thread = threading.Thread(target=self._run, args=(act,))

    def _run(self, act):
        try:
            with stopping_before_commit(self):
                self._result = act()
        except Exception as error:  # noqa: BLE001  # an error is an answer too
            self._result = error
        finally:
            self._reached.set()
            connection.close()

    def start(self):
        self._thread.start()
        assert self._reached.wait(WAIT)
        return self

    def pause(self):
        self._reached.set()
        self._go_on.wait(WAIT)

    def finish(self):
        self._go_on.set()
        self._thread.join(WAIT)
        return self._result


@contextmanager
def stopping_before_commit(other):
    """The connection of this thread waits once before its outermost commit: Django's own hook, on this one object."""
    commit = connection._commit

    def wait_then_commit():
        connection._commit = commit
        other.pause()
        commit()

    connection._commit = wait_then_commit
    try:
        yield
    finally:
        connection._commit = commit


@pytest.fixture
def stopped_before_commit():
    """Start an act in another connection and return once it is about to commit; ``finish()`` lets it, with its result."""
    others = []

    def start(act):
        others.append(Other(act))
        return others[-1].start()

    yield start
    for other in others:
        other.finish()


