"""Cuts a text into pieces of words, as BERT does."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

_UNKNOWN, _BEGIN, _END = "[UNK]", "[CLS]", "[SEP]"
_LONGEST_WORD = 100
# To BERT, all of ASCII that is neither letter nor digit is punctuation, which separates words and is a word itself. So
# is each Chinese character.
_ALONE = r"!-/:-@\[-`{-~\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f"
_WORD = re.compile(rf"[{_ALONE}]|[^\s{_ALONE}]+")


class WordPieces:
    """A vocabulary: one piece in each line of a file, its number being that of the line."""

    def __init__(self, vocabulary: Path) -> None:
        lines = vocabulary.read_text(encoding="utf-8").split("\n")
        self._numbers = {piece: number for number, piece in enumerate(lines) if piece}
        self._pieces = lru_cache(16384)(self._cut)

    def numbers(self, text: str, most: int) -> list[int]:
        """The numbers of the pieces of a text, at most so many; the first and the last mark its ends."""
        found: list[int] = [self._numbers[_BEGIN]]
        for word in _words(text):
            found += self._pieces(word)
            if len(found) >= most:
                break
        return [*found[: most - 1], self._numbers[_END]]

    def _cut(self, word: str) -> tuple[int, ...]:
        """The numbers of the pieces of a word: the longest piece first, and so on with the rest."""
        if len(word) > _LONGEST_WORD:
            return (self._numbers[_UNKNOWN],)
        found = []
        start = 0
        while start < len(word):
            end = len(word)
            while end > start:
                number = self._numbers.get(("##" if start else "") + word[start:end])
                if number is not None:
                    break
                end -= 1
            else:
                return (self._numbers[_UNKNOWN],)
            found.append(number)
            start = end
        return tuple(found)


def _words(text: str) -> Iterator[str]:
    """The words of a text in lower case and without accents."""
    text = text.lower()
    if not text.isascii():
        text = "".join(map(_spaced, unicodedata.normalize("NFD", text)))
    return (found[0] for found in _WORD.finditer(text))


def _spaced(one: str) -> str:
    category = unicodedata.category(one)
    if category == "Mn":
        return ""
    return f" {one} " if category.startswith("P") else one
