"""What people and agents do to projects, sessions and tokens."""

from datetime import timedelta

import pytest

from inbox_app.models import Message
from sessions_app import actions, lanes
from sessions_app.clock import database_now
from sessions_app.models import ApiToken, Lane, Session, Turn
from suzent_site.errors import Conflict, Invalid
from tests.factories import MessageFactory, ProjectFactory, SessionFactory, TokenFactory, claimed, committed

pytestmark = pytest.mark.django_db


@pytest.fixture
def project():
    return ProjectFactory()


def open_session(project, **about):
    return actions.open_session(project, now=database_now(), **about)


# --- projects --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slug", ["", "-a", "a b", "a/b", "é", "a" * 65, "a\n"])
def test_a_project_needs_a_plain_slug(slug):
    with pytest.raises(Invalid):
        actions.create_project(slug)


def test_a_slug_is_used_once(project):
    with pytest.raises(actions.IdTaken):
        actions.create_project(project.slug)


@pytest.mark.parametrize("runtimes", [[], ["unheard-of"]])
def test_a_project_allows_known_runtimes_only(runtimes):
    with pytest.raises(Invalid):
        actions.create_project("p", runtimes=runtimes)


# --- opening ---------------------------------------------------------------------------------------------------


def test_a_session_is_made_with_its_lane(project):
    session = open_session(project)
    assert session.agent_id.startswith("ses_")
    assert Lane.objects.get().key == f"agent:{session.agent_id}"


def test_a_session_takes_the_first_runtime_of_its_project():
    assert open_session(ProjectFactory(runtimes=["scripted", "echo"])).runtime == "scripted"


@pytest.mark.parametrize("agent_id", ["-a", "a b", "a/b", "a" * 129, "é", "a\n", " a"])
def test_a_malformed_id_is_refused(project, agent_id):
    with pytest.raises(Invalid, match="agent_id"):
        open_session(project, agent_id=agent_id)


@pytest.mark.parametrize("prefix", ["ses_", "subagent-", "cron-", "social-", "suzent:", "peer:", "Peer:", "SES_"])
def test_prefixes_that_are_ours_are_refused(project, prefix):
    with pytest.raises(Invalid, match=r"one of ours \(.*peer:\)$"):
        open_session(project, agent_id=f"{prefix}x")


def test_an_id_is_never_used_again_not_even_in_another_project(project):
    """SND-10."""
    session = open_session(project, agent_id="a")
    actions.archive_session(session, now=database_now())
    for anywhere in (project, ProjectFactory()):
        with pytest.raises(actions.IdTaken):
            open_session(anywhere, agent_id="a")


@pytest.mark.parametrize(
    ("about", "field"),
    [
        ({"title": "t" * 201}, "title"),
        ({"title": "a\x00"}, "title"),
        ({"title": "half of a pair: \ud800"}, "title"),
        ({"runtime": "unheard-of"}, "runtime"),
        ({"config": ["not", "an", "object"]}, "config"),
        ({"config": {"x": "y" * 70_000}}, "config"),
        ({"config": {"x": "a\x00"}}, "config"),
        ({"config": {"x": "half of a pair: \ud800"}}, "config"),
        ({"config": {"x": float("nan")}}, "config"),
    ],
)
def test_what_a_session_cannot_be_is_refused_by_field(project, about, field):
    with pytest.raises(Invalid) as refused:
        open_session(project, **about)
    assert field in str(refused.value.extra) + refused.value.detail
    assert not Session.objects.exists()


def test_a_config_may_speak_of_an_escape(project):
    config = {"instructions": "never write \\u0000"}
    assert open_session(project, config=config).config == config


def test_a_runtime_that_the_project_does_not_allow_is_refused():
    with pytest.raises(Invalid):
        open_session(ProjectFactory(runtimes=["echo"]), runtime="scripted")


def test_an_archived_project_takes_no_session(project):
    project.archived_at = database_now()
    project.save(update_fields=["archived_at"])
    with pytest.raises(Conflict):
        open_session(project)


# --- changing --------------------------------------------------------------------------------------------------


def test_none_leaves_a_field_as_it_is(project):
    session = open_session(project, title="old", config={"a": 1})
    changed = actions.change_session(session, now=database_now(), title="new")
    assert (changed.title, changed.config, changed.runtime) == ("new", {"a": 1}, session.runtime)


def test_an_archived_session_cannot_be_changed(project):
    session = open_session(project)
    actions.archive_session(session, now=database_now())
    with pytest.raises(actions.SessionGone):
        actions.change_session(session, now=database_now(), title="new")


# --- archiving -------------------------------------------------------------------------------------------------


def test_archiving_says_whether_it_was_the_first():
    session = SessionFactory()
    assert actions.archive_session(session, now=database_now())
    assert not actions.archive_session(session, now=database_now())


def test_archiving_fences_off_the_running_turn_and_asks_it_to_stop():
    """SND-09: its late commit is refused, and the agent need not think on."""
    work = claimed(MessageFactory())
    actions.archive_session(work.message.session, now=database_now())
    committed(work)
    turn = Turn.objects.get()
    assert (turn.state, turn.stop_requested_at is None) == ("failed", False)
    assert not work.message.session.entries.exists()
    assert not lanes.holds_still(work.hold)


def test_archiving_makes_a_paused_lane_due_for_its_mail_to_fail():
    message = MessageFactory()
    lanes.pause(message.session.lane_key, now=database_now())
    actions.archive_session(message.session, now=database_now())
    assert lanes.any_due(now=database_now())


def test_archiving_asks_the_descendants_to_stop():
    parent = SessionFactory()
    child = SessionFactory(project=parent.project, parent=parent)
    grandchild = SessionFactory(project=parent.project, parent=child)
    work = claimed(MessageFactory(sender=None, sender_label="a", target=grandchild))
    actions.archive_session(parent, now=database_now())
    assert Turn.objects.get(pk=work.turn.pk).stop_requested_at
    assert lanes.holds_still(work.hold)


# --- stopping --------------------------------------------------------------------------------------------------


def test_stopping_what_does_not_run_says_so():
    message = MessageFactory()
    assert not actions.stop_session(message.session, now=database_now())
    assert Message.objects.get().status == "pending"


def test_stopping_asks_the_running_turn_and_those_below_it():
    parent = SessionFactory()
    child = SessionFactory(project=parent.project, parent=parent)
    works = [claimed(MessageFactory(sender=None, sender_label="a", target=one)) for one in (parent, child)]
    assert actions.stop_session(parent, now=database_now())
    assert Turn.objects.filter(stop_requested_at__isnull=False).count() == len(works)


def test_stopping_a_child_leaves_its_parent():
    parent = SessionFactory()
    child = SessionFactory(project=parent.project, parent=parent)
    work = claimed(MessageFactory(sender=None, sender_label="a", target=parent))
    assert not actions.stop_session(child, now=database_now())
    assert Turn.objects.get(pk=work.turn.pk).stop_requested_at is None


def test_descendants_are_all_below_and_oneself():
    parent = SessionFactory()
    child = SessionFactory(project=parent.project, parent=parent)
    grandchild = SessionFactory(project=parent.project, parent=child)
    SessionFactory(project=parent.project)
    assert actions.descendants_of(parent) == [parent.pk, child.pk, grandchild.pk]


# --- tokens ----------------------------------------------------------------------------------------------------


def test_only_the_digest_of_a_token_is_kept():
    minted = TokenFactory()
    row = ApiToken.objects.get()
    assert minted.secret not in "".join(str(value) for value in vars(row).values())
    assert actions.find_token(minted.secret, now=database_now()) == row


@pytest.mark.parametrize("secret", ["", "unknown", "\ud800", "\x00", "x" * 100_000])
def test_another_secret_finds_nothing(secret):
    TokenFactory()
    assert actions.find_token(secret, now=database_now()) is None


def test_a_revoked_token_is_refused_from_then_on():
    minted = TokenFactory()
    assert actions.revoke_token(minted.token, now=database_now())
    assert not actions.revoke_token(minted.token, now=database_now())
    assert actions.find_token(minted.secret, now=database_now()) is None


def test_a_token_ends_at_its_time():
    now = database_now()
    minted = TokenFactory(expires_at=now + timedelta(hours=1))
    assert actions.find_token(minted.secret, now=now)
    assert actions.find_token(minted.secret, now=now + timedelta(hours=1)) is None


def test_a_token_of_a_session_needs_its_project():
    with pytest.raises(Invalid):
        actions.mint_token(ProjectFactory(), now=database_now(), session=SessionFactory())
