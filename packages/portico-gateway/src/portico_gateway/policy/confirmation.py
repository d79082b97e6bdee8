"""`ask`: the question that a person is asked before a call, with what the call is about put into it."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Raw, Struct

from portico.protocol.errors import UsageError
from portico.rpc.call import Call
from portico.server.policy.interfaces import Owned
from portico_gateway.policy.conditions import read_arguments

LONGEST_VALUE = 100
LONGEST_QUESTION = 1000
_PLACE = re.compile(r"\{([^{}]*)\}")
_WORDS = ("tool", "owner", "principal")


class ConsentQuestion(Struct, frozen=True):
    """A text with places such as `{args.repo}`."""

    text: str

    def filled(self, call: Call, owned: Owned, arguments: bytes | Raw) -> str:
        """What the person reads. Values come from a model: each is short, on one line, and shows what it holds; "?" is
        shown of arguments that cannot be read for certain."""
        given = read_arguments(arguments)

        def value(found: re.Match[str]) -> str:
            word = found[1].strip()
            if word.startswith("args."):
                return shown(_member(given, word.split(".")[1:]))
            about = {"tool": owned.name, "owner": owned.owner, "principal": getattr(call.principal, "id", "")}
            return shown(about[word])

        return _PLACE.sub(value, self.text)[:LONGEST_QUESTION]


def question(where: str, text: str) -> ConsentQuestion:
    """Raises UsageError for a place that nothing fills."""
    if not text.strip() or len(text) > LONGEST_QUESTION:
        raise UsageError(f"{where} is a question of 1 to {LONGEST_QUESTION} characters")
    for found in _PLACE.finditer(text):
        word = found[1].strip()
        if word not in _WORDS and not re.fullmatch(r"args(\.[^.{}\s]+)+", word):
            raise UsageError(
                f"{where} has the place {{{word}}}; there are {{args.NAME}}, {{tool}}, {{owner}}, {{principal}}"
            )
    if "{" in _PLACE.sub("", text) or "}" in _PLACE.sub("", text):
        raise UsageError(f"{where} has a bracket without its other half")
    return ConsentQuestion(text)


def shown(value: Any) -> str:
    """A value for a person to read: nothing in it is hidden, and it does not fill the screen."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode() if value is not _MISSING else "?"
    text = text if len(text) <= LONGEST_VALUE else text[:LONGEST_VALUE] + "…"
    return "".join(char if char == " " or char.isprintable() else f"\\u{ord(char):04x}" for char in text)


_MISSING = object()


def _member(given: Any, path: list[str]) -> Any:
    for name in path:
        if not isinstance(given, dict) or name not in given:
            return _MISSING
        given = given[name]
    return given
