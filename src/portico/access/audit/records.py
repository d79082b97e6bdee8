"""What is kept of a call. Nothing of what it was answered with, and of its arguments no more than was asked for."""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

from portico.rpc.call import Call
from portico.wire.errors import InvalidParams, ProtocolError, ResourceNotFound, ToolError, Unknown
from portico.wire.inputs import InputRequiredResult
from portico.wire.methods import METHODS
from portico.wire.tasks import CreateTaskResult, TaskHandle
from portico.wire.tools import CallToolResult

LONGEST_NAME = 200
LONGEST_VALUE = 200
MOST_FIELDS = 50
MOST_ACTORS = 10

Kind = Literal["call", "login", "begin", "end", "dropped", "restored"]
Outcome = Literal[
    "ok", "error", "denied", "unknown", "invalid", "failed", "limited", "cancelled", "asked", "task", "refused"
]
Screen = Callable[[str], str]
"""Gives a text with its secrets taken out."""

_TRACE = re.compile(rb'"traceparent"\s*:\s*"00-([0-9a-f]{32})-')


class CallRecord(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One record. What is not known is left out."""

    number: int
    # Microseconds since 1970, when it began.
    at: int
    kind: Kind = "call"
    method: str = ""
    # Whose it is and what it is called there: an upstream's alias, a service, a mount, or the server itself.
    owner: str = ""
    name: str = ""
    # What the client called it, where that is something else.
    shown: str = ""
    principal: str = ""
    issuer: str = ""
    # On whose behalf the principal acts, the nearest first.
    actors: tuple[str, ...] = ()
    client: str = ""
    client_id: str = ""
    address: str = ""
    revision: str = ""
    request: str = ""
    # HMAC-SHA256 of the arguments as they came.
    digest: str = ""
    fields: dict[str, Any] = {}
    decision: str = ""
    rule: str = ""
    # What rules that are only tried out would have said.
    shadow: str = ""
    outcome: str = ""
    # The code of an error, or its kind; never its words.
    error: str = ""
    micros: int = 0
    received: int = 0
    sent: int = 0
    upstream: str = ""
    trace: str = ""
    # A body called it, and no client.
    inner: bool = False
    # The task that ran it.
    job: str = ""
    # Of records that are about the audit itself.
    note: dict[str, Any] = {}


class EndedCall(Struct, eq=False, gc=False):
    """A call that is over, as it waits to be written."""

    call: Call
    at: int
    micros: int
    outcome: str
    error: str
    # Whose it is, and its name there.
    owner: str
    name: str
    inner: bool
    # What a gateway passed on unread: whether it tells of an error is found when it is written.
    result: Raw | None = None
    decision: str = ""
    rule: str = ""
    shadow: str = ""
    upstream: str = ""
    job: str = ""
    arguments: Raw | None = None


# What became of it


def outcome_of(result: Any) -> Outcome:
    if type(result) is CallToolResult:
        return "error" if result.is_error else "ok"
    if type(result) is InputRequiredResult:
        return "asked"
    return "task" if isinstance(result, CreateTaskResult | TaskHandle) else "ok"


def failure_of(failure: BaseException) -> tuple[Outcome, str]:
    """What a call that failed came to, and the error's code or kind."""
    if isinstance(failure, ToolError):
        kind = failure.kind
        if kind in _TOOL_OUTCOMES:
            return _TOOL_OUTCOMES[kind], kind
        return "error", kind
    if isinstance(failure, Unknown | ResourceNotFound):
        return "unknown", str(failure.code)
    if isinstance(failure, InvalidParams):
        return "invalid", str(failure.code)
    if isinstance(failure, ProtocolError):
        return "failed", str(failure.code)
    if isinstance(failure, asyncio.CancelledError):
        return "cancelled", ""
    if not isinstance(failure, Exception):
        # A lost lease, and the like: it is not over, it is done elsewhere.
        return "cancelled", type(failure).__name__
    return "failed", type(failure).__name__


_TOOL_OUTCOMES: dict[str, Outcome] = {
    "PermissionError": "denied",
    "Denied": "denied",
    "ValidationError": "invalid",
    "Validation": "invalid",
    "RateLimited": "limited",
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
        self._fields = fields
        self._salt = salt
        self._screen = screen
        self._chosen = lru_cache(10_000)(self._choose)
        # Names are the same again and again.
        self.name = lru_cache(10_000)(self._name)

    def digest(self, arguments: Raw) -> str:
        return hmac.digest(self._salt, arguments, "sha256").hex()

    def fields(self, owner: str, name: str, arguments: Raw) -> dict[str, Any]:
        if not self._all and not self._fields:
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


def record_of(ended: EndedCall, number: int, policy: ArgumentPolicy) -> CallRecord:
    call = ended.call
    principal, client, name = call.principal, call.client, ended.name
    arguments = ended.arguments if ended.arguments is not None else _arguments(call)
    digest, fields = "", {}
    if arguments is not None:
        if policy.digests:
            digest = policy.digest(arguments)
        fields = policy.fields(ended.owner, name, arguments)
    own = _shown(call)
    if call.method != "tools/call" or not name:
        # A tool that is there has a name of the server's; all else a client may have made up.
        own = policy.name(own)
        name = policy.name(name) if name else own
    outcome = ended.outcome if ended.result is None else raw_outcome(ended.result)
    sent = 0 if ended.inner else call.reply.size
    return CallRecord(
        number=number,
        at=ended.at,
        method=call.method,
        owner=ended.owner,
        name=name,
        shown="" if own == name else own,
        principal="" if principal is None else str(principal.id),
        issuer="" if principal is None else getattr(principal, "issuer", None) or "",
        actors=() if principal is None else _actors(principal),
        client="" if client is None else _client(client.name, client.version),
        client_id="" if principal is None else getattr(principal, "client_id", None) or "",
        address=call.address or "",
        revision=call.revision or "",
        request="" if call.id is None else str(call.id)[:100],
        digest=digest,
        fields=fields,
        decision=ended.decision,
        rule=ended.rule,
        shadow=ended.shadow,
        outcome=outcome,
        error=ended.error,
        micros=ended.micros,
        received=len(call.params),
        sent=sent,
        upstream=ended.upstream,
        trace=_trace(call),
        inner=ended.inner,
        job=ended.job,
    )


def _shown(call: Call) -> str:
    """What the call is about, in the client's words."""
    row = METHODS.get(call.method)
    if row is None or not row.named:
        return ""
    try:
        return row.name_in(call.typed()) or ""
    except ProtocolError:
        return ""


def _arguments(call: Call) -> Raw | None:
    try:
        found = getattr(call.typed(), "arguments", None) if call.method in _WITH_ARGUMENTS else None
    except ProtocolError:
        return None
    if isinstance(found, dict):
        return Raw(msgspec.json.encode(found))
    return found if isinstance(found, Raw) and len(found) else None


_WITH_ARGUMENTS = frozenset({"tools/call", "prompts/get"})


@lru_cache(10_000)
def _client(name: str, version: str) -> str:
    return storable(f"{name[:100]} {version[:50]}".strip())


def _actors(principal: Any) -> tuple[str, ...]:
    found = getattr(principal, "actor", None) or ()
    chain = (found,) if isinstance(found, str) else tuple(found)
    return tuple(str(one)[:LONGEST_NAME] for one in chain[:MOST_ACTORS])


def _trace(call: Call) -> str:
    """The trace of W3C's `traceparent`, in `_meta` or in a header."""
    params = bytes(call.params)
    if b'"traceparent"' in params:
        found = _TRACE.search(params)
        if found is not None:
            return found[1].decode()
    said = None if call.headers is None else call.headers.get(b"traceparent")
    if said is not None and len(said) >= 35:
        return said[3:35].decode("latin-1") if _HEX.fullmatch(said[3:35]) else ""
    return ""


_HEX = re.compile(rb"[0-9a-f]{32}")
