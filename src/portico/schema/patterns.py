"""A text that a regular expression matches, for examples. Only what most schemas use is understood; whoever wants to be
sure holds the text against the schema."""

from __future__ import annotations

import string
from typing import NoReturn

LONGEST_PATTERN = 500
LONGEST_TEXT = 1000
DEEPEST = 20

_CLASSES = {"d": string.digits, "w": string.ascii_lowercase + string.digits + "_", "s": " "}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v"}
_ANY = string.ascii_lowercase + string.ascii_uppercase + string.digits + "_- .:/@"


class Beyond(ValueError):
    """The pattern says something that is not understood here."""


def matching(pattern: str, least: int = 0) -> str:
    """A text that matches, of at least so many characters where something in the pattern repeats."""
    if len(pattern) > LONGEST_PATTERN:
        raise Beyond("it is too long")
    shortest = _Writer(pattern, 0).write()
    return shortest if len(shortest) >= least else _Writer(pattern, min(least, LONGEST_TEXT)).write()


class _Writer:
    """Goes through the pattern once and writes what it asks for. `extra`: how often more than needed to repeat."""

    def __init__(self, pattern: str, extra: int) -> None:
        self._pattern = pattern
        self._at = 0
        self._extra = extra

    def write(self) -> str:
        text = self._either(DEEPEST)
        if self._at < len(self._pattern):
            self._give_up()
        return text

    def _give_up(self) -> NoReturn:
        raise Beyond(f"not understood at character {self._at + 1}")

    @property
    def _next(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _takes(self, text: str) -> bool:
        found = self._pattern.startswith(text, self._at)
        self._at += len(text) if found else 0
        return found

    def _either(self, depth: int) -> str:
        """Of several alternatives the first."""
        if not depth:
            self._give_up()
        first = self._sequence(depth)
        while self._takes("|"):
            self._sequence(depth)
        return first

    def _sequence(self, depth: int) -> str:
        text = ""
        while self._next not in ("", "|", ")"):
            text += self._repeated(self._atom(depth), len(text))
            if len(text) > LONGEST_TEXT:
                self._give_up()
        return text

    def _atom(self, depth: int) -> str:
        if self._takes("^") or self._takes("$"):
            return ""
        if self._takes("("):
            return self._group(depth)
        if self._takes("["):
            return self._choice()
        if self._takes("\\"):
            return self._escaped()[0]
        if self._takes("."):
            return "a"
        if self._next in "*+?{":
            self._give_up()
        return self._character()

    def _character(self) -> str:
        found = self._next
        if not found:
            self._give_up()
        self._at += 1
        return found

    def _group(self, depth: int) -> str:
        if self._takes("?") and not self._takes(":"):
            self._give_up()
        text = self._either(depth - 1)
        if not self._takes(")"):
            self._give_up()
        return text

    def _escaped(self) -> str:
        """Every character that an escape can stand for."""
        char = self._character()
        if char in _CLASSES:
            return _CLASSES[char]
        if char.lower() in _CLASSES:
            return "".join(one for one in _ANY if one not in _CLASSES[char.lower()])
        if char.isalnum() and char not in _ESCAPES:
            self._give_up()
        return _ESCAPES.get(char, char)

    def _choice(self) -> str:
        is_negative = self._takes("^")
        found = ""
        while not self._takes("]") or not found:
            first = self._escaped() if self._takes("\\") else self._character()
            if self._next == "-" and self._pattern[self._at + 1 : self._at + 2] not in ("]", "") and len(first) == 1:
                self._at += 1
                last = self._escaped()[0] if self._takes("\\") else self._character()
                found += "".join(map(chr, range(ord(first), min(ord(last), ord(first) + 255) + 1)))
            else:
                found += first
        allowed = [char for char in _ANY if char not in found] if is_negative else list(found)
        if not allowed:
            self._give_up()
        return next((char for char in allowed if char.isalnum()), allowed[0])

    def _repeated(self, atom: str, written: int) -> str:
        least, most = self._times()
        self._takes("?")
        # What may repeat makes up for what is missing in length; the most is a matter of the schema.
        wanted = least if most is not None and least == most else max(least, least + self._extra - written)
        return atom * min(wanted, most if most is not None else LONGEST_TEXT)

    def _times(self) -> tuple[int, int | None]:
        if self._takes("*"):
            return 0, None
        if self._takes("+"):
            return 1, None
        if self._takes("?"):
            return 0, 1
        if not self._takes("{"):
            return 1, 1
        end = self._pattern.find("}", self._at)
        least, comma, most = self._pattern[self._at : end].partition(",")
        if end < 0 or not least.isdigit() or (most and not most.isdigit()) or len(least + most) > 8:
            self._give_up()
        self._at = end + 1
        return int(least), int(most) if most else None if comma else int(least)
