"""Regular expressions that are compiled on first use.

There are about two hundred, most texts need a tenth of them, and compiling all would dominate startup.
"""

from __future__ import annotations

import re
from typing import Any, cast

_METHODS = ("finditer", "fullmatch", "match", "search", "split", "sub")


class _LazyPattern:
    """Compiles on first use; afterwards its attributes are the methods of the compiled pattern."""

    def __init__(self, source: str, flags: int) -> None:
        self.source = source
        self.flags = flags

    def __getattr__(self, name: str) -> Any:
        if name not in _METHODS:
            raise AttributeError(name)
        compiled = re.compile(self.source, self.flags)
        self.__dict__.update((method, getattr(compiled, method)) for method in _METHODS)
        return self.__dict__[name]


ALL_PATTERNS: list[_LazyPattern] = []
"Every pattern, so that a test can prove that each one is bounded."


def lazy_pattern(source: str, flags: int = 0) -> re.Pattern[str]:
    """Return a pattern that is compiled on first use."""
    uncompiled = _LazyPattern(source, flags)
    ALL_PATTERNS.append(uncompiled)
    return cast("re.Pattern[str]", uncompiled)
