"""Secrets in files: `${env:NAME}` and `${file:PATH}` stand for them. Their values are kept only to be masked."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from portico.transports.process import inherited
from portico.transports.targets import read_secret

_SECRET = re.compile(r"\$\{(env|file):([^}]+)\}")
# As clients write it in an mcp.json.
_VARIABLE = re.compile(r"\$\{(\w+)(?::-[^}]*)?\}")
# Shorter ones would be found in every text.
_SHORTEST_MASKED = 4


class Secrets:
    """The values that must not be told."""

    def __init__(self) -> None:
        self._values: set[str] = set()

    def resolve(self, text: str) -> str:
        """The text with its secrets put in. Raises UsageError for one that is not there."""
        for found in _VARIABLE.finditer(text):
            if found[1] not in inherited():
                self._keep(os.environ.get(found[1], ""))
        return _SECRET.sub(lambda found: self._value(found[1], found[2].strip()), text)

    def filled(self, value: Any) -> Any:
        """The same with every text in it resolved."""
        if isinstance(value, str):
            return self.resolve(value)
        if isinstance(value, Mapping):
            return {name: self.filled(one) for name, one in value.items()}
        return [self.filled(one) for one in value] if isinstance(value, list | tuple) else value

    def _value(self, kind: str, name: str) -> str:
        value = read_secret(kind, name)
        self._keep(value)
        return value

    def _keep(self, value: str) -> None:
        if len(value) >= _SHORTEST_MASKED:
            self._values.add(value)

    def mask(self, text: str) -> str:
        for value in sorted(self._values, key=len, reverse=True):
            text = text.replace(value, "***")
        return text
