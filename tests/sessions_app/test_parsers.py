"""The strict JSON reader: cases TXT-01 and TXT-03 at the entrance."""

import io
import json
import time

import pytest

from sessions_app.parsers import StrictJSONParser, read_object
from suzent_site.errors import BodyTooLarge, Invalid

BODY_LIMIT = 1024 * 1024  # bytes


def test_an_object_is_read_as_it_is():
    text = '{"a": "é \\u00e9 👩‍👩‍👧 \\r\\n\\t ", "b": [1, 2.5, null, true], "c": {"d": -9}}'
    assert read_object(text.encode()) == json.loads(text)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 20_000,
        b'{"a":' * 20_000,
        b'{"a":' + b"[" * 20_000 + b"]" * 20_000 + b"}",
        b'{"a":' * 40 + b"1" + b"}" * 40,
        b'{"a": ' + b"9" * 5_000 + b"}",
        b'{"a": -12345678901234567890}',
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": -Infinity}',
        b'{"a": 1e400}',
        b'{"a": 1, "a": 2}',
        b'{"x": {"a": 1, "a": 1}}',
        b'\xef\xbb\xbf{"a": 1}',
        '{"a": 1}'.encode("utf-16"),
        '{"a": 1}'.encode("utf-16-le"),
        b'{"a": 1} x',
        b'{"a": 1}{"a": 1}',
        b'{"a": "\xff"}',
        b'{"a": "\xed\xa0\x80"}',
        b'{"a": "line\nbreak"}',
        b"",
        b"   ",
        b"null",
        b'"text"',
        b"[]",
        b"7",
        b"{'a': 1}",
        b'{"a": 1,}',
    ],
    ids=lambda body: repr(body[:24]),
)
def test_txt_03_what_is_not_one_plain_object_is_refused_at_once(body):
    begun = time.thread_time()  # of this thread's processor: the machine has others to serve
    with pytest.raises(Invalid):
        read_object(body)
    assert time.thread_time() - begun < 1


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"message": "a\\u0000b"}', "message"),
        (b'{"config": {"deep": [{"x": "\\u0000"}]}}', "config.deep.x"),
        (b'{"message": "\\ud800"}', "message"),
        (b'{"message": "\\udc00 after"}', "message"),
        (b'{"a\\u0000": 1}', "a\\x00"),
        (b'{"a\\ud800": 1}', "a\\ud800"),
        (b'{"twice": 1, "twice": 2}', "twice"),
    ],
)
def test_txt_01_nul_and_half_characters_are_refused_by_name(body, field):
    with pytest.raises(Invalid) as caught:
        read_object(body)
    assert caught.value.extra["field"] == field
    json.dumps(caught.value.as_json(), ensure_ascii=False).encode()


def test_a_whole_surrogate_pair_is_a_character():
    assert read_object(b'{"a": "\\ud83d\\ude00"}') == {"a": "\N{GRINNING FACE}"}


def test_a_large_body_of_many_small_things_costs_a_bounded_multiple_of_reading_it_carelessly():
    body = json.dumps({"z": "\N{GRINNING FACE}", "a": [[]] * 260_000}).encode()
    assert cpu_seconds(read_object, body) < 50 * cpu_seconds(json.loads, body)


def cpu_seconds(read, body):
    begun = time.thread_time()
    read(body)
    return time.thread_time() - begun


def test_a_body_over_one_mebibyte_is_refused():
    just_fits = b'{"a": "' + b"x" * (BODY_LIMIT - 9) + b'"}'
    assert len(StrictJSONParser().parse(io.BytesIO(just_fits))["a"]) == BODY_LIMIT - 9
    with pytest.raises(BodyTooLarge):
        StrictJSONParser().parse(io.BytesIO(just_fits + b" "))
