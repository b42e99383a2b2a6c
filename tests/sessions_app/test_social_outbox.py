"""Replies: what is sent once, what is sent again and says so, what a person has to decide. The real driver, a fake platform."""

import threading
from datetime import timedelta

import pytest
from django.db import connection

from inbox_app import retention
from sessions_app.clock import database_now
from sessions_app.models import Session, SocialReply
from sessions_app.social import channels, outbox
from sessions_app.social.drivers import base, telegram
from sessions_app.social.sender import REPEAT, pieces, send_next
from suzent_site.outbound import Timeouts
from suzent_site.transactions import durable
from tests.bot_api import TOKEN, ApiError, bot_api, until
from tests.people import administrator, browser_of
from tests.social import a_channel, an_event

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def api():
    with bot_api() as api:
        yield api


@pytest.fixture
def channel(api):
    return a_channel("telegram", driver="telegram", url=api.url)


def a_reply(text="hello", *, now=None, session=None):
    event = an_event(channel="telegram", reply_route={"chat_id": 42})
    with durable():
        if session is None:
            outbox.write_to_stranger(None, event, text, now=now or database_now())
        else:
            outbox.answer(session, event, text, now=now or database_now())
    return SocialReply.objects.latest("pk")


def row(reply):
    return SocialReply.objects.get(pk=reply.pk)


def now_due(reply):
    """Its pause is over."""
    SocialReply.objects.filter(pk=reply.pk).update(next_at=database_now())


def send_until_settled(reply):
    for _ in range(20):
        if row(reply).settled_at:
            return row(reply)
        now_due(reply)
        send_next("tests")
    raise AssertionError("it is not settled")


def short_calls(monkeypatch):
    monkeypatch.setattr(telegram._call, "__kwdefaults__", {"timeouts": Timeouts(1, 0.3, 1)})


def test_a_reply_is_sent_once(api, channel):
    reply = a_reply()
    assert [send_next("tests"), send_next("tests")] == [True, False]
    assert (api.sent, row(reply).status) == ([{"chat_id": 42, "text": "hello", "message_thread_id": None}], "sent")


def test_soc_08_a_platform_that_took_it_and_never_answers_gets_one_repeat_that_says_so(api, channel, monkeypatch):
    short_calls(monkeypatch)
    api.tricks = ["take and be silent", "take"]
    assert send_until_settled(a_reply()).status == "sent"
    assert api.texts == ["hello", f"{REPEAT}hello"]


@pytest.mark.parametrize("trick", ["take and say 500", "take and hang up"])
def test_soc_08_after_a_second_try_without_a_clear_answer_a_person_decides(api, channel, trick):
    api.tricks = [trick] * 5
    reply = send_until_settled(a_reply())
    assert (reply.status, api.texts) == ("uncertain", ["hello", f"{REPEAT}hello"])
    browser = browser_of(administrator())
    [figure] = [one for one in browser.get("/admin/").context["figures"] if one.title == "Replies in doubt"]
    assert (figure.value, figure.alarming) == ("1", True)
    assert browser.get(figure.link).context["cl"].result_count == 1
    assert reply.last_error
    assert not send_next("tests")


def test_soc_08_a_429_waits_as_long_as_it_says_and_repeats_nothing(api, channel):
    api.tricks = [ApiError(429, "Too Many Requests", retry_after=30)]
    reply = a_reply()
    before = database_now()
    send_next("tests")
    assert row(reply).next_at - before >= timedelta(seconds=29)
    assert not send_next("tests")
    assert send_until_settled(reply).status == "sent"
    assert api.texts == ["hello"]


def test_soc_08_confirmed_parts_of_a_split_reply_are_not_sent_again_and_none_is_lost(api, channel):
    text = "".join(f"line {number:04} 👍🏽\n" for number in range(600))
    api.tricks = ["take", "take and hang up", "take"]
    reply = send_until_settled(a_reply(text))
    assert reply.status == "sent"
    repeated = [sent for sent in api.texts if sent.startswith(REPEAT)]
    assert repeated == [REPEAT + api.texts[1]]
    assert "".join(sent for sent in api.texts if sent not in repeated) == text


def test_soc_08_a_sender_killed_in_the_middle_makes_one_repeat_that_says_so(api, channel):
    reply = a_reply()
    now = database_now()
    assert outbox.claim("killed", now=now)
    assert outbox.claim("other", now=now) is None
    later = now + outbox.CLAIM_LASTS
    taken_over = outbox.claim("other", now=later)
    assert (taken_over.pk, taken_over.repeated) == (reply.pk, True)
    assert outbox.claim("third", now=later + outbox.CLAIM_LASTS) is None
    assert row(reply).status == "uncertain"


def test_a_sender_whose_claim_has_passed_changes_nothing(api, channel):
    a_reply()
    now = database_now()
    stale = outbox.claim("slow", now=now)
    fresh = outbox.claim("quick", now=now + outbox.CLAIM_LASTS)
    outbox.confirm(stale, more=False, now=now)
    assert row(fresh).status == "sending"
    outbox.confirm(fresh, more=False, now=now)
    assert row(fresh).status == "sent"


def test_a_refusal_is_tried_five_times_and_then_shown(api, channel):
    api.tricks = [ApiError(403, "Forbidden: bot was blocked by the user")] * 9
    reply = send_until_settled(a_reply())
    assert (reply.status, reply.last_error, len(api.tricks)) == ("failed", "HTTP 403: Forbidden: bot was blocked by the user", 4)


def test_what_certainly_did_not_arrive_is_tried_for_a_day_and_needs_no_mark(api, channel):
    channels.change_channel(channel, url="http://127.0.0.1:9")
    reply = a_reply()
    send_next("tests")
    assert (row(reply).status, row(reply).repeated, row(reply).tries) == ("pending", False, 0)
    SocialReply.objects.filter(pk=reply.pk).update(created_at=database_now() - timedelta(days=1, minutes=1))
    assert send_until_settled(reply).status == "failed"


def test_nothing_overtakes_a_reply_of_the_same_session(api, channel):
    session = Session.objects.filter(pk="none").first() or channel.project.sessions.create(
        agent_id="social-telegram-42", kind="social", created_at=database_now(), updated_at=database_now()
    )
    api.tricks = [ApiError(429, "Too Many Requests", retry_after=30)]
    first, second = a_reply("first", session=session), a_reply("second", session=session)
    assert [send_next("tests"), send_next("tests")] == [True, False]
    send_until_settled(first)
    send_until_settled(second)
    assert api.texts == ["first", "second"]


def test_a_channel_that_is_off_sends_nothing_until_it_is_on(api, channel):
    reply = a_reply()
    channels.change_channel(channel, active=False)
    assert not send_next("tests")
    channels.change_channel(channel, active=True)
    assert send_until_settled(reply).status == "sent"


def test_an_operator_can_have_one_sent_again(api, channel):
    api.tricks = [ApiError(400, "Bad Request")] * 5
    reply = send_until_settled(a_reply())
    assert outbox.send_again(reply, now=database_now())
    assert (send_until_settled(reply).status, outbox.send_again(reply, now=database_now())) == ("sent", False)


def test_a_code_is_kept_nowhere_once_it_is_sent(api, channel):
    reply = send_until_settled(a_reply("Hi. Your code: ABC234"))
    assert (reply.text, api.texts) == ("", ["Hi. Your code: ABC234"])


def test_no_error_text_carries_the_token(api, channel):
    api.tricks = ["take and hang up"]
    reply = a_reply()
    send_next("tests")
    assert row(reply).last_error
    assert TOKEN not in row(reply).last_error


def test_two_senders_never_take_one_reply(api, channel):
    for number in range(6):
        a_reply(f"reply {number}")
    threads = [threading.Thread(target=all_of, args=(f"sender-{number}",)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    until(lambda: not SocialReply.objects.unsettled().exists())
    assert sorted(api.texts) == [f"reply {number}" for number in range(6)]


def all_of(owner):
    while send_next(owner):
        continue
    connection.close()


def test_replies_that_were_settled_long_ago_go_and_what_waits_stays(api, channel):
    old, waiting = send_until_settled(a_reply()), a_reply()
    later = database_now() + timedelta(days=31)
    assert retention.purge(now=later, rest=lambda seconds: False).gone["social_replies"] == 1
    assert list(SocialReply.objects.all()) == [waiting]
    assert old.status == "sent"


# --- Splitting -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("text", ["x" * 10_000, "word " * 2_000, "👍" * 5_000, "a\n" * 5_000, "x" * 4096])
def test_pieces_are_short_enough_and_whole_together(text):
    found = pieces(text, most=4000)
    assert "".join(found) == text
    assert max(len(piece.encode("utf-16-le")) // 2 for piece in found) <= 4000


def test_no_piece_is_blank():
    found = pieces("a" + "\n" * 5000 + "b", most=1000)
    assert [piece.strip() for piece in found] == ["a", "b"]


def test_every_call_ends_well_within_a_claim():
    assert base.TIMEOUTS.total <= outbox.CLAIM_LASTS.total_seconds() - 8
