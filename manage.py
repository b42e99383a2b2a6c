#!/usr/bin/env python
"""Run Suzent's administrative commands: ``up``, ``cluster``, ``inbox`` and Django's own."""

import os
import sys

from django.core.exceptions import ImproperlyConfigured
from django.core.management import execute_from_command_line


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "suzent_site.settings")
    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        sys.exit(str(error))  # a wrong setting: one sentence on standard error, exit code 1


if __name__ == "__main__":
    main()
