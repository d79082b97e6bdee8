"""What is kept of a call. Nothing of what it was answered with, and of its arguments no more than was asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import lru_cache
from hashlib import sha256
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

from portico.audit.records import CallRecord
from portico.protocol.client_features import InputRequiredResult
from portico.protocol.errors import (
    InvalidParams,
    ProtocolError,
    ResourceNotFound,
    ToolError,
    TooManyRequests,
    Unknown,
)
from portico.protocol.methods import METHODS
from portico.protocol.tasks import CreateTaskResult, TaskHandle
from portico.protocol.tools import CallToolResult
from portico.rpc.call import Call
from portico.rpc.trace_context import trace_id
from portico.server.policy.interfaces import Passage

LONGEST_NAME = 200
LONGEST_VALUE = 200
MOST_FIELDS = 50
MOST_ACTORS = 10

Outcome = Literal[
    "ok", "error", "denied", "unknown", "invalid", "failed", "limited", "cancelled", "asked", "task", "refused"
]
Screen = Callable[[str], str]
"""Gives a text with its secrets taken out."""


class EndedCall(Struct, eq=False, gc=False):
    """A call that is over, as it waits to be written."""

    passage: Passage
    micros: int
    outcome: str
    error: str
    # What a gateway passed on unread: whether it tells of an error is found when it is written.
    result: Raw | None = None

    @property
    def at(self) -> int:
        """In microseconds since 1970, when it began."""
        return self.passage.began // 1000


# What became of it


def outcome_of(result: Any) -> Outcome:
    # A profile answers with a subclass, which may leave `is_error` unset.
    if isinstance(result, CallToolResult):
        return "error" if result.is_error is True else "ok"
    if type(result) is InputRequiredResult:
        return "asked"
    return "task" if isinstance(result, CreateTaskResult | TaskHandle) else "ok"


def failure_of(failure: BaseException) -> tuple[Outcome, str]:
    """What a call that failed came to, and the error's code or kind."""
    if isinstance(failure, ToolError):
        kind = AUDIT_FULL if failure.details.get("code") == AUDIT_FULL else failure.kind
        return _TOOL_OUTCOMES.get(kind, "error"), kind
    if isinstance(failure, Unknown | ResourceNotFound):
        return "unknown", str(failure.code)
    if isinstance(failure, InvalidParams):
        return "invalid", str(failure.code)
    if isinstance(failure, TooManyRequests):
        return "limited", str(failure.code)
    if isinstance(failure, ProtocolError):
        return "failed", str(failure.code)
    if isinstance(failure, asyncio.CancelledError):
        return "cancelled", ""
    if not isinstance(failure, Exception):
        # A lost lease, and the like: it is not over, it is done elsewhere.
        return "cancelled", type(failure).__name__
    return "failed", type(failure).__name__


# The `code` in the details of a call that was refused because its record could not be written.
AUDIT_FULL = "audit_full"

_TOOL_OUTCOMES: dict[str, Outcome] = {
    "PermissionError": "denied",
    "ValidationError": "invalid",
    "ApiLimitExceeded": "limited",
    AUDIT_FULL: "refused",
}


class _ErrorFlag(Struct):
    isError: bool = False
    resultType: str = ""


_flags = msgspec.json.Decoder(_ErrorFlag)


def raw_outcome(result: Raw) -> Outcome:
    """Of a result that was passed on unread."""
    try:
        said = _flags.decode(result)
    except (msgspec.DecodeError, RecursionError):
        return "ok"
    if said.resultType == "input_required":
        return "asked"
    return "error" if said.isError else "ok"


# What is kept of the arguments

Arguments = Literal["hashed", "shown", "none"]


class ArgumentPolicy:
    """How arguments are kept: by a digest, by some fields, or wholly. Texts are cut, and their secrets taken out."""

    def __init__(self, mode: Arguments, fields: dict[str, tuple[str, ...]], salt: bytes, screen: Screen) -> None:
        self.digests = mode != "none"
        self._all = mode == "shown"
        # Whether values are looked through, which takes its time.
        self.shows = self._all or bool(fields)
        self._fields = fields
        self._inner = sha256(bytes(one ^ 0x36 for one in salt.ljust(64, b"\0"))).copy
        self._outer = sha256(bytes(one ^ 0x5C for one in salt.ljust(64, b"\0"))).copy
        self._screen = screen
        self._chosen = lru_cache(10_000)(self._choose)
        # Names are the same again and again.
        self.name = lru_cache(10_000)(self._name)

    def digest(self, arguments: Raw) -> str:
        """HMAC-SHA256 (RFC 2104), from the two states that its key leads to: a third of the time."""
        inner, outer = self._inner(), self._outer()
        inner.update(arguments)
        outer.update(inner.digest())
        return outer.hexdigest()

    def fields(self, owner: str, name: str, arguments: Raw) -> dict[str, Any]:
        if not self.shows:
            return {}
        chosen = None if self._all else self._chosen(f"{owner}.{name}")
        if chosen == ():
            return {}
        try:
            given = msgspec.json.decode(arguments)
        except (msgspec.DecodeError, RecursionError):
            return {}
        if not isinstance(given, dict):
            return {}
        shown = [(key, value) for key, value in given.items() if chosen is None or key in chosen]
        return {self.name(key): self.shown(key, value) for key, value in shown[:MOST_FIELDS]}

    def _choose(self, name: str) -> tuple[str, ...]:
        found = [one for pattern, chosen in self._fields.items() if fnmatchcase(name, pattern) for one in chosen]
        return tuple(found)

    def shown(self, key: str, value: Any) -> Any:
        """A value that may be kept. The name says what a value is: `password` before the word that follows."""
        if isinstance(value, bool | int | float) or value is None:
            return value
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        if self._screen(f"{key}={text[:LONGEST_SCREENED]}") != f"{key}={text[:LONGEST_SCREENED]}":
            text = self._screen(f"{key}={text[:LONGEST_SCREENED]}").removeprefix(f"{key}=")
        return storable(text[:LONGEST_VALUE])

    def _name(self, text: str) -> str:
        """A name or an address that a client made up."""
        return storable(self._screen(text[:LONGEST_SCREENED])[:LONGEST_NAME])


LONGEST_SCREENED = 4000


def storable(text: str) -> str:
    """Without what no database takes."""
    return text.replace("\0", "").encode(errors="replace").decode()


# From a call to a record

MOST_REMEMBERED = 10_000
# What is read and hashed on the loop.
QUICK_BYTES = 16 * 1024
_NUMBERED = len('{"number":0,"at":0')


class RecordMaker:
    """Writes records. What most calls have in common is written once: who asks for what, and what comes of it."""

    def __init__(self, policy: ArgumentPolicy, server: str) -> None:
        """`server`: whose it is where nothing else is known of it."""
        self._policy = policy
        self._server = server
        # With the objects that the keys are the addresses of, so that no other can have them.
        self._known: dict[tuple[Any, ...], tuple[str, Any, Any]] = {}

    def quick(self, ended: EndedCall) -> tuple[int, str] | None:
        """The moment and the rest of a record that is written in no time: that of a tool with a name of the server's,
        and with little to digest. None: it takes longer."""
        passage, result = ended.passage, ended.result
        call, owned = passage.call, passage.owned
        if call.method != "tools/call" or owned is None or not owned[1] or self._policy.shows:
            return None
        if len(call.params) > QUICK_BYTES or (result is not None and len(result) > QUICK_BYTES):
            return None
        return passage.began // 1000, self.rest(ended)

    def rest(self, ended: EndedCall) -> str:
        """The record of a call as JSON, all but its number: what follows that."""
        passage = ended.passage
        call = passage.call
        typed = _typed(call)
        arguments = _arguments(typed) if passage.arguments is None else passage.arguments
        outcome = ended.outcome if ended.result is None else raw_outcome(ended.result)
        inner = call.read is None or call.read[0] is not call.params
        known = self._in_common(ended, _shown(call, typed), outcome, inner)
        id = call.id
        request = id if type(id) is int else _text(str(id)[:100])[1:-1]
        more = "" if arguments is None else self._said_of(arguments, passage)
        # `in` would first try whether it is a number.
        if call.headers or bytes(call.params).find(b'traceparent"') >= 0:
            trace = trace_id(call)
            more += f',"trace":"{trace}"' if trace else ""
        if passage.job:
            more += f',"job":{_text(passage.job)}'
        return (
            f',"at":{passage.began // 1000}{known},"request":"{request}","micros":{ended.micros},'
            f'"received":{len(call.params)},"sent":{0 if inner else call.reply.size}{more}}}'
        )

    def _said_of(self, arguments: Raw, passage: Passage) -> str:
        policy = self._policy
        said = f',"digest":"{policy.digest(arguments)}"' if policy.digests else ""
        if policy.shows:
            owner, name = passage.owned or ("", "")
            fields = policy.fields(owner or self._server, name, arguments)
            if fields:
                said += f',"fields":{_text(fields)}'
        return said

    def _in_common(self, ended: EndedCall, shown: str, outcome: str, inner: bool) -> str:
        passage = ended.passage
        call, client = passage.call, passage.call.client
        key = (
            call.method,
            shown,
            passage.owned,
            id(call.principal),
            # Not by its address: a request with a token for its progress brings another object.
            None if client is None else (client.name, client.version),
            call.address,
            call.revision,
            outcome,
            ended.error,
            id(passage.decision),
            passage.upstream,
            inner,
        )
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MOST_REMEMBERED:
                self._known.clear()
            said = _text(self._common(ended, shown, outcome, inner))[_NUMBERED:-1]
            found = self._known[key] = (said, call.principal, passage.decision)
        return found[0]

    def _common(self, ended: EndedCall, shown: str, outcome: str, inner: bool) -> CallRecord:
        passage = ended.passage
        call, decision = passage.call, passage.decision
        owner, name = passage.owned or ("", "")
        principal, client = call.principal, call.client
        if call.method != "tools/call" or not name:
            # A tool that is there has a name of the server's; all else a client may have made up.
            shown = self._policy.name(shown)
            name = self._policy.name(name) if name else shown
        return CallRecord(
            number=0,
            at=0,
            method=call.method,
            owner=owner or self._server,
            name=name,
            shown="" if shown == name else shown,
            principal="" if principal is None else storable(str(principal.id)),
            issuer="" if principal is None else storable(getattr(principal, "issuer", None) or ""),
            actors=() if principal is None else _actors(principal),
            client="" if client is None else storable(f"{client.name[:100]} {client.version[:50]}".strip()),
            client_id="" if principal is None else storable(getattr(principal, "client_id", None) or ""),
            address=call.address or "",
            revision=call.revision or "",
            decision="" if decision is None else "allow" if decision.allowed else "deny",
            rule="" if decision is None else decision.rule,
            shadow="" if decision is None else ", ".join(decision.shadow),
            outcome=outcome,
            error=storable(ended.error),
            upstream=passage.upstream,
            inner=inner,
        )


_encode = msgspec.json.Encoder().encode


def _text(value: Any) -> str:
    return _encode(value).decode()


def _typed(call: Call) -> Any:
    """The params, as far as they can be read."""
    try:
        return call.typed() if call.method in METHODS else None
    except ProtocolError:
        return None


def _shown(call: Call, typed: Any) -> str:
    """What the call is about, in the client's words."""
    if typed is None:
        return ""
    return typed.name if call.method == "tools/call" else METHODS[call.method].name_in(typed) or ""


def _arguments(typed: Any) -> Raw | None:
    found = getattr(typed, "arguments", None)
    if type(found) is Raw:
        return found if found else None
    return Raw(_encode(found)) if isinstance(found, dict) else None


def _actors(principal: Any) -> tuple[str, ...]:
    found = tuple(getattr(principal, "actors", ()))
    return tuple(storable(str(one)[:LONGEST_NAME]) for one in found[:MOST_ACTORS])
