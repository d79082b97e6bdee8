"""WordPiece tokenizer, as used by BERT."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

_UNK, _BOOTSTRAP, _SEP = "[UNK]", "[CLS]", "[SEP]"
_MAX_WORD_CHARS = 100
# BERT treats every ASCII character that is neither a letter nor a digit as punctuation, which separates words and is a
# token itself. The same holds for each CJK character.
_STANDALONE_CHARS = r"!-/:-@\[-`{-~\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f"
_WORD = re.compile(rf"[{_STANDALONE_CHARS}]|[^\s{_STANDALONE_CHARS}]+")


class WordPieceTokenizer:
    """Vocabulary and tokenizer. The vocabulary file has one token per line; the line number is the token id."""

    def __init__(self, vocabulary: Path) -> None:
        lines = vocabulary.read_text(encoding="utf-8").split("\n")
        self._numbers = {piece: number for number, piece in enumerate(lines) if piece}
        self._pieces = lru_cache(16384)(self._split_word)

    def encode(self, text: str, limit: int) -> list[int]:
        """Return the token ids of a text, at most `limit` including the start and end tokens."""
        results: list[int] = [self._numbers[_BOOTSTRAP]]
        for word in _basic_tokens(text):
            results += self._pieces(word)
            if len(results) >= limit:
                break
        return [*results[: limit - 1], self._numbers[_SEP]]

    def _split_word(self, word: str) -> tuple[int, ...]:
        """Return the token ids of a word by greedy longest-match."""
        if len(word) > _MAX_WORD_CHARS:
            return (self._numbers[_UNK],)
        results = []
        start = 0
        while start < len(word):
            end = len(word)
            while end > start:
                number = self._numbers.get(("##" if start else "") + word[start:end])
                if number is not None:
                    break
                end -= 1
            else:
                return (self._numbers[_UNK],)
            results.append(number)
            start = end
        return tuple(results)


def _basic_tokens(text: str) -> Iterator[str]:
    """Yield the words of a text, lowercased and without accents."""
    text = text.lower()
    if not text.isascii():
        text = "".join(map(_isolate_char, unicodedata.normalize("NFD", text)))
    return (match[0] for match in _WORD.finditer(text))


def _isolate_char(item: str) -> str:
    category = unicodedata.category(item)
    if category == "Mn":
        return ""
    return f" {item} " if category.startswith("P") else item
