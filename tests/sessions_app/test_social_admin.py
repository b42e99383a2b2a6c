"""The console's pages for channels: secrets go in and never out, the list holds at once, codes are asked for."""

import pytest
from django.urls import reverse

from sessions_app.clock import database_now
from sessions_app.models import PairingRequest, SocialChannel, SocialIdentity, SocialReply
from sessions_app.social import channels, identities, outbox, refusals
from tests.people import administrator, browser_of, onlooker
from tests.social import SECRET, a_channel, an_event

pytestmark = pytest.mark.django_db
PAGES = ("socialchannel", "socialidentity", "pairingrequest", "socialreply")


@pytest.fixture
def browser():
    return browser_of(administrator())


def page(model, *args, verb="changelist"):
    return reverse(f"admin:sessions_app_{model}_{verb}", args=args)


def form_of(**fields):
    none_below = {f"refusals-{name}_FORMS": 0 for name in ("TOTAL", "INITIAL", "MIN_NUM", "MAX_NUM")}
    return {"runtime": "", "secret": "", "secret_variable": "", "url": "", "own_id": "", "pairing_text": "Hi", **none_below, **fields}


@pytest.mark.parametrize("model", PAGES)
def test_a_page_without_rows_is_there(browser, model):
    assert browser.get(page(model)).status_code == 200


@pytest.mark.parametrize("model", PAGES)
def test_who_has_no_right_sees_no_page(model):
    assert browser_of(onlooker()).get(page(model)).status_code == 403


def test_a_channel_is_made_with_its_secret_sealed_and_never_shown(browser):
    project = a_channel("first").project
    made = form_of(name="second", driver="webhook", project=project.pk, secret=SECRET, active="on")
    assert browser.post(page("socialchannel", verb="add"), made).status_code == 302
    channel = SocialChannel.objects.get(pk="second")
    assert channels.secret_of(channel) == SECRET
    shown = browser.get(page("socialchannel", "second", verb="change"))
    assert shown.status_code == 200
    assert SECRET not in shown.content.decode()
    assert channel.secret_sealed not in shown.content.decode()


def test_saving_without_a_secret_leaves_it_as_it_is(browser):
    a_channel()
    assert browser.post(page("socialchannel", "hook", verb="change"), form_of(pairing_text="Good day")).status_code == 302
    channel = SocialChannel.objects.get()
    assert (channel.pairing_text, channel.active, channels.secret_of(channel)) == ("Good day", False, SECRET)


@pytest.mark.parametrize(("field", "value"), [
    ("secret", "short"), ("secret_variable", "SECRET_KEY"), ("url", "ftp://x"), ("url", "http://169.254.169.254/"), ("runtime", "gpt"),
])  # fmt: skip
def test_what_does_not_fit_is_said_beside_its_field(browser, field, value):
    a_channel()
    answer = browser.post(page("socialchannel", "hook", verb="change"), form_of(active="on", **{field: value}))
    assert answer.status_code == 200
    assert answer.context["adminform"].form.errors
    assert SocialChannel.objects.get().active


def test_what_was_refused_is_shown_with_the_channel(browser):
    a_channel()
    refusals.count("hook", "bad_signature", now=database_now())
    assert "bad_signature" in browser.get(page("socialchannel", "hook", verb="change")).content.decode()


def test_somebody_is_let_in_and_taken_off_the_list(browser):
    channel = a_channel(allowed=())
    browser.post(page("socialidentity", verb="add"), {"channel": channel.pk, "sender_id": "42", "verdict": "allowed", "label": "Alice"})
    assert identities.standing_of("hook", "42") == "admitted"
    chosen = {"action": "remove_chosen", "_selected_action": [SocialIdentity.objects.get().pk]}
    browser.post(page("socialidentity"), chosen)
    assert identities.standing_of("hook", "42") == "stranger"


@pytest.mark.parametrize("verdict", ["denied", "allowed"])
def test_who_is_on_the_list_already_is_judged_anew(browser, verdict):
    channel = a_channel(allowed=("42", "43"))
    answer = browser.post(page("socialidentity", verb="add"), {"channel": channel.pk, "sender_id": "42", "verdict": verdict, "label": "Al"})
    assert answer.status_code == 302
    assert identities.standing_of("hook", "42") == ("denied" if verdict == "denied" else "admitted")
    assert list(SocialIdentity.objects.order_by("sender_id").values_list("sender_id", "label")) == [("42", "Al"), ("43", "Alice")]


def test_codes_are_not_switched_on_where_nobody_could_get_one(browser):
    a_channel()
    answer = browser.post(page("socialchannel", "hook", verb="change"), form_of(active="on", pairing="on"))
    assert "pairing" in answer.context["adminform"].form.errors
    assert not SocialChannel.objects.get().pairing


def test_a_sender_id_with_blanks_is_refused(browser):
    channel = a_channel(allowed=())
    browser.post(page("socialidentity", verb="add"), {"channel": channel.pk, "sender_id": "4\u202e2", "verdict": "allowed", "label": ""})
    assert not SocialIdentity.objects.exists()


def test_the_right_code_lets_in_and_a_wrong_one_is_counted(browser):
    channel = a_channel(allowed=(), pairing=True, url="http://127.0.0.1:9/")
    identities.offer_pairing(channel, an_event(sender_name="<b>\u202eAlice"), now=database_now())
    request = PairingRequest.objects.get()
    code = SocialReply.objects.get().text.rpartition(" ")[2]
    listed = browser.get(page("pairingrequest")).content.decode()
    assert "<b>" not in listed.replace("<b>Suzent", "")
    assert code not in browser.get(page("socialreply")).content.decode()
    let_in = f"/admin/sessions_app/pairingrequest/{request.pk}/approve/"
    browser.post(let_in, {"_form_submitted": "on", "code": "AAAAAA"})
    assert PairingRequest.objects.get().wrong_tries == 1
    browser.post(let_in, {"_form_submitted": "on", "code": code})
    assert identities.standing_of("hook", "42") == "admitted"


def test_a_reply_that_a_person_has_to_decide_about_can_be_sent_again(browser):
    channel = a_channel(url="http://127.0.0.1:9/")
    outbox.write_to_stranger(channel, an_event(), "text", now=database_now())
    reply = outbox.claim("tests", now=database_now())
    outbox.end(reply, SocialReply.Status.UNCERTAIN, "no answer", now=database_now())
    assert "no answer" in browser.get(page("socialreply")).content.decode()
    assert browser.get(page("socialreply", reply.pk, verb="change")).status_code == 200
    browser.post(page("socialreply"), {"action": "send_chosen_again", "_selected_action": [reply.pk]})
    assert SocialReply.objects.get().status == "pending"
