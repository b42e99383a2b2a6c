"""Text of others, as a person is shown it."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suzent_site.shown import age, hides, in_a_line, whole

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)


def characters(html):
    """What is written between the tags."""
    return re.sub(r"<[^>]*>", "", html)


@pytest.mark.parametrize(
    ("char", "name"),
    [("\u202e", "U+202E"), ("\u2066", "U+2066"), ("\u200b", "U+200B"), ("\ufeff", "U+FEFF"), ("\x1b", "U+001B"), ("\x85", "U+0085"),
     ("\u2028", "U+2028"), ("\u3164", "U+3164"), ("\U000e0041", "U+E0041")],
)  # fmt: skip
def test_a_character_that_is_not_seen_is_named(char, name):
    for shown in (in_a_line(f"a{char}b"), whole(f"a{char}b")):
        assert characters(shown) == f"a{name}b"
    assert hides(char)


def test_line_ends_are_named_in_a_line_and_kept_in_the_whole():
    assert characters(in_a_line("one\ntwo")) == "oneU+000Atwo"
    assert characters(whole("one\n\ttwo")) == "one\n\ttwo"


@pytest.mark.parametrize("text", ["👨\u200d👩\u200d👧", "👩🏽\u200d🚀", "❤\ufe0f\u200d🔥", "أهلا", "e\u0301", "漢字", "  x  "])
def test_ordinary_writing_of_any_language_stays_as_it_is(text):
    assert characters(whole(text)) == text


def test_a_joiner_between_letters_is_named():
    assert characters(in_a_line("pay\u200dpal")) == "payU+200Dpal"


def test_a_long_line_is_cut_and_says_how_long_it_was():
    shown = in_a_line("x" * 5000, limit=10)
    assert characters(shown) == "x" * 10 + "…"
    assert "5000 characters" in shown


@given(st.text())
def test_nothing_hidden_and_no_markup_is_left(text):
    shown = in_a_line(text, limit=10_000)
    assert "<script" not in shown
    assert not [char for char in characters(shown) if hides(char) and char != "\u200d"]


@pytest.mark.parametrize(
    ("ago", "shown"),
    [(0, "0 s"), (59.9, "59 s"), (60, "1 min"), (3600, "1 h"), (86_400 * 3, "3 d"), (-4.2, "in 4 s")],
)
def test_an_age_is_in_its_largest_unit(ago, shown):
    assert age(NOON - timedelta(seconds=ago), now=NOON) == shown


def test_what_never_happened_has_no_age():
    assert age(None, now=NOON) == "—"
