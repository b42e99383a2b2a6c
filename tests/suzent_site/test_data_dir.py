"""The data directory and the secrets in it."""

import stat
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.core.exceptions import ImproperlyConfigured

from suzent_site.data_dir import open_data_dir, secret


def test_a_secret_is_made_once_and_only_its_owner_may_read_it(tmp_path):
    first = secret(tmp_path, "key")
    assert secret(tmp_path, "key") == first
    assert len(first) >= 50
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


def test_processes_that_start_at_once_agree_on_a_secret(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: secret(tmp_path, "key"), range(8)))) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["key"]


def test_a_missing_data_directory_is_made_for_its_owner_alone(tmp_path):
    made = open_data_dir(tmp_path / "a" / "b")
    assert stat.S_IMODE(made.stat().st_mode) == 0o700


def test_a_data_directory_that_cannot_be_made_is_one_clear_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ImproperlyConfigured, match="SUZENT_DATA_DIR .* cannot be made"):
        open_data_dir(tmp_path / "file" / "data")
