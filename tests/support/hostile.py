"""Texts that databases, codecs, terminals or logs trip over."""

from __future__ import annotations

from hypothesis import strategies as st

HOSTILE = (
    "\0", "a\0b", "\x1b[31m", "\x1b]0;owned\x07", "\x7f", "\x85", "\x9b31m", "\b\b", "\x0b", "\x0c",
    "a ", " a", "a  ", "a\t", "\u00a0a", "a\n", "a\r\nb", " ", "\u3000", "A", "\uff41", "a\u0301", "á", "ß", "SS", "İ", "\u0131",
    "\u202eabc", "\u200b", "\u2028", "\ufeff", "\uffff", "\ufffd", "\U0010ffff", "😀", "👩\u200d👩\u200d👧", "🏳\ufe0f\u200d🌈",
    "'", '"', "\\", "\\u0000", "\\0", "%s%n", "{}", "' OR 1=1 --", "a,b", "a/b", "$.a", "NULL", "\u0000", "x" * 255, "😀" * 255,
    "x" * 256, "x" * 70_000,
)  # fmt: skip
"""Those that JSON in a request can carry."""

SURROGATES = ("\ud800", "a\udcffb", "\udc00\ud800")
"""Those that reach a program by other ways, such as undecodable file names and arguments."""

TEXTS = st.one_of(st.sampled_from(HOSTILE), st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=70))
"""What JSON in a request can carry."""
