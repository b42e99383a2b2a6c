"""Death at any statement: the process is gone between two of its SQL statements, and its transaction with it."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection


class Died(BaseException):
    """Not an Exception: nothing in the product may catch it, as nothing catches a kill -9."""


@contextmanager
def dying_at(statement: int) -> Iterator[None]:
    """Die before the so-many-th statement; 0: live."""
    if not statement:
        yield
        return
    with connection.execute_wrapper(_Fuse(statement)):
        yield


class _Fuse:
    def __init__(self, statement: int) -> None:
        self.left = statement

    def __call__(self, execute, sql, params, many, context):
        self.left -= 1
        if self.left == 0:
            raise Died
        return execute(sql, params, many, context)
