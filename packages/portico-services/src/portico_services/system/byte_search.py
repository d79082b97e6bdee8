"""A text in bytes, in whatever case: as fast as can be without a program for it."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

# Of so few bytes a copy is made more quickly than RE2 is called.
SMALL = 16 * 1024


class ByteSearch:
    """Finds a text. RE2 does it in one pass; otherwise the bytes are made small first, where only letters of ASCII have
    cases."""

    def __init__(self, text: str) -> None:
        self._small = text.encode().lower()
        self._pattern: Any = None
        self._is_ascii = text.isascii()
        if find_spec("re2") is not None:
            re2 = import_module("re2")
            options = re2.Options()
            options.literal = True
            options.case_sensitive = False
            options.log_errors = False
            self._pattern = re2.compile(text.encode(), options)

    def find(self, data: bytes, at: int = 0) -> int:
        """Where it begins, from an offset on; -1 if it is not there."""
        if self._pattern is None or (self._is_ascii and len(data) < SMALL):
            return data.lower().find(self._small, at)
        found = self._pattern.search(data, at)
        return -1 if found is None else int(found.start())
