"""Secret references in files: `${env:NAME}` and `${file:PATH}`. Resolved values are remembered only for masking."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from portico.transports.process import get_default_environment
from portico.transports.targets import read_secret

_SECRET = re.compile(r"\$\{(env|file):([^}]+)\}")
# Syntax of clients in an mcp.json.
_VARIABLE = re.compile(r"\$\{(\w+)(?::-[^}]*)?\}")
# Shorter values would match in every text.
_MIN_MASKED_CHARS = 4


class SecretResolver:
    """Resolver that remembers resolved secrets, to mask them in output."""

    def __init__(self) -> None:
        self._values: set[str] = set()

    def resolve(self, text: str) -> str:
        """Return the text with its secrets resolved. Raises UsageError for a missing one."""
        # Clients expand `${NAME}` themselves. The value is masked too, unless it is one of the harmless variables that
        # every child process inherits, such as PATH.
        for match in _VARIABLE.finditer(text):
            if match[1] not in get_default_environment():
                self._add_value(os.environ.get(match[1], ""))
        return _SECRET.sub(lambda match: self._value(match[1], match[2].strip()), text)

    def resolve_all(self, value: Any) -> Any:
        """Resolve every string in a nested value."""
        if isinstance(value, str):
            return self.resolve(value)
        if isinstance(value, Mapping):
            return {name: self.resolve_all(item) for name, item in value.items()}
        return [self.resolve_all(item) for item in value] if isinstance(value, list | tuple) else value

    def _value(self, kind: str, name: str) -> str:
        value = read_secret(kind, name)
        self._add_value(value)
        return value

    def _add_value(self, value: str) -> None:
        if len(value) >= _MIN_MASKED_CHARS:
            self._values.add(value)

    def mask(self, text: str) -> str:
        """Replace resolved secrets in a text with `***`."""
        # Longest first, because one secret may contain another.
        for value in sorted(self._values, key=len, reverse=True):
            text = text.replace(value, "***")
        return text
