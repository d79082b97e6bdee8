"""Patterns that are compiled when they are first used.

There are some two hundred, most texts need a tenth of them, and compiling them all would take longer than anything else
at start-up.
"""

from __future__ import annotations

import re
from typing import Any, cast

_METHODS = ("finditer", "fullmatch", "match", "search", "split", "sub")


class _Uncompiled:
    """Compiles at the first use; from then on its attributes are the methods of the compiled pattern."""

    def __init__(self, source: str, flags: int) -> None:
        self.source = source
        self.flags = flags

    def __getattr__(self, name: str) -> Any:
        if name not in _METHODS:
            raise AttributeError(name)
        compiled = re.compile(self.source, self.flags)
        self.__dict__.update((method, getattr(compiled, method)) for method in _METHODS)
        return self.__dict__[name]


ALL: list[_Uncompiled] = []
"""Every pattern, so that a test can prove that each is bounded."""


def pattern(source: str, flags: int = 0) -> re.Pattern[str]:
    uncompiled = _Uncompiled(source, flags)
    ALL.append(uncompiled)
    return cast("re.Pattern[str]", uncompiled)
