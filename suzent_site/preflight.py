"""What must hold before anything is started, each with one sentence for the operator if it does not."""

from __future__ import annotations

import errno
import socket

from django.conf import settings
from django.db import DatabaseError, connection

from suzent_site.broker import broker_error
from suzent_site.errors import first_line


class NotReady(Exception):
    """One sentence: what is wrong and, where we know, what to do."""


def check_all() -> None:
    """Raises NotReady with the first thing that stands in the way."""
    check_port()
    check_database()
    check_broker()


def check_port() -> None:
    where = f"{settings.SUZENT_HOST}:{settings.SUZENT_PORT}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.SUZENT_HOST, settings.SUZENT_PORT, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise NotReady(f"{where} is in use by another process; stop it, or choose another port with SUZENT_PORT.") from error
        raise NotReady(f"Cannot listen on {where}: {error.strerror}; see SUZENT_HOST and SUZENT_PORT.") from error


def check_database() -> None:
    try:
        connection.ensure_connection()
    except DatabaseError as error:
        raise NotReady(f"The database cannot be reached: {first_line(error)}; see DATABASE_URL.") from error


def check_broker() -> None:
    try:
        why = broker_error()
    except ImportError as error:
        raise NotReady(f"REDIS_URL is set, but its client is not installed: {error}; install the extra suzent[redis].") from error
    except ValueError as error:
        raise NotReady(f"REDIS_URL is not valid: {error}.") from error
    if why:
        raise NotReady(f"Redis cannot be reached: {why}; see REDIS_URL.")
