"""The signed webhook: what passes, what is refused how, and that the answer never waits for the turn."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection
from django.test import Client

from sessions_app import direct
from sessions_app.models import Session, SocialRefusal, TranscriptEntry, Turn
from sessions_app.social import channels, web
from sessions_app.social.events import IncomingEvent
from sessions_app.social.signature import signed
from suzent_site.errors import Invalid
from tests.asgi import ask
from tests.bot_api import until
from tests.concurrency.conftest import stopped_before_commit  # noqa: F401  # a fixture
from tests.social import SECRET, a_channel, post, refused

pytestmark = pytest.mark.django_db(transaction=True)
EVENT = {"event_id": "e1", "sender_id": "42", "sender_name": "Alice", "text": "hello"}


@pytest.fixture(autouse=True)
def quiet_end():
    yield
    web.close()
    direct.close_web()


@pytest.fixture
def queued(monkeypatch):
    """Stands where the web process's queue is: takes everything in, works nothing off."""
    taken = []
    monkeypatch.setattr(web, "take_in", lambda event: taken.append(event) or True)
    return taken


def test_a_signed_event_is_answered_before_its_turn_and_has_one():
    a_channel()
    answer = post(EVENT)
    assert (answer.status_code, answer.json()) == (202, {"event_id": "e1", "agent_id": "social-hook-42", "status": "queued"})
    until(lambda: TranscriptEntry.objects.filter(session="social-hook-42", role="assistant", text="ok: hello").exists())


def test_the_same_event_twice_has_one_turn():
    a_channel()
    assert [post(EVENT).status_code, post(EVENT).status_code] == [202, 202]
    post(EVENT | {"event_id": "e2", "text": "second"})
    until(lambda: TranscriptEntry.objects.filter(text="ok: second").exists())
    assert Turn.objects.count() == 2


def test_every_field_of_an_event_arrives(queued):
    a_channel()
    body = EVENT | {
        "platform": "hook", "target_id": "room", "attachments": [{"name": "a.txt", "content": "eA=="}], "reply_route": {"thread": 7},
        "is_bot": False, "received_at": "2026-12-01T10:00:00+01:00",
    }  # fmt: skip
    assert post(body).status_code == 202
    [event] = queued
    assert isinstance(event, IncomingEvent)
    assert (event.platform, event.target_id, event.reply_route, event.received_at.isoformat()) == (
        "hook", "room", {"thread": 7}, "2026-12-01T10:00:00+01:00",
    )  # fmt: skip
    assert (event.attachments[0].name, event.session_id) == ("a.txt", "social-hook-room")


# --- SOC-02 ----------------------------------------------------------------------------------------------------
def wrong(**headers):
    return {name.replace("_", "-"): value for name, value in headers.items()}


def over_another_body():
    return signed(SECRET, b"{}", at=int(time.time()))


@pytest.mark.parametrize(("headers", "reason"), [
    (wrong(X_Suzent_Signature=None), "unsigned"),
    (wrong(X_Suzent_Signature=""), "unsigned"),
    (wrong(X_Suzent_Signature="sha256=" + "0" * 64), "bad_signature"),
    (wrong(X_Suzent_Signature="sha256="), "unsigned"),
    (wrong(X_Suzent_Signature="sha256=" + "é" * 64), "unsigned"),
    (wrong(X_Suzent_Timestamp=None), "unsigned"),
    (wrong(X_Suzent_Timestamp=""), "unsigned"),
    (wrong(X_Suzent_Timestamp="１２３"), "unsigned"),
    (wrong(X_Suzent_Timestamp="0"), "bad_signature"),
])  # fmt: skip
def test_soc_02_a_call_without_the_right_signature_is_refused_and_counted(queued, caplog, headers, reason):
    a_channel()
    answer = post(EVENT, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (401, "bad_signature")
    assert (queued, refused(), Session.objects.count()) == ([], {reason: 1}, 0)
    assert sum("social_event_refused" in str(record.msg) for record in caplog.records) == 1


def test_soc_02_half_a_signature_or_one_given_twice_is_none(queued):
    a_channel()
    good = signed(SECRET, b'{"event_id": "e1"}', at=int(time.time()))["X-Suzent-Signature"]
    for signature in (good[:-1], f"{good},{good}", good.upper(), good + " ", f" {good}x"):
        assert post(b'{"event_id": "e1"}', headers={"X-Suzent-Signature": signature}).status_code == 401
    assert queued == []


def test_soc_02_a_signature_over_another_body_is_refused(queued):
    a_channel()
    assert post(EVENT, headers=over_another_body()).status_code == 401
    assert refused() == {"bad_signature": 1}


@pytest.mark.parametrize("away", [-301, 330, -86_400, 10**9])
def test_soc_02_a_stale_timestamp_is_refused(queued, away):
    a_channel()
    assert post(EVENT, at=int(time.time()) + away).status_code == 401
    assert refused() == {"stale": 1}


@pytest.mark.parametrize("away", [-290, 290])
def test_a_clock_that_is_a_little_off_is_believed(queued, away):
    a_channel()
    assert post(EVENT, at=int(time.time()) + away).status_code == 202


@pytest.mark.parametrize("variable", [None, "", "   "])
def test_soc_02_without_a_secret_nothing_passes(queued, monkeypatch, variable):
    a_channel(secret="", secret_variable="SUZENT_SOCIAL_HOOK")
    if variable is not None:
        monkeypatch.setenv("SUZENT_SOCIAL_HOOK", variable)
    for secret in ("", variable or "", SECRET):
        assert post(EVENT, secret=secret).status_code == 401
    assert (queued, refused()) == ([], {"no_secret": 3})


def test_soc_02_a_channel_that_never_had_a_secret_takes_nothing(queued):
    a_channel(secret="")
    assert post(EVENT, secret="").status_code == 401
    assert refused() == {"no_secret": 1}


def test_soc_02_a_secret_whose_key_is_lost_is_none(queued, settings):
    a_channel()
    settings.SUZENT_FIELD_KEYS = ["A" * 43 + "="]
    assert post(EVENT).status_code == 401


def test_soc_02_the_secret_may_come_from_the_environment(queued, monkeypatch):
    monkeypatch.setenv("SUZENT_SOCIAL_HOOK", SECRET)
    a_channel(secret="", secret_variable="SUZENT_SOCIAL_HOOK")
    assert post(EVENT).status_code == 202


def test_soc_02_a_form_or_another_channels_secret_is_refused(queued):
    a_channel()
    a_channel("other", secret="another-secret-0123456789")
    assert post(EVENT, to="other").status_code == 401
    assert post(EVENT, headers={"X-Suzent-Signature": None, "Content-Type": "application/x-www-form-urlencoded"}).status_code == 401


def test_soc_02_missing_channels_and_those_that_are_off_answer_in_the_same_words(queued):
    channel = a_channel()
    a_channel("telegram", driver="telegram")
    channels.change_channel(channel, active=False)
    answers = [post(EVENT, to=name) for name in ("hook", "nobody", "telegram", "x" * 300, "a%00b")]
    assert {(answer.status_code, answer.content) for answer in answers} == {(401, answers[0].content)}
    assert set(SocialRefusal.objects.values_list("channel", "reason")) == {("hook", "channel_off"), ("telegram", "no_webhook")}


def test_the_secret_is_kept_sealed():
    channel = a_channel()
    assert SECRET not in channel.secret_sealed
    assert channels.secret_of(channel) == SECRET


@pytest.mark.parametrize("variable", ["SECRET_KEY", "DATABASE_URL", "suzent_social_x"])
def test_a_channel_cannot_name_just_any_variable(variable):
    with pytest.raises(Invalid, match="SUZENT_SOCIAL_"):
        a_channel(secret="", secret_variable=variable)


# --- What a signed body may be ---------------------------------------------------------------------------------
@pytest.mark.parametrize(("body", "field"), [
    (b"", "body"), (b"not json", "body"), (b"[]", "body"), (b"[" * 20_000, "body"), (b'{"text": NaN}', "body"), (b"\xff\xfe{}", "body"),
    ({"event_id": "e", "sender_id": "42", "text": "a\0b"}, "text"),
    ({"event_id": "e", "sender_id": "42", "sender_name": "\ud800"}, "sender_name"),
    (b'{"event_id": "e", "sender_id": "42", "text": "\\ud800"}', "text"),
    (b'{"event_id": "e", "event_id": "e", "sender_id": "42"}', "event_id"),
    ({"sender_id": "42"}, "event_id"), ({"event_id": "e"}, "sender_id"), ({**EVENT, "sender_id": 42}, "sender_id"),
    ({**EVENT, "sender_id": ""}, "sender_id"), ({**EVENT, "text": "x" * 20_001}, "text"), ({**EVENT, "unknown": 1}, "unknown"),
    ({**EVENT, "platform": "telegram"}, "platform"), ({**EVENT, "is_bot": "no"}, "is_bot"), ({**EVENT, "reply_route": []}, "reply_route"),
    ({**EVENT, "reply_route": {"x": "y" * 5_000}}, "reply_route"), ({**EVENT, "received_at": "yesterday"}, "received_at"),
    ({**EVENT, "attachments": [{"name": "x"}] * 9}, "attachments"), ({**EVENT, "attachments": {}}, "attachments"),
])  # fmt: skip
def test_txt_01_and_03_a_signed_body_that_is_not_an_event_is_400_and_names_the_field(queued, body, field):
    a_channel()
    answer = post(body)
    assert answer.status_code == 400, answer.content
    assert answer.json()["extra"]["field"].startswith(field)
    assert (queued, Session.objects.count()) == ([], 0)


# --- SOC-07, RET-04 --------------------------------------------------------------------------------------------
def test_soc_07_the_answer_does_not_wait_for_the_turn(settings):
    a_channel(runtime="scripted")
    began = time.monotonic()
    assert post(EVENT | {"text": "!sleep 90"}).status_code == 202
    assert time.monotonic() - began < 30  # of 90: the machine may be busy
    until(lambda: Turn.objects.running().exists())
    settings.SUZENT_SHUTDOWN_GRACE = 0
    web.close()


def test_soc_07_while_the_database_is_locked_an_event_is_refused_or_has_its_turn(stopped_before_commit):  # noqa: F811
    channel = a_channel()
    busy = stopped_before_commit(lambda: channels.change_channel(channel, pairing_text="Hello"))
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(from_another_process, EVENT)
        threading.Event().wait(3)
        busy.finish()
        status = answer.result(60)
    assert status == 202 or status >= 500
    if status == 202:
        until(lambda: TranscriptEntry.objects.filter(text="ok: hello").exists())
    else:
        assert not Session.objects.exists()


def from_another_process(event):
    try:
        return post(event).status_code
    finally:
        connection.close()


def test_ret_04_a_full_queue_is_503_with_retry_after_and_what_was_taken_is_answered(settings):
    settings.SUZENT_SOCIAL_QUEUE, settings.SUZENT_SOCIAL_CONCURRENCY = 2, 1
    a_channel(runtime="scripted")
    taken, answers = set(), []
    for number in range(6):
        answer = post({"event_id": f"e{number}", "sender_id": "42", "text": f"!sleep 0.3\nnumber {number}"})
        answers.append(answer)
        if answer.status_code == 202:
            taken.add(f"ok: number {number}")
    full = [answer for answer in answers if answer.status_code == 503]
    assert full
    assert (full[0].json()["code"], full[0].headers["Retry-After"]) == ("queue_full", "5")
    said = TranscriptEntry.objects.filter(role="assistant")
    until(lambda: said.count() == len(taken))
    assert set(said.values_list("text", flat=True)) == taken
    assert refused() == {"queue_full": len(full)}


def test_events_of_one_chat_are_answered_in_their_order_beside_those_of_others():
    a_channel(runtime="scripted", allowed=("42", "43"))
    for number in range(4):
        post({"event_id": f"e{number}", "sender_id": "42", "text": f"!sleep 0.1\n{number}"})
    post({"event_id": "other", "sender_id": "43", "text": "quick"})
    until(lambda: TranscriptEntry.objects.filter(role="assistant").count() == 5)
    entries = TranscriptEntry.objects.filter(session="social-hook-42", role="assistant").order_by("seq")
    assert [entry.text for entry in entries] == ["ok: 0", "ok: 1", "ok: 2", "ok: 3"]


def test_at_the_servers_end_what_was_taken_in_is_still_answered():
    a_channel(runtime="scripted")
    for number in range(3):
        assert post({"event_id": f"e{number}", "sender_id": "42", "text": f"!sleep 0.2\n{number}"}).status_code == 202
    web.close()
    assert TranscriptEntry.objects.filter(role="assistant").count() == 3


def test_another_method_is_refused_in_the_shape_of_every_error():
    a_channel()
    answer = Client().get("/channels/social/hook")
    assert (answer.status_code, answer.json()["code"], answer["Allow"]) == (405, "method_not_allowed", "POST")


def test_a_body_that_is_too_large_is_refused_in_the_shape_of_every_error():
    answer = asyncio.run(ask("POST", "/channels/social/hook", body=b"x" * (1024 * 1024 + 1)))
    assert (answer.status, answer.json()["code"]) == (413, "too_large")
