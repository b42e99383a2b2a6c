"""``manage.py channel``: one line of JSON each, secrets shown once, refusals in one sentence."""

import io
import json

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from sessions_app.clock import database_now
from sessions_app.models import PairingRequest, SocialChannel, SocialReply
from sessions_app.social import channels, identities
from tests.bot_api import TOKEN
from tests.factories import ProjectFactory
from tests.social import a_channel, an_event

pytestmark = pytest.mark.django_db


def channel(*arguments):
    out = io.StringIO()
    call_command("channel", *arguments, stdout=out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_webhook_gets_a_secret_that_is_shown_this_once():
    ProjectFactory(slug="chat")
    [made] = channel("create", "bridge", "--driver", "webhook")
    assert made["webhook"].endswith("/channels/social/bridge")
    assert channels.secret_of(SocialChannel.objects.get()) == made["secret"]
    assert "secret" not in channel("list")[0]


def test_telegrams_token_comes_from_standard_input(monkeypatch):
    ProjectFactory(slug="chat")
    monkeypatch.setattr("sys.stdin", io.StringIO(TOKEN))
    [made] = channel("create", "telegram", "--driver", "telegram", "--secret-from-stdin")
    assert "secret" not in made
    assert channels.secret_of(SocialChannel.objects.get()) == TOKEN


@pytest.mark.parametrize(("arguments", "said"), [
    (("create", "Bad-Name", "--driver", "webhook"), "name: must be"),
    (("create", "telegram", "--driver", "telegram"), "--secret-variable"),
    (("create", "x", "--driver", "webhook", "--secret-variable", "SECRET_KEY"), "SUZENT_SOCIAL_"),
    (("create", "x", "--driver", "webhook", "--url", "http://169.254.169.254/"), "link-local"),
    (("create", "hook", "--driver", "webhook"), "in use"),
    (("allow", "nowhere", "42"), "there is no channel"),
    (("remove", "hook", "43"), "not on the list"),
    (("approve", "hook", "43", "ABCDEF"), "no open request"),
    (("allow", "hook", " 42"), "without blanks"),
])  # fmt: skip
def test_what_does_not_fit_is_one_sentence(arguments, said):
    a_channel()
    with pytest.raises(CommandError, match=said):
        channel(*arguments)


def test_people_are_let_in_kept_out_and_forgotten():
    a_channel(allowed=())
    for verb, standing in (("allow", "admitted"), ("deny", "denied"), ("remove", "stranger")):
        channel(verb, "hook", "42")
        assert identities.standing_of("hook", "42") == standing


def test_a_code_lets_in_at_the_command_line_too():
    made = a_channel(allowed=(), pairing=True, url="http://127.0.0.1:9/")
    identities.offer_pairing(made, an_event(), now=database_now())
    channel("approve", "hook", "42", SocialReply.objects.get().text.rpartition(" ")[2])
    assert (identities.standing_of("hook", "42"), PairingRequest.objects.count()) == ("admitted", 0)
