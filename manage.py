#!/usr/bin/env python
"""Run Suzent's administrative commands: ``up``, ``cluster``, ``inbox`` and Django's own."""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "suzent_site.settings")
    execute_from_command_line(sys.argv)
