"""Grants for scripts: which devices may drive us."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from peers_app import grants, pairing
from peers_app.models import DeviceGrant, GrantRequest
from sessions_app.clock import database_now
from sessions_app.management.project_option import add_project, chosen_project
from suzent_site.script_command import AddVerb, ScriptCommand, operator


class Command(ScriptCommand):
    help = "See and answer requests of devices that want to drive us, and end what was granted. One line of JSON on standard output."

    def verbs(self, add: AddVerb) -> None:
        add("list", help="open requests and all grants, in one JSON list")
        approve = add("approve", help="let a device drive a session of its own; it fetches its token itself")
        approve.add_argument("request", metavar="REQUEST", help="the request_id that list shows")
        add_project(approve)
        approve.add_argument("--replace", metavar="DEVICE", default="", help="it is this device again, whose grant ends")
        add("deny", help="refuse a request").add_argument("request", metavar="REQUEST")
        for verb, what in (
            ("pause", "refuse the device's token until it is resumed"),
            ("resume", "take its token again"),
            ("revoke", "refuse its token for good, at once"),
            ("rotate", "give it a new token, shown this once unless the device takes it by itself; the one it has ends"),
        ):
            _device(add(verb, help=what))

    def list(self, options: dict[str, Any]) -> list[list[dict[str, Any]]]:
        waiting = [_request(request) for request in GrantRequest.objects.open(database_now()).order_by("created_at")]
        return [[*waiting, *(_grant(grant) for grant in DeviceGrant.objects.select_related("request").order_by("created_at"))]]

    def approve(self, options: dict[str, Any]) -> dict[str, Any]:
        request = grants.request_named(options["request"])
        replace = grants.grant_named(options["replace"]) if options["replace"] else None
        project = replace.project if replace else chosen_project(options["project"])
        return _grant(grants.approve(request, project=project, replace=replace, who=operator(), now=database_now()), request=request)

    def deny(self, options: dict[str, Any]) -> dict[str, Any]:
        request = grants.request_named(options["request"])
        grants.deny(request, who=operator(), now=database_now())
        return {**_request(request), "state": GrantRequest.State.DENIED}

    def pause(self, options: dict[str, Any]) -> dict[str, Any]:
        grant = grants.grant_named(options["device"])
        grants.pause(grant)
        return _fresh(grant)

    def resume(self, options: dict[str, Any]) -> dict[str, Any]:
        grant = grants.grant_named(options["device"])
        grants.resume(grant)
        return _fresh(grant)

    def revoke(self, options: dict[str, Any]) -> dict[str, Any]:
        grant = grants.grant_named(options["device"])
        grants.revoke(grant, now=database_now())
        return _fresh(grant)


    def rotate(self, options: dict[str, Any]) -> dict[str, Any]:
        grant = grants.grant_named(options["device"])
        secret = pairing.rotate(grant, now=database_now())
        return {**_fresh(grant), "token": secret or None}


def _request(request: GrantRequest) -> dict[str, Any]:
    return {"device_id": None, "request_id": request.request_id, "display_name": request.controller_name, "state": request.state}


def _grant(grant: DeviceGrant, *, request: GrantRequest | None = None) -> dict[str, Any]:
    of = request or getattr(grant, "request", None)
    return {
        "device_id": grant.device_id, "request_id": of.request_id if of else None, "display_name": grant.display_name, "state": grant.state,
    }  # fmt: skip


def _fresh(grant: DeviceGrant) -> dict[str, Any]:
    return _grant(DeviceGrant.objects.select_related("request").get(pk=grant.pk))


def _device(parser: ArgumentParser) -> None:
    parser.add_argument("device", metavar="DEVICE", help="the device_id that list shows")
