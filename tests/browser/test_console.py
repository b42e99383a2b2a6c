"""The console in a real browser: what an operator does when something has failed."""

import shutil
from contextlib import contextmanager

import pytest

from inbox_app.models import Message
from sessions_app.models import Lane
from tests.factories import MessageFactory, failed
from tests.people import operator

pytestmark = [pytest.mark.browser, pytest.mark.once, pytest.mark.django_db(transaction=True)]
sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
PASSWORD = "open sesame"


@pytest.fixture
def operator_with_password():
    user = operator()
    user.set_password(PASSWORD)
    user.save(update_fields=["password"])
    return user


@contextmanager
def signed_in(live_server, user, errors):
    """A page of the console. The database is not to be asked while it is open: playwright has an event loop here."""
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_page(base_url=live_server.url)
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto("/admin/")
        page.fill("#id_username", user.username)
        page.fill("#id_password", PASSWORD)
        page.click("button[type=submit]")
        yield page
        browser.close()


def test_an_operator_finds_the_failed_message_and_retries_it(live_server, operator_with_password):
    message = failed(MessageFactory(message_id="broken", sender=None, sender_label="Ann"), error="no such tool")
    errors = []
    with signed_in(live_server, operator_with_password, errors) as page:
        page.click("text=Failed messages")
        page.click("#result_list >> text=broken")
        page.click("text=Retry")
        page.fill("#id_reason", "tool is there now")
        page.click("#dialog button[type=submit]")
        page.wait_for_selector("text=Will be tried again.")
    message.refresh_from_db()
    assert (message.status, message.interventions.get().why) == (Message.Status.PENDING, "tool is there now")
    assert errors == []


def test_an_operator_withdraws_what_waits_from_the_list(live_server, operator_with_password):
    message = MessageFactory(sender=None, sender_label="Ann")
    errors = []
    with signed_in(live_server, operator_with_password, errors) as page:
        page.goto("/admin/inbox_app/message/?status=pending")
        page.check(".action-select")
        page.select_option("select[name=action]", "withdraw_chosen")
        page.click("text=Run")
        page.wait_for_selector("text=Withdrawn: 1.")
    message.refresh_from_db()
    assert message.reason == Message.Reason.WITHDRAWN
    assert errors == []


def test_an_operator_pauses_a_lane(live_server, operator_with_password):
    message = MessageFactory()
    errors = []
    with signed_in(live_server, operator_with_password, errors) as page:
        page.goto("/admin/sessions_app/lane/")
        page.click(f"#result_list >> text={message.lane}")
        page.click("text=Pause")
        page.click("#dialog button[type=submit]")
        page.wait_for_selector("text=Paused.")
    assert Lane.objects.get(pk=message.lane).paused_at
    assert errors == []


def test_text_of_a_sender_runs_nothing_and_turns_nothing_round(live_server, operator_with_password):
    odd = "<img src=x onerror=\"document.title='owned'\">\u202egpj.exe"
    message = failed(MessageFactory(sender=None, sender_label=odd, content=odd), error=odd)
    errors = []
    with signed_in(live_server, operator_with_password, errors) as page:
        for path in ("/admin/", "/admin/inbox_app/message/", f"/admin/inbox_app/message/{message.pk}/change/"):
            page.goto(path)
            assert page.title() != "owned"
            assert "U+202E" in page.inner_text("#main")
            assert page.eval_on_selector(".suzent-text", "element => getComputedStyle(element).unicodeBidi") == "isolate"
    assert errors == []
