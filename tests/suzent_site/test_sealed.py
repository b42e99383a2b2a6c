"""Secrets in the database: sealed, and open only with the installation's keys."""

import pytest
from cryptography.fernet import Fernet

from suzent_site.sealed import CannotUnseal, seal, unseal

OLD, NEW = Fernet.generate_key().decode(), Fernet.generate_key().decode()


def test_a_sealed_secret_opens_again_and_does_not_show_it():
    sealed = seal("pässword")
    assert (unseal(sealed), "pässword" in sealed) == ("pässword", False)


def test_equal_secrets_look_different():
    assert seal("one") != seal("one")


def test_a_new_first_key_seals_and_the_old_one_still_opens(settings):
    settings.SUZENT_FIELD_KEYS = [OLD]
    before = seal("kept")
    settings.SUZENT_FIELD_KEYS = [NEW, OLD]
    assert unseal(before) == "kept"
    after = seal("kept")
    settings.SUZENT_FIELD_KEYS = [NEW]
    assert unseal(after) == "kept"


@pytest.mark.parametrize("sealed", ["", "not sealed", "ümlaut", "gAAAAA"])
def test_what_no_key_opens_is_refused_in_one_sentence(sealed):
    with pytest.raises(CannotUnseal, match="SUZENT_FIELD_KEYS"):
        unseal(sealed)
