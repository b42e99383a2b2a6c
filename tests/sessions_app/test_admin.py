"""The operators' console: projects, sessions, lanes, turns, processes, tokens."""

import json
import re

import pytest
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote
from django.utils import timezone

from sessions_app import actions
from sessions_app.clock import database_now
from sessions_app.models import ApiToken, Holder, Lane, Project, Session, Turn
from tests.factories import MessageFactory, ProjectFactory, SessionFactory, TokenFactory, claimed, delivered, failed
from tests.people import administrator, browser_of, onlooker, operator

pytestmark = pytest.mark.django_db
SESSIONS = "/admin/sessions_app/session/"
LANES = "/admin/sessions_app/lane/"
TOKENS = "/admin/sessions_app/apitoken/"
PROJECTS = "/admin/sessions_app/project/"
ODD = "\u202egpj\u200b\x1b[2J<b>bold</b>"


@pytest.fixture
def browser():
    return browser_of(administrator())


def page(browser, path, **query):
    response = browser.get(path, query)
    assert response.status_code == 200, response
    return response.content.decode()


def act(browser, action, *keys, path):
    body = {"action": action, ACTION_CHECKBOX_NAME: keys, "index": "0", "select_across": "0"}
    return " ".join(str(said) for said in browser.post(path, body, follow=True).context["messages"])


def errors_of(response):
    assert response.status_code == 200
    return {name: " ".join(said) for name, said in response.context["adminform"].form.errors.items()}


# --- projects ------------------------------------------------------------------------------------------------------
def a_project(**changes):
    return {"slug": "office", "name": "The office", "runtimes": '["echo"]', "roots": "[]", **changes}


def test_a_project_is_added_and_edited_but_keeps_its_slug(browser):
    assert browser.post(f"{PROJECTS}add/", a_project()).status_code == 302
    assert browser.post(f"{PROJECTS}office/change/", a_project(slug="villa", name="The new office")).status_code == 302
    assert list(Project.objects.values_list("slug", "name")) == [("office", "The new office")]


@pytest.mark.parametrize(
    ("field", "value"),
    [("slug", "a b"), ("slug", ""), ("runtimes", '["magic"]'), ("runtimes", "[]"), ("runtimes", "{"), ("roots", '"x"'), ("name", "x\x00y"), ("slug", "-a")],
)
def test_a_bad_project_is_refused_beside_its_field(browser, field, value):
    assert field in errors_of(browser.post(f"{PROJECTS}add/", a_project(**{field: value})))
    assert not Project.objects.exists()


def test_a_slug_in_use_is_refused(browser):
    ProjectFactory(slug="office")
    assert errors_of(browser.post(f"{PROJECTS}add/", a_project()))


# --- sessions ------------------------------------------------------------------------------------------------------
def a_session(project, **changes):
    return {"agent_id": "planner", "project": project.pk, "title": "Plans", "runtime": "echo", "config": "{}", **changes}


@pytest.mark.django_db(transaction=True)
def test_a_session_is_opened_with_its_lane(browser):
    assert browser.post(f"{SESSIONS}add/", a_session(ProjectFactory())).status_code == 302
    assert Lane.objects.filter(key=Session.objects.get(pk="planner").lane_key).exists()


def test_a_session_without_an_id_gets_one(browser):
    browser.post(f"{SESSIONS}add/", a_session(ProjectFactory(), agent_id=""))
    assert Session.objects.get().agent_id.startswith("ses_")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("agent_id", "ses_mine"), ("agent_id", "a b"), ("agent_id", "peer:1"), ("agent_id", "x" * 129), ("title", "x" * 201),
        ("runtime", "magic"), ("config", "["), ("config", "[1]"), ("config", '{"a": "\\u0000"}'), ("config", '{"\\ud800": "\\udfff"}'), ("project", "nowhere"),
        ("config", '{"a": NaN}'), ("config", '{"batch": 0}'),
    ],
)  # fmt: skip
def test_a_bad_session_is_refused_beside_its_field(browser, field, value):
    assert field in errors_of(browser.post(f"{SESSIONS}add/", {**a_session(ProjectFactory()), field: value}))
    assert not Session.objects.exists()


def test_a_runtime_that_the_project_does_not_allow_is_refused(browser):
    project = ProjectFactory(runtimes=["scripted"])
    assert "runtime" in errors_of(browser.post(f"{SESSIONS}add/", a_session(project, runtime="echo")))


def test_an_id_in_use_is_refused(browser):
    taken = SessionFactory(agent_id="planner", title="Mine")
    assert errors_of(browser.post(f"{SESSIONS}add/", a_session(taken.project)))
    assert Session.objects.get().title == "Mine"


def test_what_a_title_hides_is_laid_open_beside_its_field_and_nothing_is_shown_twice(browser):
    SessionFactory(agent_id="plain", title="Plans"), SessionFactory(agent_id="sly", title="Plans\u202e")
    plain, sly = (browser.get(f"{SESSIONS}{agent_id}/change/").content.decode() for agent_id in ("plain", "sly"))
    assert "What the title hides" not in plain
    assert "What the title hides" in sly
    assert "U+202E" in sly


@pytest.mark.django_db(transaction=True)
def test_a_session_changes_its_title_and_config_and_nothing_else(browser):
    session, other = SessionFactory(agent_id="planner"), ProjectFactory()
    body = a_session(other, agent_id="villain", title="New", config='{"batch": 3}', kind="cron", archived_at_0="2026-01-01", last_seq="9")
    assert browser.post(f"{SESSIONS}planner/change/", body).status_code == 302
    changed = Session.objects.get()
    assert (changed.agent_id, changed.title, changed.config) == ("planner", "New", {"batch": 3})
    assert (changed.project, changed.kind, changed.archived_at, changed.last_seq) == (session.project, "interactive", None, 0)


def test_an_archived_session_cannot_be_edited(browser):
    session = SessionFactory()
    actions.archive_session(session, now=database_now())
    assert browser.post(f"{SESSIONS}{session.pk}/change/", a_session(session.project)).status_code == 403


def test_the_list_shows_status_and_unsettled_mail(browser):
    busy, idle, gone = SessionFactory(agent_id="busy"), SessionFactory(agent_id="idle"), SessionFactory(agent_id="gone")
    claimed(MessageFactory(target=busy, sender=None, sender_label="Ann"))
    MessageFactory.create_batch(2, target=busy, sender=None, sender_label="Ann")
    actions.archive_session(gone, now=database_now())
    for status, agent in (("active", busy), ("idle", idle), ("archived", gone)):
        listed = re.findall(r'/session/(\w+)/change/', page(browser, SESSIONS, status=status))
        assert set(listed) == {agent.pk}
    assert re.search(r'\?q=busy&amp;status=unsettled">3</a>', page(browser, SESSIONS))


def test_the_transcript_shows_where_each_message_came_from(browser):
    message = delivered(MessageFactory(content="Dear writer", sender=SessionFactory(title="Plans")), reply="Dear planner")
    html = page(browser, f"{SESSIONS}{message.target}/change/")
    assert html.index("Dear writer") < html.index("Dear planner")
    assert "message <bdi" in html and message.message_id in html
    assert message.sender_id in html and "Plans" in html
    assert "committed" in html


def test_a_long_transcript_comes_in_pages_newest_first(browser):
    target = SessionFactory()
    for number in range(51):
        delivered(MessageFactory(target=target, sender=None, sender_label="Ann", content=f"question {number}."), reply=f"answer {number}.")
    html = page(browser, f"{SESSIONS}{target.pk}/change/")
    assert "answer 50." in html and "question 1." in html and "question 0." not in html
    older = re.search(r'href="\?before=(\d+)#transcript"', html).group(1)
    assert "question 0." in page(browser, f"{SESSIONS}{target.pk}/change/", before=older)
    assert "question 0." not in page(browser, f"{SESSIONS}{target.pk}/change/", before="nonsense")


def test_odd_text_is_made_visible(browser):
    target = SessionFactory(title=ODD)
    delivered(MessageFactory(target=target, sender=None, sender_label=ODD, content=ODD), reply=ODD)
    for path in (SESSIONS, f"{SESSIONS}{target.pk}/change/"):
        html = page(browser_of(onlooker(f"otto{len(path)}")), path)
        assert not set(html) & set("\u202e\u200b\x1b")
        assert "<b>bold" not in html


@pytest.mark.parametrize("path", ["?q=%00", "a%00/change/", "a/change/?before=%00"])
def test_a_nul_in_an_address_is_refused(browser, path):
    assert browser.get(SESSIONS + path).status_code == 400


@pytest.mark.django_db(transaction=True)
def test_archiving_is_for_good_and_noted(browser):
    session = SessionFactory()
    for _ in range(2):
        browser.post(f"{SESSIONS}{session.pk}/archive/", {"_form_submitted": "on"})
    assert Session.objects.get().archived_at
    assert [entry.change_message for entry in LogEntry.objects.all()] == ["Archived."]


@pytest.mark.django_db(transaction=True)
def test_stop_asks_the_running_turn_to_stop(browser):
    work = claimed(MessageFactory())
    said = act(browser, "stop_chosen", work.message.target, work.message.sender_id, path=SESSIONS)
    assert said == "Asked to stop: 1. Skipped: 1, not in a state that allows it (any more)."
    assert Turn.objects.get().stop_requested_at


def test_sessions_cannot_be_deleted(browser):
    session = SessionFactory()
    assert browser.post(f"{SESSIONS}{session.pk}/delete/", {"post": "yes"}).status_code == 403


# --- lanes, turns, processes ---------------------------------------------------------------------------------------
@pytest.mark.django_db(transaction=True)
def test_pause_and_resume_a_lane(browser):
    lane = SessionFactory().lane_key
    assert act(browser, "pause_chosen", lane, path=LANES) == "Paused: 1."
    assert act(browser, "pause_chosen", lane, path=LANES).startswith("Paused: 0. Skipped: 1")
    assert lane in page(browser, LANES, state="paused")
    assert act(browser, "resume_chosen", lane, path=LANES) == "Resumed: 1."
    assert Lane.objects.get().paused_at is None


@pytest.mark.django_db(transaction=True)
def test_pause_and_resume_from_the_lane_itself(browser):
    lane = SessionFactory().lane_key
    browser.post(f"{LANES}{lane}/pause/", {"_form_submitted": "on"})
    assert Lane.objects.get().paused_at
    browser.post(f"{LANES}{lane}/resume/", {"_form_submitted": "on"})
    assert Lane.objects.get().paused_at is None
    assert sorted(entry.change_message for entry in LogEntry.objects.all()) == ["Paused.", "Resumed."]


def test_an_id_that_looks_quoted_is_taken_as_it_is(browser):
    """The console's addresses quote ``_`` and ``:`` with ``_5F`` and ``_3A``; ids may hold just that."""
    session = SessionFactory(agent_id="a_5Fb:c")
    at = f"{SESSIONS}{quote(session.pk)}/"
    lane_page = re.search(r'href="(/admin/sessions_app/lane/[^"]+)"', page(browser, f"{at}change/")).group(1)
    browser.post(lane_page.replace("/change/", "/pause/"), {"_form_submitted": "on"})
    assert Lane.objects.get(pk=session.lane_key).paused_at
    assert "Resume" in page(browser, lane_page)
    assert browser.post(f"{at}archive/", {"_form_submitted": "on"}, follow=True).status_code == 200
    assert Session.objects.get().archived_at


def test_who_may_only_look_cannot_pause_stop_archive_or_revoke():
    work = claimed(MessageFactory())
    looking = browser_of(onlooker())
    for path in (f"{LANES}{work.hold.key}/pause/", f"{SESSIONS}{work.message.target}/stop/", f"{SESSIONS}{work.message.target}/archive/"):
        assert looking.post(path, {"_form_submitted": "on"}).status_code == 403
    assert not Turn.objects.stop_requested().exists()
    assert not Lane.objects.exclude(paused_at=None).exists()


@pytest.mark.parametrize("state", ["paused", "running", "stale", "due", "wanted", "failing"])
def test_lanes_narrow_by_state(browser, state):
    claimed(MessageFactory())
    MessageFactory()
    listed = set(re.findall(r"/lane/(agent_3A[\w-]+|agent:[\w-]+)/change/", page(browser, LANES, state=state)))
    assert len(listed) == {"running": 1, "due": 1}.get(state, 0)


def test_turns_and_processes_have_pages(browser):
    failed(MessageFactory(), error=ODD)
    Holder.objects.create(
        owner="shift:1", kind="shift", host="here", boot_id="b", pid=1, process_started=1, free=3, beat_at=timezone.now(), renewed_uptime=1
    )
    html = page(browser, "/admin/sessions_app/turn/") + page(browser, f"/admin/sessions_app/turn/{Turn.objects.first().pk}/change/")
    assert "\x1b" not in html and "U+001B" in html
    assert "shift:1" in page(browser, "/admin/sessions_app/holder/") + page(browser, "/admin/sessions_app/holder/shift_3A1/change/")


# --- tokens --------------------------------------------------------------------------------------------------------
def mint(browser, **body):
    return browser.post(f"{TOKENS}add/", body)


@pytest.mark.django_db(transaction=True)
def test_a_minted_token_is_shown_once_and_works(browser):
    session = SessionFactory()
    response = mint(browser, project=session.project_id, session=session.pk)
    secret = re.search(r'id="token">([^<]+)<', response.content.decode()).group(1)
    assert "no-store" in response.headers["Cache-Control"]
    assert actions.find_token(secret, now=database_now()).session == session
    assert secret not in json.dumps(dict(browser.session))
    assert secret not in "".join(morsel.value for morsel in browser.cookies.values())
    assert secret not in page(browser, TOKENS) + page(browser, f"{TOKENS}{ApiToken.objects.get().pk}/change/")


def test_a_token_for_a_session_of_another_project_is_refused(browser):
    session, other = SessionFactory(), ProjectFactory()
    assert "session" in errors_of(mint(browser, project=other.pk, session=session.pk))
    assert not ApiToken.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_revoked_token_is_refused_from_then_on(browser):
    minted = TokenFactory()
    assert act(browser, "revoke_chosen", minted.token.pk, path=TOKENS) == "Revoked: 1."
    assert act(browser, "revoke_chosen", minted.token.pk, path=TOKENS).startswith("Revoked: 0. Skipped: 1")
    assert actions.find_token(minted.secret, now=database_now()) is None


def test_a_token_cannot_be_edited_or_deleted(browser):
    token = TokenFactory().token
    assert browser.post(f"{TOKENS}{token.pk}/change/", {"revoked_at": ""}).status_code == 403
    assert browser.post(f"{TOKENS}{token.pk}/delete/", {"post": "yes"}).status_code == 403


def test_an_operator_without_the_right_makes_no_tokens():
    session = SessionFactory()
    assert mint(browser_of(operator()), project=session.project_id).status_code == 403
    assert not ApiToken.objects.exists()
