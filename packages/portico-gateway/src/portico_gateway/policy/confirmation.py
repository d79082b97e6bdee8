"""`confirm`: the confirmation prompt before a call, with values of the call filled in."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Raw, Struct

from portico.protocol.errors import UsageError
from portico.rpc.call import Call
from portico.server.policy.interfaces import QualifiedName
from portico.text import truncate
from portico_gateway.policy.conditions import parse_arguments

# Short enough for a dialog. A longer value could push the actual question out of the visible part.
MAX_VALUE_CHARS = 100
MAX_PROMPT_CHARS = 1000
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_VARIABLES = ("tool", "provider", "principal")


class ConfirmationPrompt(Struct, frozen=True):
    """Prompt text with placeholders such as `{arguments.repo}`."""

    text: str

    def render(self, call: Call, owned: QualifiedName, arguments: bytes | Raw) -> str:
        """Return the prompt for a call.

        The values come from a model, so each is truncated, kept on one line and stripped of invisible characters.
        Arguments that cannot be parsed unambiguously appear as "?".
        """
        values = parse_arguments(arguments)

        def value(match: re.Match[str]) -> str:
            word = match[1].strip()
            if word.startswith("arguments."):
                return format_value(_member(values, word.split(".")[1:]))
            about = {"tool": owned.name, "provider": owned.owner, "principal": getattr(call.principal, "id", "")}
            return format_value(about[word])

        return _PLACEHOLDER.sub(value, self.text)[:MAX_PROMPT_CHARS]


def parse_prompt(location: str, text: str) -> ConfirmationPrompt:
    """Parse a prompt. Raises UsageError for unknown placeholders and unbalanced braces."""
    if not text.strip() or len(text) > MAX_PROMPT_CHARS:
        raise UsageError(f"{location} must be a prompt of 1 to {MAX_PROMPT_CHARS} characters")
    for match in _PLACEHOLDER.finditer(text):
        word = match[1].strip()
        if word not in _VARIABLES and not re.fullmatch(r"arguments(\.[^.{}\s]+)+", word):
            raise UsageError(
                f"{location} has the unknown placeholder {{{word}}} (expected {{arguments.NAME}}, {{tool}}, "
                f"{{provider}} or {{principal}})"
            )
    # Rejected when the settings are read: a prompt with a broken placeholder would show users the wrong question.
    if "{" in _PLACEHOLDER.sub("", text) or "}" in _PLACEHOLDER.sub("", text):
        raise UsageError(f"{location} has an unbalanced brace")
    return ConfirmationPrompt(text)


def format_value(value: Any) -> str:
    """Format a value for display: truncated, with invisible characters escaped."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode() if value is not _MISSING else "?"
    # Escapes bidirectional overrides, zero-width and control characters, with which an argument could make the prompt
    # read differently.
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in truncate(text, MAX_VALUE_CHARS))


_MISSING = object()


def _member(value: Any, path: list[str]) -> Any:
    for name in path:
        if not isinstance(value, dict) or name not in value:
            return _MISSING
        value = value[name]
    return value
