"""What passes the door for text can be written by every database and codec."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objects import errors, text

ANY_TEXT = st.text(alphabet=st.characters(exclude_categories=()), max_size=300)


@given(ANY_TEXT, st.integers(0, 400))
def test_what_is_clean_can_be_encoded_and_fits(given_text: str, size: int) -> None:
    cleaned = text.clean_text(given_text, size)
    assert len(cleaned.encode()) <= size
    assert "\0" not in cleaned
    assert text.is_safe(cleaned)
    assert msgspec.json.decode(msgspec.json.encode(cleaned)) == cleaned


@given(ANY_TEXT)
def test_cleaning_twice_changes_nothing_more(given_text: str) -> None:
    once = text.clean_text(given_text, 100)
    assert text.clean_text(once, 100) == once


@pytest.mark.parametrize("kept", ["", "plain", "tab\tand\nlines", "Grüße 你好 👩‍🚀", "x" * 100])
def test_a_proper_text_stays_unchanged(kept: str) -> None:
    assert text.is_safe(kept)
    assert text.clean_text(kept, 4096) == kept


@pytest.mark.parametrize("refused", ["a\0b", "\x1b[31m", "\x85", "bad \udcff name", "\x7f"])
def test_unsafe_characters_are_seen_and_replaced(refused: str) -> None:
    assert not text.is_safe(refused)
    assert text.REPLACEMENT in text.clean_text(refused, 4096)


def test_a_cut_text_says_so_and_splits_nothing() -> None:
    assert text.clean_text("x" * 50, 10) == "x" * 7 + "..."
    assert text.clean_text("é" * 50, 10) == "ééé" + "..."


@pytest.mark.parametrize("name", ["h1", "compute-07.example.org", "A_b", "x" * 255])
def test_names_of_hosts(name: str) -> None:
    assert text.checked_name("host", name) == name


@pytest.mark.parametrize("name", ["", "h1 ", " h1", "h\n1", "h\x1b[31m", "x" * 256, "höst", "a/b", None, 7, ["h1"], "\udcff"])
def test_an_invalid_name_is_refused_by_its_kind(name: object) -> None:
    with pytest.raises(errors.Invalid, match=r"^host .*: a name has 1 to 255 letters"):
        text.checked_name("host", name)
