"""django-q2's broker for those who cannot wait: with Redis every call ends within half a second."""

from __future__ import annotations

from functools import cache

from django.conf import settings
from django_q.brokers import Broker, get_broker

from suzent_site.errors import first_line

try:
    from redis.exceptions import RedisError
except ImportError:  # the extra is not installed, so nothing of Redis can be raised

    class RedisError(Exception):  # type: ignore[no-redef]
        """Stands in for the client library's own."""


BROKER_ERRORS = (RedisError, OSError)


@cache
def quick_broker() -> Broker:
    """The broker with short time-outs. Its calls raise one of BROKER_ERRORS, or what the database raises."""
    broker = get_broker()
    if settings.WAKE_REDIS_URL:
        broker.connection = type(broker.connection).from_url(settings.WAKE_REDIS_URL)
    return broker


def broker_error() -> str:
    """Why the broker cannot be reached; empty when it can. The ORM broker is as reachable as the database."""
    if not settings.WAKE_REDIS_URL:
        return ""
    try:
        quick_broker().connection.ping()
    except BROKER_ERRORS as error:
        return first_line(error)
    return ""
