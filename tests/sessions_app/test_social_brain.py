"""Social Brain: who is answered, who is not, and what is written when."""

import base64
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from sessions_app import turns
from sessions_app.actions import archive_session
from sessions_app.clock import database_now
from sessions_app.direct import DirectTurns
from sessions_app.models import (
    DeliveryMarker,
    Holder,
    PairingRequest,
    Session,
    SocialChannel,
    SocialIdentity,
    SocialReply,
    TranscriptEntry,
    Turn,
)
from sessions_app.social import channels, identities
from sessions_app.social.brain import SORRY, Brain
from sessions_app.social.events import Attachment
from sessions_app.social.identities import CodeOver, WrongCode
from sessions_app.social.sender import send_next
from tests.bot_api import bot_api
from tests.rest import Agent, delivered, open_agent
from tests.social import a_channel, allow, an_event, refused

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def brain():
    with DirectTurns(Holder.Kind.SOCIAL) as direct:
        yield Brain(direct, closing=threading.Event())


def lines(session_id="social-hook-42"):
    return list(TranscriptEntry.objects.filter(session=session_id).order_by("seq").values_list("role", "text"))


def replies():
    return list(SocialReply.objects.order_by("pk").values_list("text", flat=True))


# --- An event and its turn -------------------------------------------------------------------------------------
def test_an_event_becomes_a_turn_with_its_reply_and_marker_in_one_commit(brain):
    a_channel(url="http://127.0.0.1:1/replies")
    assert brain.attend(an_event("Hello there", reply_route={"thread": 7}))
    session = Session.objects.get()
    assert (session.pk, session.kind, session.title) == ("social-hook-42", "social", "Alice on hook")
    assert lines() == [("user", "Hello there"), ("assistant", "ok: Hello there")]
    assert turns.marked({(session.pk, "hook:e1")}, source=DeliveryMarker.Source.EVENT)
    reply = SocialReply.objects.get()
    assert (reply.text, reply.status, reply.sender_id, reply.route["route"]) == ("ok: Hello there", "pending", "42", {"thread": 7})
    assert session.reply_route == reply.route
    assert Turn.objects.get().origin == "social"
    header = session.entries.get(seq=1).parts[0]
    assert (header["sender_label"], header["sender_name"], header["message_id"]) == ("hook 42", "Alice", "hook:e1")


def test_a_repeated_event_has_no_second_turn(brain):
    a_channel()
    assert brain.attend(an_event("once"))
    assert brain.attend(an_event("once"))
    assert lines() == [("user", "once"), ("assistant", "ok: once")]


@pytest.mark.parametrize("text", [
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽", "مرحبا \u202bworld\u202c", "e\u0301", "a\r\n\tb", "  padded  ", "<!-- `x` -->", "𝔘𝔫𝔦", "a\u2028b",
])  # fmt: skip
def test_txt_05_a_social_text_is_kept_as_it_came(brain, text):
    a_channel()
    brain.attend(an_event(text))
    assert lines()[0] == ("user", text)


def test_sessions_of_odd_targets_have_addresses_that_never_meet(brain):
    a_channel()
    for number, target in enumerate(["a/b", "a b", "ü", "x" * 100, "-100:7", "sha256-" + "0" * 40]):
        brain.attend(an_event(target_id=target, event_id=f"e{number}"))
    assert Session.objects.count() == 6
    assert Session.objects.filter(pk="social-hook--100:7").exists()


def test_a_social_session_is_listed_and_takes_mail(brain):
    channel = a_channel()
    planner = open_agent(channel.project, "planner")
    brain.attend(an_event())
    listed = planner.api.tool("agent_list", status="recent").json()["agents"]
    assert [agent["kind"] for agent in listed if agent["agent_id"] == "social-hook-42"] == ["social"]
    assert planner.api.send("social-hook-42", "Tell her.").status_code == 202
    assert [line["role"] for line in planner.api.tool("agent_read", agent_id="social-hook-42").json()["messages"]] == ["user", "assistant"]


def test_a_turn_that_raises_is_tried_again_and_the_person_is_told_in_the_end(brain, monkeypatch):
    monkeypatch.setattr("sessions_app.social.brain.PAUSES", (0.0, 0.0))
    a_channel(runtime="scripted", url="http://127.0.0.1:1/replies")
    brain.attend(an_event("!fail 2\nthird time"))
    brain.attend(an_event("!fail 9", event_id="e2"))
    assert replies() == ["ok: third time", SORRY]
    assert list(Turn.objects.order_by("pk").values_list("state", flat=True)) == ["failed", "failed", "committed", *["failed"] * 3]
    assert lines()[-2:] == [("user", "!fail 9"), ("system", "The turn failed: ScriptFailed: The script said to fail.")]


def test_an_archived_session_is_not_revived(brain):
    a_channel()
    brain.attend(an_event())
    archive_session(Session.objects.get(), now=database_now())
    brain.attend(an_event(event_id="e2"))
    assert (len(lines()), refused()) == (2, {"archived": 1})


# --- Who is let in ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("sender_id", "name"), [
    ("43", "Alice"), ("42 ", "Alice"), ("\u0410lice", "Alice"), ("042", "Alice"), ("Alice", "42"), ("４２", "Alice"), ("", "Alice"),
])  # fmt: skip
def test_soc_03_only_the_very_id_passes(brain, sender_id, name):
    a_channel()
    brain.attend(an_event(sender_id=sender_id, sender_name=name, target_id="room"))
    assert (Session.objects.count(), refused()) == (0, {"not_listed": 1})


def test_soc_03_an_id_of_one_platform_is_nobody_on_another(brain):
    a_channel("hook")
    a_channel("other", allowed=())
    brain.attend(an_event(channel="other"))
    assert (Session.objects.count(), refused("other")) == (0, {"not_listed": 1})


def test_soc_03_an_empty_list_lets_nobody_in(brain):
    a_channel(allowed=())
    brain.attend(an_event())
    assert (Session.objects.count(), refused()) == (0, {"not_listed": 1})


def test_soc_06_it_answers_neither_itself_nor_bots(brain):
    a_channel(allowed=("42", "4711"), own_id="4711")
    brain.attend(an_event(sender_id="4711"))
    brain.attend(an_event(is_bot=True, event_id="e2"))
    assert (Session.objects.count(), refused()) == (0, {"own": 1, "bot": 1})


def test_soc_06_the_bot_of_a_telegram_channel_is_known_by_its_token(brain):
    a_channel("telegram", driver="telegram", allowed=("4711",))
    brain.attend(an_event(channel="telegram", sender_id="4711"))
    assert refused("telegram") == {"own": 1}


def test_a_channel_that_is_off_answers_nobody(brain):
    channels.change_channel(a_channel(), active=False)
    brain.attend(an_event())
    assert (Session.objects.count(), refused()) == (0, {"channel_off": 1})


def test_soc_04_a_person_taken_off_the_list_is_refused_at_once(brain):
    channel = a_channel(allowed=())
    identity = allow(channel, "42")
    brain.attend(an_event())
    identities.remove(identity)
    brain.attend(an_event("again", event_id="e2"))
    assert (lines(), refused()) == ([("user", "hello"), ("assistant", "ok: hello")], {"not_listed": 1})


def test_soc_04_who_is_removed_while_the_event_waits_for_the_lane_has_no_turn(brain):
    channel = a_channel(allowed=())
    identity = allow(channel, "42")
    brain.attend(an_event())
    holding = Session.objects.get()
    removed = threading.Event()

    class Waits(DirectTurns):
        def begin(self, order, *, wait=0.0):
            identities.remove(identity)
            removed.set()
            return super().begin(order, wait=wait)

    with Waits(Holder.Kind.WEB) as direct:
        assert Brain(direct, closing=threading.Event()).attend(an_event("late", event_id="e2"))
    assert removed.is_set()
    assert (holding.entries.count(), refused()) == (2, {"removed": 1})


def test_soc_04_a_channel_that_is_switched_off_while_the_event_waits_for_the_lane_has_no_turn(brain):
    channel = a_channel()
    brain.attend(an_event())

    class Waits(DirectTurns):
        def begin(self, order, *, wait=0.0):
            channels.change_channel(channel, active=False)
            return super().begin(order, wait=wait)

    with Waits(Holder.Kind.WEB) as direct:
        assert Brain(direct, closing=threading.Event()).attend(an_event("late", event_id="e2"))
    assert (len(lines()), refused()) == (2, {"channel_off": 1})


def test_soc_04_switching_codes_off_keeps_out_whom_codes_let_in(brain):
    channel = a_channel(allowed=(), pairing=True, url="http://127.0.0.1:1/replies")
    pair(brain, channel)
    brain.attend(an_event(event_id="e2"))
    channels.change_channel(channel, pairing=False)
    brain.attend(an_event(event_id="e3"))
    assert (len(lines()), refused()["not_listed"]) == (2, 1)


def test_soc_04_a_reply_that_waits_is_not_sent_to_who_was_removed(brain):
    with bot_api() as api:
        channel = a_channel("telegram", driver="telegram", allowed=(), url=api.url)
        identity = allow(channel, "42")
        brain.attend(an_event(channel="telegram", reply_route={"chat_id": 42}))
        identities.remove(identity)
        assert send_next("tests")
    assert (api.sent, SocialReply.objects.get().status) == ([], "withheld")


# --- Pairing ---------------------------------------------------------------------------------------------------
def code_of(number=-1):
    """What the stranger was told last."""
    return replies()[number].rpartition(" ")[2]


def pair(brain, channel, sender_id="42"):
    brain.attend(an_event("let me in", sender_id=sender_id, event_id=f"pair-{sender_id}"))
    request = PairingRequest.objects.get(sender_id=sender_id)
    identities.approve(request, code_of(), now=database_now())


@pytest.fixture
def pairing():
    return a_channel(allowed=(), pairing=True, pairing_text="Hi. Your code:", url="http://127.0.0.1:1/replies")


def test_a_stranger_with_the_right_code_is_let_in(brain, pairing):
    pair(brain, pairing)
    assert brain.attend(an_event(event_id="e2"))
    assert lines() == [("user", "hello"), ("assistant", "ok: hello")]
    assert (SocialIdentity.objects.get().source, PairingRequest.objects.count()) == ("pairing", 0)


def test_soc_10_a_request_outlives_restarts_and_its_time_does_not_change(pairing, brain):
    brain.attend(an_event("let me in"))
    before = PairingRequest.objects.get()
    with DirectTurns(Holder.Kind.WEB) as direct:
        Brain(direct, closing=threading.Event()).attend(an_event("hello?", event_id="e2"))
    request = PairingRequest.objects.get()
    assert (request.expires_at, request.expires_at - request.created_at) == (before.expires_at, timedelta(minutes=10))
    identities.approve(request, code_of().lower(), now=database_now())
    assert identities.standing_of("hook", "42") == "admitted"


def test_a_code_is_over_after_ten_minutes(brain, pairing):
    brain.attend(an_event("let me in"))
    with pytest.raises(CodeOver):
        identities.approve(PairingRequest.objects.get(), code_of(), now=database_now() + timedelta(minutes=10, seconds=1))
    assert identities.standing_of("hook", "42") == "stranger"


def test_a_code_is_over_after_five_wrong_tries(brain, pairing):
    brain.attend(an_event("let me in"))
    request = PairingRequest.objects.get()
    for left in (4, 3, 2, 1, 0):
        with pytest.raises(WrongCode, match=f"{left} tries are left"):
            identities.approve(request, "AAAAA1", now=database_now())
    with pytest.raises(CodeOver):
        identities.approve(request, code_of(), now=database_now())


def test_the_code_of_one_person_lets_in_nobody_else(brain, pairing):
    brain.attend(an_event("let me in"))
    brain.attend(an_event("me too", sender_id="43", event_id="e2"))
    with pytest.raises(WrongCode):
        identities.approve(PairingRequest.objects.get(sender_id="43"), code_of(0), now=database_now())


def test_soc_12_a_stranger_gets_one_neutral_answer_in_ten_minutes_however_much_they_write(brain, pairing):
    for number in range(30):
        brain.attend(an_event(f"let me in {number}", event_id=f"e{number}"))
    assert (len(replies()), PairingRequest.objects.count(), Session.objects.count()) == (1, 1, 0)
    assert replies()[0].startswith("Hi. Your code: ")
    assert len(code_of()) == 6
    assert refused() == {"pairing_offered": 1, "pairing_open": 29}


def test_soc_12_many_strangers_fill_no_more_than_the_list_of_requests(brain, pairing):
    for number in range(30):
        brain.attend(an_event(sender_id=f"stranger-{number}", event_id=f"e{number}"))
    assert (len(replies()), PairingRequest.objects.count()) == (20, 20)
    assert refused() == {"pairing_offered": 20, "pairing_full": 10}


def test_soc_12_in_a_group_a_stranger_gets_no_code(brain, pairing):
    brain.attend(an_event(target_id="a-group"))
    assert (replies(), refused()) == ([], {"not_listed": 1})


def test_who_is_denied_is_never_given_a_code(brain, pairing):
    identities.judge(pairing, "42", verdict=SocialIdentity.Verdict.DENIED, now=database_now())
    brain.attend(an_event())
    assert (replies(), refused()) == ([], {"denied": 1})


# --- Attachments -----------------------------------------------------------------------------------------------
def attached(name, content=b"x", **more):
    return Attachment(name, "text/plain", source={"content": base64.b64encode(content).decode()}, **more)


def test_attachments_lie_under_names_of_ours_and_their_own_is_a_label(brain, settings):
    a_channel()
    brain.attend(an_event("", attachments=(attached("../../etc/passwd", b"content"),)))
    [about] = Session.objects.get().entries.get(seq=1).parts[0]["attachments"]
    file = Path(settings.SUZENT_DATA_DIR) / about["file"]
    assert (about["name"], about["size"], file.read_bytes()) == ("../../etc/passwd", 7, b"content")
    assert (file.parent.parent.name, file.stat().st_mode & 0o777) == ("attachments", 0o600)


def test_past_eight_files_or_fifty_mebibytes_the_rest_is_left_out_and_says_so(brain):
    a_channel()
    too_large = attached("large", size=51 * 1024 * 1024)
    brain.attend(an_event("see", attachments=(too_large, *(attached(f"f{n}") for n in range(8)))))
    kept = Session.objects.get().entries.get(seq=1).parts[0]["attachments"]
    assert ["file" in about for about in kept] == [False, *[True] * 7, False]
    assert (kept[0]["error"], kept[8]["error"]) == (
        "left out: the files of a message may have 50 MiB together", "left out: only 8 files of a message are kept",
    )  # fmt: skip


def test_a_file_that_cannot_be_had_stops_no_turn(brain):
    a_channel()
    inside = Attachment("inside", source={"url": "http://127.0.0.1:1/x"})
    brain.attend(an_event("look", attachments=(inside, Attachment("bad", source={"content": "***"}))))
    kept = Session.objects.get().entries.get(seq=1).parts[0]["attachments"]
    assert [about["error"].startswith("left out: ") for about in kept] == [True, True]
    assert lines()[1] == ("assistant", "ok: look")


def test_a_strangers_files_are_not_even_fetched(brain, settings):
    a_channel(allowed=())
    before = list((Path(settings.SUZENT_DATA_DIR) / "attachments").glob("*/*"))
    brain.attend(an_event("see", attachments=(attached("f"),)))
    assert list((Path(settings.SUZENT_DATA_DIR) / "attachments").glob("*/*")) == before
    assert SocialChannel.objects.count() == 1


# --- Mail to a social session ----------------------------------------------------------------------------------
def test_a_turn_that_a_message_woke_replies_by_the_stored_route(brain):
    with bot_api() as api:
        channel = a_channel("telegram", driver="telegram", url=api.url)
        brain.attend(an_event(channel="telegram", reply_route={"chat_id": 42}))
        planner = open_agent(channel.project, "planner")
        assert planner.api.send("social-telegram-42", "Tell her.").status_code == 202
        delivered(Agent(Session.objects.get(pk="social-telegram-42"), planner.api))
        while send_next("tests"):
            continue
    assert api.texts == ["ok: hello", "ok: Tell her."]
    assert {message["chat_id"] for message in api.sent} == {42}


def test_a_session_that_nobody_wrote_to_has_no_route_and_sends_nothing(brain):
    channel = a_channel("telegram", driver="telegram")
    brain.attend(an_event(channel="telegram", reply_route={"chat_id": 42}))
    Session.objects.update(reply_route=None)
    SocialReply.objects.all().delete()
    planner = open_agent(channel.project, "planner")
    planner.api.send("social-telegram-42", "Tell her.")
    delivered(Agent(Session.objects.get(pk="social-telegram-42"), planner.api))
    assert replies() == []
