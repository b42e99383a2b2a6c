"""Commands for scripts: one line of JSON a result on standard output, one line an error, exit code 1."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any, NoReturn

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError

from suzent_site.errors import SuzentError


class OneLineParser(CommandParser):
    """Says what is wrong with the arguments in one line and ends with 1, as every other error of these commands."""

    def error(self, message: str) -> NoReturn:
        raise CommandError(f"{message} (see {self.prog} --help)")


class ScriptCommand(BaseCommand):
    """A command with verbs: each is a method that answers with what is to be written as JSON.

    ``verbs`` puts arguments on the parser that it is given for each of its methods.
    """

    requires_system_checks = ()

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        parser = OneLineParser(prog=f"manage.py {subcommand}", description=self.help, called_from_command_line=True)
        self.add_base_arguments(parser, **kwargs)
        self.add_arguments(parser)
        return parser

    def add_arguments(self, parser: ArgumentParser) -> None:
        self.verbs(parser.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=_subparser).add_parser)

    def verbs(self, add: Callable[..., ArgumentParser]) -> None:
        raise NotImplementedError

    def handle(self, *args: Any, verb: str, **options: Any) -> None:
        try:
            answer = getattr(self, verb)(**options)
        except SuzentError as refusal:
            raise CommandError(_one_line(refusal.detail)) from refusal
        except DatabaseError as error:
            raise CommandError(_one_line(f"The database did not answer as it should: {error}")) from error
        for line in answer if isinstance(answer, list) else [answer]:
            self.stdout.write(json.dumps(line, default=str))  # ASCII only: no text can drive the terminal
