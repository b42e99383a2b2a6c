"""Commands for scripts: one line of JSON a result on standard output, one line an error on standard error, exit code 1."""

from __future__ import annotations

import getpass
import json
import os
from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any, NoReturn

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError

from suzent_site.errors import SuzentError

AddVerb = Callable[..., ArgumentParser]


class OneLineParser(CommandParser):
    """Says what is wrong with the arguments in one line and exits with 1, as for any other error of these commands."""

    def error(self, message: str) -> NoReturn:
        if not self.called_from_command_line:
            raise CommandError(message)
        self.exit(1, f"CommandError: {_one_line(message)} (see {self.prog} --help)\n")


class ScriptCommand(BaseCommand):
    """A command with verbs, each a method that answers with what is to be written: a dictionary, or a list of them.

    A subclass names its verbs and their arguments in ``verbs``.
    """

    def verbs(self, add: AddVerb) -> None:
        raise NotImplementedError

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        parser.__class__ = OneLineParser  # Django lets nobody choose the class
        return parser

    def add_arguments(self, parser: CommandParser) -> None:
        self.verbs(parser.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=OneLineParser).add_parser)

    def handle(self, *args: Any, verb: str, **options: Any) -> None:
        try:
            answer = getattr(self, verb)(options)
        except SuzentError as refusal:
            raise CommandError(_one_line(refusal.detail)) from refusal
        except DatabaseError as error:
            raise CommandError(f"The database refused: {_one_line(str(error))} (is it migrated? manage.py migrate)") from error
        for line in answer if isinstance(answer, list) else [answer]:
            self.stdout.write(json.dumps(line, default=str))  # ASCII only, so that no text can drive a terminal


def operator() -> str:
    """Who runs the command, as rows remember it."""
    try:
        account = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        account = f"uid {os.getuid()}"
    return f"{account} at the command line"


def _one_line(text: str) -> str:
    """Whatever is in it, it stays one line and moves no cursor."""
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in " ".join(text.split("\n")))
