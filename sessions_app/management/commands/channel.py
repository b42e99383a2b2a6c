"""Channels to other platforms, and who may write there, for scripts."""

from __future__ import annotations

import secrets
import sys
from argparse import ArgumentParser
from typing import Any

from django.conf import settings

from sessions_app.clock import database_now
from sessions_app.management.project_option import add_project, chosen_project
from sessions_app.models import PairingRequest, SocialChannel, SocialIdentity
from sessions_app.social import channels, identities
from suzent_site.errors import Invalid
from suzent_site.script_command import AddVerb, ScriptCommand


class Command(ScriptCommand):
    help = "Make channels and say who may write on them. One line of JSON on standard output."

    def verbs(self, add: AddVerb) -> None:
        create = add("create", help="make a channel; a webhook without a secret gets one, shown this once")
        create.add_argument("name", help="small letters, digits and _")
        create.add_argument("--driver", required=True, choices=SocialChannel.Driver.values)
        add_project(create)
        create.add_argument("--runtime", default="", help="what answers; left out, the project's first")
        create.add_argument("--secret-variable", metavar="NAME", default="", help="environment variable SUZENT_SOCIAL_… with the secret")
        create.add_argument("--secret-from-stdin", action="store_true", help="read the secret (Telegram: the bot's token) from standard input")
        create.add_argument("--url", default="", help="Telegram: another Bot API server; webhook: where replies are posted")
        create.add_argument("--own-id", default="", help="our own sender id there, which is not answered")
        create.add_argument("--pairing", action="store_true", help="give strangers a code")
        add("list", help="the channels")
        for verb, help_text in (("allow", "let somebody in"), ("deny", "keep somebody out"), ("remove", "take somebody off the list")):
            _add_sender(add(verb, help=help_text))
        approve = add("approve", help="let in whom a code was given to")
        _add_sender(approve)
        approve.add_argument("code", help="the six characters that this person tells you")

    def create(self, options: dict[str, Any]) -> dict[str, Any]:
        secret, made = _secret(options)
        channel = channels.create_channel(
            options["name"], driver=options["driver"], project=chosen_project(options["project"]), now=database_now(),
            runtime=options["runtime"], secret=secret, secret_variable=options["secret_variable"], url=options["url"],
            own_id=options["own_id"], pairing=options["pairing"],
        )  # fmt: skip
        return _shown(channel) | ({"secret": secret} if made else {})

    def list(self, options: dict[str, Any]) -> list[dict[str, Any]]:
        return [_shown(channel) for channel in SocialChannel.objects.order_by("name")]

    def allow(self, options: dict[str, Any]) -> dict[str, Any]:
        return _judge(options, SocialIdentity.Verdict.ALLOWED)

    def deny(self, options: dict[str, Any]) -> dict[str, Any]:
        return _judge(options, SocialIdentity.Verdict.DENIED)

    def remove(self, options: dict[str, Any]) -> dict[str, Any]:
        found = SocialIdentity.objects.filter(channel=_channel(options), sender_id=options["sender_id"]).first()
        if found is None:
            raise Invalid("sender_id", "is not on the list of this channel")
        identities.remove(found)
        return {"channel": options["name"], "sender_id": options["sender_id"], "verdict": "removed"}

    def approve(self, options: dict[str, Any]) -> dict[str, Any]:
        request = PairingRequest.objects.filter(channel=_channel(options), sender_id=options["sender_id"]).first()
        if request is None:
            raise Invalid("sender_id", "has no open request on this channel")
        identities.approve(request, options["code"], now=database_now())
        return {"channel": options["name"], "sender_id": options["sender_id"], "verdict": "allowed"}


def _add_sender(parser: ArgumentParser) -> None:
    parser.add_argument("name", help="the channel")
    parser.add_argument("sender_id", help="exactly as the platform writes it")


def _secret(options: dict[str, Any]) -> tuple[str, bool]:
    """The secret, and whether we made it."""
    if options["secret_from_stdin"]:
        return sys.stdin.readline().strip(), False
    if options["secret_variable"]:
        return "", False
    if options["driver"] == SocialChannel.Driver.TELEGRAM:
        raise Invalid("--secret-variable", "or --secret-from-stdin is needed: Telegram's token comes from @BotFather")
    return secrets.token_urlsafe(32), True


def _shown(channel: SocialChannel) -> dict[str, Any]:
    where = f"{settings.SUZENT_PUBLIC_URL.rstrip('/')}/channels/social/{channel.name}" if channel.driver == "webhook" else None
    return {
        "name": channel.name, "driver": channel.driver, "project": channel.project_id, "active": channel.active, "webhook": where,
        "pairing": channel.pairing, "trouble": channel.trouble,
    }  # fmt: skip


def _channel(options: dict[str, Any]) -> SocialChannel:
    found = SocialChannel.objects.filter(pk=options["name"]).first()
    if found is None:
        raise Invalid("name", f"there is no channel {options['name']}")
    return found


def _judge(options: dict[str, Any], verdict: SocialIdentity.Verdict) -> dict[str, Any]:
    identity = identities.judge(_channel(options), options["sender_id"], verdict=verdict, now=database_now())
    return {"channel": identity.channel_id, "sender_id": identity.sender_id, "verdict": identity.verdict}
