"""The operators' console: what it shows of the inbox and what can be done there."""

import re
from datetime import timedelta

import pytest
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.urls import reverse
from django.utils import timezone

from inbox_app.models import Attempt, Intervention, Message, Wake
from sessions_app import lanes
from sessions_app.clock import database_now
from sessions_app.models import Turn
from tests.factories import MessageFactory, SessionFactory, claimed, committed, delivered, failed
from tests.people import administrator, browser_of, onlooker, operator

pytestmark = pytest.mark.django_db
MESSAGES = "/admin/inbox_app/message/"
ODD = "\u202egpj.exe\u2066\u200b\x1b[2J\x1b]52;c;eA==\x07\r\n2026-12-01 INFO approved\x85\u2028<script>alert(1)</script>"


@pytest.fixture
def browser():
    return browser_of(operator())


def page(browser, path, **query):
    response = browser.get(path, query)
    assert response.status_code == 200, response
    return response.content.decode()


def order_of(html):
    """The message ids of a list, from top to bottom."""
    return re.findall(r'/admin/inbox_app/message/\d+/change/[^"]*"[^>]*>([^<]+)</a>', html)


def act(browser, action, *messages, path=MESSAGES, across=False):
    """Run a list action; the sentence that the operator then sees."""
    body = {"action": action, ACTION_CHECKBOX_NAME: [row.pk for row in messages], "index": "0", "select_across": str(int(across))}
    response = browser.post(path, body, follow=True)
    return " ".join(str(message) for message in response.context["messages"])


def statuses():
    return dict(Message.objects.values_list("message_id", "status"))


# --- the list ------------------------------------------------------------------------------------------------------
def test_an_empty_inbox_has_a_page(browser):
    assert "No results" in page(browser, MESSAGES)


def test_failed_messages_come_first_then_the_newest(browser):
    first = failed(MessageFactory(message_id="broken"), error="no such tool")
    MessageFactory(message_id="older")
    MessageFactory(message_id="newer")
    assert order_of(page(browser, MESSAGES)) == ["broken", "newer", "older", f"failure-{first.pk}-0"]


def test_the_second_page_goes_on_where_the_first_ended(browser):
    target = SessionFactory()
    for number in range(103):
        MessageFactory(sender=None, target=target, message_id=f"m{number}")
    last = Message.objects.get(message_id="m0")
    browser.post(f"{MESSAGES}{last.pk}/withdraw/", {"_form_submitted": "on"})
    listed = order_of(page(browser, MESSAGES)) + order_of(page(browser, MESSAGES, p=2))
    assert listed[0] == "m0"
    assert listed[1:] == [f"m{number}" for number in range(102, 0, -1)]


def test_a_chosen_column_orders_the_list_instead(browser):
    MessageFactory(message_id="a")
    failed(MessageFactory(message_id="b", sender=None, sender_label="Ann"))
    MessageFactory(message_id="c")
    assert order_of(page(browser, MESSAGES, o="1")) == ["a", "b", "c"]


def test_filters_narrow_by_status_transport_kind_project_and_age(browser):
    waiting = MessageFactory(message_id="waiting")
    failed(MessageFactory(message_id="broken", sender=None, sender_label="Ann", kind=Message.Kind.USER_MESSAGE))
    MessageFactory(message_id="old", now=database_now() - timedelta(days=2))
    assert order_of(page(browser, MESSAGES, status="failed")) == ["broken"]
    assert order_of(page(browser, MESSAGES, status="pending")) == ["old", "waiting"]
    assert order_of(page(browser, MESSAGES, kind__exact="user_message")) == ["broken"]
    assert order_of(page(browser, MESSAGES, project__slug__exact=waiting.project_id)) == ["waiting"]
    assert order_of(page(browser, MESSAGES, transport__exact="suzent_peer")) == []
    assert order_of(page(browser, MESSAGES, age="over1d")) == ["old"]
    assert order_of(page(browser, MESSAGES, age="1h")) == ["broken", "waiting"]


def test_search_finds_a_message_id_and_the_mail_of_an_agent(browser):
    message = MessageFactory(message_id="needle")
    MessageFactory(message_id="hay")
    for term in ("needle", message.sender_id, message.target):
        assert order_of(page(browser, MESSAGES, q=term)) == ["needle"]
    assert order_of(page(browser, MESSAGES, q="need")) == []


def test_a_message_under_a_lease_that_has_passed_is_shown_as_stale(browser):
    earlier = database_now() - timedelta(hours=1)
    claimed(MessageFactory(message_id="slow", now=earlier), now=earlier)
    html = page(browser, MESSAGES)
    assert re.search(r">\s*stale\s*</span>", html)
    assert order_of(page(browser, MESSAGES, status="stale")) == ["slow"]
    assert order_of(page(browser, MESSAGES, status="processing")) == []


def test_counts_shown_equal_the_rows(browser):
    for make in (failed, delivered, claimed, lambda message: message):
        make(MessageFactory(sender=None, sender_label="Ann"))
    act(browser, "retry_chosen", Message.objects.get(status="failed"))
    html = page(browser, MESSAGES)
    shown = dict(re.findall(r'href="\?status=(\w+)"[^>]*>\w+<b>(\d+)</b>', html))
    rows = {name: Message.objects.filter(status=name).count() for name in Message.Status.values}
    assert {name: int(number) for name, number in shown.items()} == {**rows, "stale": 0}


def test_a_count_past_its_limit_says_so(browser, monkeypatch):
    monkeypatch.setattr("suzent_site.console.COUNTED", 2)
    sender = SessionFactory()
    target = SessionFactory(project=sender.project)
    MessageFactory.create_batch(3, sender=sender, target=target)
    html = page(browser, MESSAGES)
    assert "pending<b>2+</b>" in html
    assert re.search(r"2\+\s+messages", html)


@pytest.mark.parametrize(
    "query",
    [
        {"status": "bogus"}, {"age": "bogus"}, {"p": "99"}, {"p": "x"}, {"o": "x.99"}, {"e": "1"}, {"kind__exact": "bogus"},
        {"q": "\u202e"}, {"q": "x" * 5000}, {"project__slug__exact": "nowhere"}, {"sender__password": "x"}, {"all": "1"},
    ],
)  # fmt: skip
def test_odd_queries_have_an_answer(browser, query):
    MessageFactory()
    assert browser.get(MESSAGES, query, follow=True).status_code in {200, 400}


@pytest.mark.parametrize("key", ["abc", "99999999999999999999999", "-1", "1 "])
def test_a_message_that_is_not_there_is_not_found(browser, key):
    for path, asked, answer in (("change", browser.get, 302), ("history", browser.get, 302), ("retry", browser.post, 404), ("withdraw", browser.post, 404)):
        assert asked(f"{MESSAGES}{key}/{path}/", {"_form_submitted": "on"}).status_code == answer


@pytest.mark.parametrize("path", ["?q=%00", "?status=%00", "?project__slug__exact=%00", "?%00=1", "%00/change/", "x%00/history/"])
def test_a_nul_in_an_address_is_refused(browser, path):
    assert browser.get(MESSAGES + path).status_code == 400


def test_odd_text_is_made_visible_and_stays_in_its_place(browser):
    message = failed(MessageFactory(sender=None, sender_label=ODD, content=ODD, payload={"note": ODD}), error=ODD)
    for path in (MESSAGES, f"{MESSAGES}{message.pk}/change/", "/admin/"):
        html = page(browser, path)
        assert not set(html) & set("\u202e\u2066\u200b\x1b\x07\x85\u2028")
        assert "<script>alert(1)" not in html
        assert "U+202E" in html
    assert Message.objects.get(pk=message.pk).content == ODD


def test_emoji_and_line_ends_stay_as_they_are(browser):
    family = "👨\u200d👩\u200d👧 says\n\tأهلا e\u0301"
    message = MessageFactory(content=family)
    assert family in page(browser, f"{MESSAGES}{message.pk}/change/")


# --- one message ---------------------------------------------------------------------------------------------------
def test_a_message_shows_its_attempts_and_interventions(browser):
    message = failed(MessageFactory(), error="no such tool")
    browser.post(f"{MESSAGES}{message.pk}/retry/", {"_form_submitted": "on", "reason": "tool is there now"})
    html = page(browser, f"{MESSAGES}{message.pk}/change/")
    assert html.count("no such tool") >= Attempt.objects.filter(message=message).count() == 5
    assert "tool is there now" in html
    assert "operator olga" in html


def test_nothing_can_be_typed_into_a_message(browser):
    message = MessageFactory()
    html = page(browser_of(administrator()), f"{MESSAGES}{message.pk}/change/")
    assert not re.findall(r'<(?:input|select|textarea)[^>]*name="(?!csrfmiddlewaretoken|s"|q")[a-z_]+"[^>]*(?<!hidden)>', html)


@pytest.mark.parametrize(
    ("model", "row"),
    [
        ("inbox_app_message", lambda m: m.pk),
        ("inbox_app_wake", lambda m: Wake.objects.get_or_create(name="dispatch")[0].pk),
        ("sessions_app_lane", lambda m: m.lane),
        ("sessions_app_turn", lambda m: Turn.objects.get().pk),
    ],
)
def test_rows_of_the_engine_cannot_be_added_changed_or_deleted_by_anyone(model, row):
    work = claimed(MessageFactory())
    admin = browser_of(administrator())
    pk = row(work.message)
    assert admin.get(reverse(f"admin:{model}_add")).status_code == 403
    assert admin.post(reverse(f"admin:{model}_add"), {"status": "delivered"}).status_code == 403
    assert admin.get(reverse(f"admin:{model}_change", args=[pk])).status_code == 200
    assert admin.post(reverse(f"admin:{model}_change", args=[pk]), {"status": "delivered"}).status_code == 403
    assert admin.post(reverse(f"admin:{model}_delete", args=[pk]), {"post": "yes"}).status_code == 403
    assert Message.objects.get().status == "processing"


# --- retry and withdraw --------------------------------------------------------------------------------------------
def test_retry_changes_failed_rows_only_and_counts_the_others(browser):
    rows = [make(MessageFactory(sender=None, sender_label="Ann")) for make in (failed, delivered)]
    rows += [claimed(MessageFactory(sender=None, sender_label="Ann")).message, MessageFactory(sender=None, sender_label="Ann")]
    before = statuses()
    said = act(browser, "retry_chosen", *rows)
    assert said == "Will be tried again: 1. Skipped: 3, not in a state that allows it (any more)."
    assert statuses() == {**before, rows[0].message_id: "pending"}


def test_withdraw_changes_pending_rows_only(browser):
    rows = [make(MessageFactory(sender=None, sender_label="Ann")) for make in (failed, delivered)]
    rows += [claimed(MessageFactory(sender=None, sender_label="Ann")).message, MessageFactory(sender=None, sender_label="Ann")]
    before = statuses()
    said = act(browser, "withdraw_chosen", *rows)
    assert said == "Withdrawn: 1. Skipped: 3, not in a state that allows it (any more)."
    assert statuses() == {**before, rows[3].message_id: "failed"}


def test_a_double_click_retries_once(browser):
    message = failed(MessageFactory())
    act(browser, "retry_chosen", message)
    assert act(browser, "retry_chosen", message).startswith("Will be tried again: 0. Skipped: 1")
    assert message.interventions.count() == 1


def test_a_stale_page_does_not_send_again_what_was_delivered_meanwhile(browser):
    message = failed(MessageFactory(sender=None, sender_label="Ann"))
    act(browser, "retry_chosen", message)
    delivered(message)
    said = act(browser, "retry_chosen", message, path=f"{MESSAGES}?status=failed")
    assert said == "Will be tried again: 0. Skipped: 1, not in a state that allows it (any more)."
    assert statuses() == {message.message_id: "delivered"}


def test_a_message_that_had_its_turn_is_acknowledged_and_not_run_again(browser):
    """The worker died between commit and acknowledgement, the message was failed by hand and then retried."""
    message = MessageFactory(sender=None, sender_label="Ann")
    committed(claimed(message))
    act(browser, "withdraw_chosen", message)
    assert statuses() == {message.message_id: "processing"}


def test_select_all_acts_on_every_page_up_to_the_cap(browser, monkeypatch):
    monkeypatch.setattr("suzent_site.console.AT_ONCE", 3)
    sender = SessionFactory()
    target = SessionFactory(project=sender.project)
    rows = MessageFactory.create_batch(5, sender=sender, target=target)
    said = act(browser, "withdraw_chosen", rows[0], path=f"{MESSAGES}?status=pending", across=True)
    assert said == "Withdrawn: 3. Left for another time: 2, since 3 go at once."
    assert Message.objects.filter(status="failed").count() == 3


def test_a_message_to_an_archived_session_is_skipped(browser):
    message = failed(MessageFactory())
    archive = f"/admin/sessions_app/session/{message.target}/archive/"
    assert browser.post(archive, {"_form_submitted": "on"}).status_code == 302
    assert "Will be tried again: 0. Skipped: 1" in act(browser, "retry_chosen", message)


def test_the_dialog_asks_before_it_acts(browser):
    message = failed(MessageFactory())
    html = page(browser, f"{MESSAGES}{message.pk}/retry/")
    assert "Retry this message?" in html
    assert statuses()[message.message_id] == "failed"


def test_the_dialog_sends_the_browser_back_to_the_message(browser):
    message = failed(MessageFactory())
    response = browser.post(f"{MESSAGES}{message.pk}/retry/", {"_form_submitted": "on"}, headers={"hx-request": "true"})
    assert response.headers["HX-Redirect"] == f"{MESSAGES}{message.pk}/change/"
    assert statuses()[message.message_id] == "pending"


def test_a_refused_dialog_says_why(browser):
    message = delivered(MessageFactory())
    response = browser.post(f"{MESSAGES}{message.pk}/retry/", {"_form_submitted": "on"}, follow=True)
    assert [str(said) for said in response.context["messages"]] == [
        "Nothing was changed. The message is delivered; only a failed one can be retried."
    ]


def test_actions_need_the_cross_site_token():
    message = failed(MessageFactory())
    guarded = browser_of(operator())
    guarded.handler.enforce_csrf_checks = True
    assert guarded.post(f"{MESSAGES}{message.pk}/retry/", {"_form_submitted": "on"}).status_code == 403
    assert statuses()[message.message_id] == "failed"


def test_who_may_only_look_cannot_act():
    message = failed(MessageFactory())
    looking = browser_of(onlooker())
    html = page(looking, MESSAGES)
    assert order_of(html)[0] == message.message_id
    assert "retry_chosen" not in html
    assert looking.post(f"{MESSAGES}{message.pk}/retry/", {"_form_submitted": "on"}).status_code == 403
    act(looking, "retry_chosen", message)
    assert statuses()[message.message_id] == "failed"
    assert not Intervention.objects.exists()


def test_who_has_no_rights_sees_nothing():
    message = MessageFactory()
    outsider = browser_of(operator("oskar", may=()))
    assert outsider.get(MESSAGES).status_code == 403
    assert outsider.get(f"{MESSAGES}{message.pk}/change/").status_code == 403
    assert "Failed messages" not in page(outsider, "/admin/")


def test_a_signed_out_browser_is_sent_to_the_login(client):
    assert client.get(MESSAGES).headers["Location"].startswith("/admin/login/")


# --- the first page ------------------------------------------------------------------------------------------------
def figures(browser):
    return {figure.title: figure for figure in browser.get("/admin/").context["figures"]}


def test_a_quiet_installation_says_so(browser):
    html = page(browser, "/admin/")
    for said in ("Nothing has failed.", "Nothing is waiting.", "No lane is paused.", "No message is being handled."):
        assert said in html
    assert figures(browser)["Last worker answer"].alarming


def test_figures_count_what_their_links_show(browser):
    failed(MessageFactory(message_id="broken", sender=None, sender_label="Ann"))
    paused = MessageFactory(message_id="held")
    lanes.pause(paused.lane, now=database_now())
    Wake.objects.update_or_create(name="answer", defaults={"answered_at": timezone.now()})
    seen = figures(browser)
    assert (seen["Failed messages"].value, seen["Failed messages"].alarming) == ("1", True)
    assert order_of(page(browser, seen["Failed messages"].link)) == ["broken"]
    assert seen["Waiting messages"].link == f"{MESSAGES}{paused.pk}/change/"
    assert seen["Paused lanes"].value == "1"
    assert paused.lane in page(browser, seen["Paused lanes"].link)
    assert not seen["Last worker answer"].alarming
    assert "broken" in page(browser, "/admin/")


def test_every_link_of_the_sidebar_opens():
    admin = browser_of(administrator())
    links = set(re.findall(r'href="(/admin/[a-z_]+/[a-z_]+/)', page(admin, "/admin/")))
    assert len(links) >= 8
    for link in links:
        page(admin, link)


# --- the task queue's own pages ------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["schedule", "success", "failure", "ormq"])
def test_nobody_can_schedule_a_python_function(name):
    admin = browser_of(administrator())
    for path in (f"/admin/django_q/{name}/", f"/admin/django_q/{name}/add/"):
        assert admin.get(path).status_code == 404
        assert admin.post(path, {"func": "os.system", "args": "'id'"}).status_code == 404
