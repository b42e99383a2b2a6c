"""Telegram: the real driver and all of ``manage.py social``'s threads, against a fake Bot API on a socket."""

import threading

import pytest

from sessions_app.clock import database_now
from sessions_app.models import Session, SocialChannel, SocialReply, TranscriptEntry
from sessions_app.social import channels
from sessions_app.social.drivers import telegram
from sessions_app.social.drivers.base import Rejected, Throttled
from sessions_app.social.ingress import Ingress
from sessions_app.social.poller import BREAKS, Poller
from sessions_app.social.process import SocialProcess
from suzent_site.outbound import TooLarge, Unreachable
from tests.bot_api import ApiError, bot_api, until
from tests.social import a_channel, refused

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def short_polls(monkeypatch):
    monkeypatch.setattr(telegram, "POLL_FOR", 1)


@pytest.fixture
def api():
    with bot_api() as api:
        yield api


def a_bot(api, **about):
    return a_channel("telegram", driver="telegram", url=api.url, **about)


@pytest.fixture
def running():
    """``manage.py social`` in this process."""
    begun = []

    def start():
        process = SocialProcess().__enter__()
        process.look_at_channels()
        begun.append(process)
        return process

    yield start
    for process in begun:
        process.__exit__(None, None, None)
        process.join()


def said(session="social-telegram-42"):
    return list(TranscriptEntry.objects.filter(session=session).order_by("seq").values_list("role", "text"))


def test_a_message_is_answered_in_its_chat_and_typing_is_shown(api, running):
    a_bot(api)
    api.says("Hello 👋")
    running()
    until(lambda: api.texts == ["ok: Hello 👋"])
    assert api.sent[0]["chat_id"] == 42
    assert said() == [("user", "Hello 👋"), ("assistant", "ok: Hello 👋")]
    until(lambda: (42, "typing") in api.actions)
    until(lambda: SocialReply.objects.get().status == "sent")


def test_the_offset_moves_after_the_commit_and_others_do_not_wait(api, running):
    a_bot(api, runtime="scripted", allowed=("42", "43"))
    first = api.says("!sleep 2\nslow")
    running()
    until(lambda: said() or Session.objects.filter(pk="social-telegram-42").exists())
    api.says("quick", sender=43)
    until(lambda: "ok: quick" in api.texts)
    assert "ok: slow" not in api.texts
    assert max(api.offsets) <= first
    until(lambda: max(api.offsets) == first + 2)
    until(lambda: sorted(api.texts) == ["ok: quick", "ok: slow"])


def test_what_telegram_tells_again_has_no_second_turn(api, running):
    a_bot(api)
    api.says("once")
    running()
    until(lambda: api.texts)
    with SocialProcess() as second:
        asked = len(api.offsets)
        second.look_at_channels()
        until(lambda: 0 in api.offsets[asked:])
        until(lambda: max(api.offsets[-2:]) > 1000)
        second.close(patience=5)
        second.join()
    assert (said(), api.texts) == ([("user", "once"), ("assistant", "ok: once")], ["ok: once"])


def test_an_event_that_was_not_done_with_is_handed_on_again(api):
    poller = Poller(a_bot(api), ingress := Ingress(room=1), closing=threading.Event())
    first, second = api.says("one"), api.says("two", sender=43)
    poller.step()
    taken = ingress.take(seconds=0)
    ingress.done(taken)
    taken.over(finished=False)
    poller.step()
    again = ingress.take(seconds=0)
    assert (again.event.text, api.offsets[-1]) == ("one", first)
    ingress.done(again)
    again.over(finished=True)
    poller.step()
    assert (ingress.take(seconds=0).event.text, api.offsets[-1]) == ("two", second)


def test_an_update_that_breaks_us_every_time_is_given_up_so_that_those_behind_it_come(api):
    poller = Poller(a_bot(api), ingress := Ingress(room=1), closing=threading.Event())
    api.says("poison")
    for _ in range(BREAKS):
        poller.step()
        taken = ingress.take(seconds=0)
        ingress.done(taken)
        taken.over(finished=False, broke=True)
    second = api.says("two", sender=43)
    poller.step()
    assert (ingress.take(seconds=0).event.text, api.offsets[-1]) == ("two", second)
    assert refused("telegram") == {"broke": 1}


def test_an_update_that_has_to_wait_is_never_given_up(api):
    poller = Poller(a_bot(api), ingress := Ingress(room=1), closing=threading.Event())
    first = api.says("one")
    for _ in range(BREAKS + 1):
        poller.step()
        taken = ingress.take(seconds=0)
        ingress.done(taken)
        taken.over(finished=False)
    assert api.offsets[-1] in (0, first)


def test_strangers_bots_and_itself_are_not_answered(api, running):
    a_bot(api)
    api.says("hi", sender=43)
    api.says("hi", sender=4711, chat=-100)
    api.says("hi", is_bot=True, chat=-100)
    api.says("hello")
    running()
    until(lambda: api.texts == ["ok: hello"])
    until(lambda: refused("telegram") == {"not_listed": 1, "own": 1, "bot": 1})
    assert list(Session.objects.values_list("pk", flat=True)) == ["social-telegram-42"]


def test_a_topic_of_a_group_has_a_session_and_a_route_of_its_own(api, running):
    a_bot(api)
    api.says("here", chat=-100, is_topic_message=True, message_thread_id=7)
    running()
    until(lambda: api.sent == [{"chat_id": -100, "text": "ok: here", "message_thread_id": 7}])
    assert said("social-telegram--100:7")


def test_a_reply_to_a_text_longer_than_a_message_comes_in_parts(api, running):
    a_bot(api, runtime="scripted")
    api.says("!bytes 10000")
    running()
    until(lambda: len(api.sent) == 3)
    assert "".join(api.texts) == "x" * 10_000


def test_a_file_is_fetched_and_kept(api, running, settings):
    a_bot(api)
    api.files["f1"] = b"content"
    api.says("", caption="look", document={"file_id": "f1", "file_name": "report.pdf", "mime_type": "application/pdf", "file_size": 7})
    running()
    until(lambda: api.texts == ["ok: look"])
    [about] = TranscriptEntry.objects.get(role="user").parts[0]["attachments"]
    assert (about["name"], about["media_type"], about["size"]) == ("report.pdf", "application/pdf", 7)
    assert (settings.SUZENT_DATA_DIR / about["file"]).read_bytes() == b"content"


def test_an_answer_about_a_file_that_cannot_be_read_stops_nothing(api, running):
    a_bot(api)
    api.on_getFile = lambda **asked: ["no such thing"]
    api.says("", caption="look", document={"file_id": "f1"})
    running()
    until(lambda: api.texts == ["ok: look"])
    [about] = TranscriptEntry.objects.get(role="user").parts[0]["attachments"]
    assert about["error"].startswith("left out")


@pytest.mark.parametrize("answer", [None, 5, {"a": 1}, "x"])
def test_an_answer_without_a_list_of_updates_is_trouble_of_the_channel(api, answer):
    api.on_getUpdates = lambda **asked: answer
    closing = threading.Event()
    closing.set()
    assert not Poller(a_bot(api), Ingress(room=1), closing=closing).step()
    assert "cannot be read" in SocialChannel.objects.get().trouble


def test_a_file_larger_than_it_says_is_cut_off(api):
    channel = a_bot(api)
    api.files["f1"] = b"x" * 1000
    attachment = telegram.Attachment("f", source={"file_id": "f1"})
    with pytest.raises(TooLarge), open("/dev/null", "wb") as to:
        telegram.Telegram().fetch(channel, attachment, to=to, limit=999)


@pytest.mark.parametrize("update", [
    {}, {"message": None}, {"message": {"chat": {"id": 1}}}, {"message": {"from": [], "chat": {}}}, {"edited_message": {"text": "x"}},
    {"message": {"from": {}, "chat": {"id": 1}}}, {"message": {"from": {"id": "42\0"}, "chat": {"id": 1}}},
    {"message": {"from": {"id": 42}, "chat": {"id": None}}},
])  # fmt: skip
def test_what_is_no_message_is_passed_over(api, update):
    assert telegram.event_of(a_bot(api), {"update_id": 1, **update}, now=database_now()) is None


def test_what_telegram_complains_of_is_shown_at_the_channel_and_ends_when_it_does(api, running):
    channel = a_bot(api, secret="4711:not-the-token-of-it")
    process = running()
    until(lambda: SocialChannel.objects.get().trouble == "HTTP 401: Unauthorized")
    channels.change_channel(channel, secret="4711:made-up-token-of-a-bot")
    process.look_at_channels()
    until(lambda: SocialChannel.objects.get().trouble == "")


def test_a_channel_switched_off_is_polled_no_more(api, running):
    channel = a_bot(api)
    process = running()
    until(lambda: api.offsets)
    channels.change_channel(channel, active=False)
    process.look_at_channels()
    assert process.polled() == []


@pytest.mark.parametrize(("answer", "error"), [
    (ApiError(429, "Too Many Requests", retry_after=7), Throttled), (ApiError(400, "Bad Request"), Rejected),
])  # fmt: skip
def test_the_apis_own_errors_are_told_apart(api, answer, error):
    api.tricks = [answer]
    with pytest.raises(error):
        telegram._call(a_bot(api), "sendMessage", {"chat_id": 1, "text": "x"})


def test_without_a_server_it_is_unreachable_and_no_word_of_the_token(api):
    channel = a_bot(api)
    channel.url = "http://127.0.0.1:9"
    with pytest.raises(Unreachable) as error:
        telegram.updates(channel, offset=0, wait=0)
    assert "4711" not in error.value.detail
