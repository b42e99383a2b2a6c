"""One event is one line, whatever names are in it."""

import subprocess
import sys

import pytest


def logged(call):
    script = (
        "import logging, structlog; from suzent_site.logs import logging_config; logging_config('INFO')\n"
        f"log = structlog.get_logger('suzent.test')\n{call}"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return done.stderr.splitlines()


def test_an_event_is_one_line_of_keys_and_values():
    [line] = logged("log.info('accepted', message_id='m1')")
    assert "level=info" in line
    assert "event=accepted" in line
    assert "message_id=m1" in line


def test_line_breaks_and_escapes_in_a_value_stay_on_one_line():
    [line] = logged(r"log.info('accepted', title='a\nlevel=error event=forged \x1b[31m')")
    assert "\x1b" not in line


def test_libraries_log_in_the_same_form():
    [line] = logged("logging.getLogger('django.request').warning('Not Found: %s', '/x')")
    assert 'event="Not Found: /x"' in line


@pytest.mark.parametrize("call", ["django.security.DisallowedHost').error", "django.request').warning"])
def test_a_refused_request_fills_no_page(call):
    [line] = logged(f"try: 1 / 0\nexcept ZeroDivisionError: logging.getLogger('{call}('bad', exc_info=True)")
    assert "level=warning" in line
    assert "Traceback" not in line


def test_an_error_of_ours_keeps_its_traceback():
    [line] = logged("try: 1 / 0\nexcept ZeroDivisionError: logging.getLogger('django.request').error('bad', exc_info=True)")
    assert "Traceback" in line
