"""Section K of the cases over REST: text arrives as it was sent, or is refused by name."""

import time

import pytest

from inbox_app.models import Message
from tests.rest import delivered, refused

CORPUS = {
    "family": "👩‍👩‍👧‍👦 👨🏿‍🚀",
    "flags": "🇧🇷🇯🇵🏴󠁧󠁢󠁳󠁣󠁴󠁿",
    "right to left": "abc \u202bمرحبا\u202c def",
    "decomposed": "e\u0301 A\u030a",
    "line ends": "one\r\ntwo\rthree\nfour\u2028five\u0085six",
    "blanks around": "  \t leading and trailing \t ",
    "markup": "<!-- hidden --> `code` <script>alert(1)</script> &amp;",
    "four bytes only": "𝕊𝕦𝕫𝕖𝕟𝕥🀄",
    "escapes": "\x1b[2J\x07 and \\u0000 written out",
    "marker": '{"message_id": "m-9", "source": "message"}',
    "mark and text": "\ufeffwith a byte order mark",
}


@pytest.mark.parametrize("text", CORPUS.values(), ids=CORPUS)
def test_txt_05_text_is_the_same_end_to_end_and_so_is_its_repetition(town, text):
    assert town.planner.api.send("writer", text, message_id="k").status_code == 202
    assert Message.objects.get().content == text
    assert town.planner.api.get("/api/messages/k").json()["content"] == text
    assert town.planner.api.send("writer", text, message_id="k").json()["created"] is False
    delivered(town.writer)
    assert town.planner.api.tool("agent_read", agent_id="writer").json()["messages"][0]["text"] == text


def test_txt_05_the_limit_counts_characters_not_bytes(town):
    assert town.planner.api.send("writer", "👩" * 20_000, message_id="k").status_code == 202
    assert len(town.planner.api.get("/api/messages/k").json()["content"]) == 20_000
    assert refused(town.planner.api.send("writer", "👩" * 20_001), 400, field="message")
    assert town.planner.api.send("writer", "x").status_code == 202


@pytest.mark.parametrize("field", ["message", "agent_id", "message_id", "in_reply_to"])
@pytest.mark.parametrize("bad", ["a\\u0000b", "a\\ud800b"])
def test_txt_01_nul_and_half_characters_are_refused_by_name_in_every_field(town, field, bad):
    body = {"agent_id": '"writer"', "message": '"hello"', field: f'"{bad}"'}
    text = ", ".join(f'"{name}": {value}' for name, value in body.items())
    answer = town.planner.api.raw("/api/tools/agent_send", f"{{{text}}}")
    assert refused(answer, 400, field=field)
    assert not Message.objects.exists()


def test_txt_01_a_raw_nul_is_refused(town):
    body = b'{"agent_id": "writer", "message": "a\0b"}'
    assert refused(town.planner.api.raw("/api/tools/agent_send", body), 400)


@pytest.mark.parametrize("path", ["/api/messages?cursor=%00", "/api/messages?agent_id=%00", "/api/messages?project=%00", "/api/sessions?project=%00"])
def test_txt_01_nul_in_a_query_is_refused_by_name(town, path):
    assert refused(town.planner.api.get(path), 400, field=path.partition("?")[2].partition("=")[0])


def test_txt_01_a_nul_in_title_and_config_is_refused_by_name(town):
    assert refused(town.owner.post("/api/sessions", {"title": "a\0b"}), 400, field="title")
    assert refused(town.owner.post("/api/sessions", {"config": {"instructions": "a\0b"}}), 400, field="config.instructions")


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 20_000,
        b'{"a":' * 20_000,
        b'{"agent_id": "writer", "message": "x", "valid_for": ' + b"9" * 5_000 + b"}",
        b'{"agent_id": "writer", "message": "x", "valid_for": NaN}',
        b'{"agent_id": "writer", "message": "x", "valid_for": Infinity}',
        b'{"agent_id": "writer", "message": "x", "valid_for": 1e400}',
        b'{"agent_id": "writer", "message": "x", "message": "y"}',
        b'\xef\xbb\xbf{"agent_id": "writer", "message": "x"}',
        '{"agent_id": "writer", "message": "x"}'.encode("utf-16"),
        b'{"agent_id": "writer", "message": "x"} trailing',
        b'["agent_id", "writer"]',
    ],
    ids=lambda body: repr(body[-24:]),
)
def test_txt_03_a_body_that_is_no_plain_object_is_400_at_once_and_makes_no_row(town, body):
    begun = time.monotonic()
    assert refused(town.planner.api.raw("/api/tools/agent_send", body), 400, code="invalid")
    assert time.monotonic() - begun < 1
    assert not Message.objects.exists()
