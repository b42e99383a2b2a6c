"""Peers for scripts: which devices we may drive."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from dataclasses import asdict
from typing import Any

from peers_app import discovery, pairing
from peers_app.models import Peer
from sessions_app.clock import database_now
from sessions_app.management.project_option import add_project, chosen_project
from suzent_site.script_command import AddVerb, ScriptCommand

LONGEST_LISTENED = 60.0  # seconds


class Command(ScriptCommand):
    help = "Ask other devices whether we may drive them, and see to those that we may. One line of JSON on standard output."

    def verbs(self, add: AddVerb) -> None:
        ask = add("ask", help="ask the device at an address; its operator approves, and the answer is fetched in the background")
        ask.add_argument("url", metavar="URL", help="http(s)://host:port")
        add_project(ask)
        listing = add("list", help="all peers, in one JSON list")
        add_project(listing)
        find = add("find", help="devices that announce themselves on the local network, in one JSON list; ask the one that you know")
        find.add_argument("--seconds", metavar="N", type=_seconds, default=discovery.LISTENED, help="how long to listen; default %(default)g")
        for verb, what in (
            ("pause", "hold the mail for a peer"),
            ("resume", "let it go out again; takes what a peer offered"),
            ("remove", "part for good: its waiting mail fails, and its grant here ends"),
        ):
            add(verb, help=what).add_argument("peer", metavar="PEER", help="the peer_id that list shows")

    def ask(self, options: dict[str, Any]) -> dict[str, Any]:
        peer = pairing.ask(options["url"], project=chosen_project(options["project"]), now=database_now())
        return {"request_id": peer.request_id, "state": peer.state}

    def find(self, options: dict[str, Any]) -> list[list[dict[str, Any]]]:
        return [[asdict(found) for found in discovery.find(seconds=options["seconds"])]]

    def list(self, options: dict[str, Any]) -> list[list[dict[str, Any]]]:
        peers = Peer.objects.order_by("created_at")
        if options["project"]:
            peers = peers.addressable_from(chosen_project(options["project"]).slug)
        return [[_peer(peer) for peer in peers]]

    def pause(self, options: dict[str, Any]) -> dict[str, Any]:
        peer = pairing.peer_named(options["peer"])
        pairing.pause(peer, now=database_now())
        return _fresh(peer)

    def resume(self, options: dict[str, Any]) -> dict[str, Any]:
        peer = pairing.peer_named(options["peer"])
        pairing.resume(peer, now=database_now())
        return _fresh(peer)

    def remove(self, options: dict[str, Any]) -> dict[str, Any]:
        peer = pairing.peer_named(options["peer"])
        pairing.remove(peer, now=database_now())
        return {**_peer(peer), "state": "removed"}


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= LONGEST_LISTENED:
        raise ArgumentTypeError(f"must be a number above 0 and at most {LONGEST_LISTENED:g}")
    return seconds


def _peer(peer: Peer) -> dict[str, Any]:
    return {"peer_id": peer.peer_id, "agent_id": peer.agent_id, "name": peer.name, "base_url": peer.base_url, "state": peer.state}


def _fresh(peer: Peer) -> dict[str, Any]:
    return _peer(Peer.objects.get(pk=peer.pk))
