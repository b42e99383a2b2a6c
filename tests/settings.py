"""The product's own settings, on a data directory that is thrown away: tests never touch a developer's ``./data``."""

import atexit
import os
import shutil
import tempfile

if "SUZENT_DATA_DIR" not in os.environ:
    os.environ["SUZENT_DATA_DIR"] = tempfile.mkdtemp(prefix="suzent-test-")
    atexit.register(shutil.rmtree, os.environ["SUZENT_DATA_DIR"], ignore_errors=True)

from suzent_site.settings import *  # noqa: F403  # the environment first

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # tests need no slow hash
