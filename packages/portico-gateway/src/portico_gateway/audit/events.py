"""Audit events of calls. They contain no results, and only the argument data that the settings request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import lru_cache
from hashlib import sha256
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

from portico.audit.records import AuditEvent
from portico.caching import LruCache
from portico.protocol.client_features import InputRequiredResult
from portico.protocol.errors import (
    ComponentNotFound,
    InvalidParams,
    ProtocolError,
    ResourceNotFound,
    ToolError,
    TooManyRequests,
)
from portico.protocol.methods import METHODS
from portico.protocol.tasks import CreateTaskResult, TaskHandle
from portico.protocol.tools import CallToolResult
from portico.rpc.call import Call
from portico.rpc.trace_context import get_trace_id
from portico.server.policy.interfaces import PolicyContext

MAX_NAME_CHARS = 200
MAX_VALUE_CHARS = 200
MAX_ARGUMENT_FIELDS = 50
MAX_ACTORS = 10

AuditOutcome = Literal[
    "ok", "error", "denied", "unknown", "invalid", "failed", "limited", "cancelled", "asked", "task", "refused"
]
Redactor = Callable[[str], str]
"Returns a text with its secrets redacted."


class CompletedCall(Struct, eq=False, gc=False):
    """A completed call that waits to be written."""

    passage: PolicyContext
    micros: int
    outcome: str
    error: str
    # Result that a gateway forwarded without decoding; whether it is an error is determined when it is written.
    result: Raw | None = None

    @property
    def started_at_us(self) -> int:
        """Return the start time in microseconds since the epoch."""
        return self.passage.started_ns // 1000


# Outcomes


def result_outcome(result: Any) -> AuditOutcome:
    """Return the outcome of a result."""
    # A compatibility profile returns a subclass, which may leave `is_error` unset.
    if isinstance(result, CallToolResult):
        return "error" if result.is_error is True else "ok"
    if type(result) is InputRequiredResult:
        return "asked"
    return "task" if isinstance(result, CreateTaskResult | TaskHandle) else "ok"


def error_outcome(failure: BaseException) -> tuple[AuditOutcome, str]:
    """Return the outcome of a failed call, and the code or kind of its error."""
    if isinstance(failure, ToolError):
        kind = AUDIT_FULL if failure.details.get("code") == AUDIT_FULL else failure.error_type
        return _TOOL_OUTCOMES.get(kind, "error"), kind
    if isinstance(failure, ComponentNotFound | ResourceNotFound):
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
        # For example a lost lease: the call is not over but continues in another process.
        return "cancelled", type(failure).__name__
    return "failed", type(failure).__name__


# `code` in the details of a call that was rejected because its record could not be written.
AUDIT_FULL = "audit_full"

_TOOL_OUTCOMES: dict[str, AuditOutcome] = {
    "PermissionError": "denied",
    "ValidationError": "invalid",
    "ApiLimitExceeded": "limited",
    AUDIT_FULL: "refused",
}


class _ResultHeader(Struct):
    isError: bool = False
    resultType: str = ""


_flags = msgspec.json.Decoder(_ResultHeader)


def raw_result_outcome(result: Raw) -> AuditOutcome:
    """Return the outcome of a result that was forwarded without decoding."""
    try:
        # Decodes two members and skips the rest: a forwarded result may be megabytes long, and it must not be copied
        # for the log.
        flags = _flags.decode(result)
    except (msgspec.DecodeError, RecursionError):
        return "ok"
    if flags.resultType == "input_required":
        return "asked"
    return "error" if flags.isError else "ok"


# Arguments

ArgumentMode = Literal["hashed", "redacted", "omitted"]


class ArgumentRedaction:
    """Redaction of arguments: logged as a digest, as selected fields, or completely.

    Texts are truncated and redacted.
    """

    def __init__(self, mode: ArgumentMode, fields: dict[str, tuple[str, ...]], salt: bytes, redact: Redactor) -> None:
        self.logs_digest = mode != "omitted"
        self._redact_all = mode == "redacted"
        # Whether values are redacted, which is slow.
        self.logs_values = self._redact_all or bool(fields)
        self._fields = fields
        # Precompute the HMAC states for the key; see `digest`.
        # A plain hash of arguments could be reversed by guessing short values such as names; the key is secret and
        # differs between installations.
        self._inner = sha256(bytes(item ^ 0x36 for item in salt.ljust(64, b"\0"))).copy
        self._outer = sha256(bytes(item ^ 0x5C for item in salt.ljust(64, b"\0"))).copy
        self._screen = redact
        self._chosen = lru_cache(10_000)(self._selected_fields)
        # Names recur, so cache them.
        self.name = lru_cache(10_000)(self._truncate_name)

    def digest(self, arguments: Raw) -> str:
        """Return the HMAC-SHA256 (RFC 2104) of arguments. Precomputed key states make it three times as fast."""
        inner, outer = self._inner(), self._outer()
        inner.update(arguments)
        outer.update(inner.digest())
        return outer.hexdigest()

    def select_fields(self, owner: str, name: str, arguments: Raw) -> dict[str, Any]:
        """Return the selected fields of the arguments, redacted."""
        if not self.logs_values:
            return {}
        chosen = None if self._redact_all else self._chosen(f"{owner}.{name}")
        if chosen == ():
            return {}
        try:
            fields = msgspec.json.decode(arguments)
        except (msgspec.DecodeError, RecursionError):
            return {}
        if not isinstance(fields, dict):
            return {}
        # Limited in number: a client could send thousands of members to bloat the log.
        selected = [(key, value) for key, value in fields.items() if chosen is None or key in chosen]
        return {self.name(key): self.redact_value(key, value) for key, value in selected[:MAX_ARGUMENT_FIELDS]}

    def _selected_fields(self, name: str) -> tuple[str, ...]:
        result = [item for pattern, chosen in self._fields.items() if fnmatchcase(name, pattern) for item in chosen]
        return tuple(result)

    def redact_value(self, key: str, value: Any) -> Any:
        """Return a value that is safe to log. The key is part of the redacted text, since `password=…` reveals its
        meaning.
        """
        if isinstance(value, bool | int | float) or value is None:
            return value
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        # Redact before truncating: a secret cut in half is no longer recognized, and its first half would be logged.
        if self._screen(f"{key}={text[:MAX_SCREENED_CHARS]}") != f"{key}={text[:MAX_SCREENED_CHARS]}":
            text = self._screen(f"{key}={text[:MAX_SCREENED_CHARS]}").removeprefix(f"{key}=")
        return strip_unstorable(text[:MAX_VALUE_CHARS])

    def _truncate_name(self, text: str) -> str:
        """Redact and truncate a name or URI chosen by a client."""
        return strip_unstorable(self._screen(text[:MAX_SCREENED_CHARS])[:MAX_NAME_CHARS])


MAX_SCREENED_CHARS = 4000


def strip_unstorable(text: str) -> str:
    """Remove characters that databases reject."""
    return text.replace("\0", "").encode(errors="replace").decode()


# Encoding of records

MAX_CACHED_PREFIXES = 10_000
# Larger params or results are hashed in a thread instead of on the event loop.
MAX_FAST_PATH_BYTES = 16 * 1024
_NUMBERED = len('{"number":0,"at":0')


class AuditEventEncoder:
    """Encodes records. The part that most calls have in common is encoded once and cached."""

    def __init__(self, policy: ArgumentRedaction, server: str) -> None:
        """Create an encoder. `server` is the owner of components without one."""
        self._policy = policy
        self._server = server
        # The value holds references to the objects whose id() is in the key, so that the ids cannot be reused.
        self._prefix_cache: LruCache[tuple[Any, ...], tuple[str, Any, Any]] = LruCache(MAX_CACHED_PREFIXES)

    def encode_fast(self, ended: CompletedCall) -> tuple[int, str] | None:
        """Return the time and the encoded record if that is fast, else None.

        It is fast for a tool call with a known name and little data to hash.
        """
        passage, result = ended.passage, ended.result
        call, owned = passage.call, passage.component
        if call.method != "tools/call" or owned is None or not owned[1] or self._policy.logs_values:
            return None
        # Hashing a large body takes milliseconds, during which the event loop would serve no one.
        if len(call.params) > MAX_FAST_PATH_BYTES or (result is not None and len(result) > MAX_FAST_PATH_BYTES):
            return None
        return passage.started_ns // 1000, self.encode(ended)

    def encode(self, ended: CompletedCall) -> str:
        """Return the record of a call as JSON without its number, which precedes the text."""
        passage = ended.passage
        call = passage.call
        typed = _decode_params(call)
        arguments = _arguments(typed) if passage.arguments is None else passage.arguments
        outcome = ended.outcome if ended.result is None else raw_result_outcome(ended.result)
        inner = call.read is None or call.read[0] is not call.params
        prefix = self._cached_prefix(ended, _exposed_name(call, typed), outcome, inner)
        id = call.id
        request = id if type(id) is int else _text(str(id)[:100])[1:-1]
        more = "" if arguments is None else self._encode_arguments(arguments, passage)
        # `find` is faster than `in`, which first tries to interpret the operand as an integer.
        if call.headers or bytes(call.params).find(b'traceparent"') >= 0:
            trace = get_trace_id(call)
            more += f',"trace":"{trace}"' if trace else ""
        if passage.task_id:
            more += f',"job":{_text(passage.task_id)}'
        return (
            f',"at":{passage.started_ns // 1000}{prefix},"request":"{request}","micros":{ended.micros},'
            f'"received":{len(call.params)},"sent":{0 if inner else call.reply.response_bytes}{more}}}'
        )

    def _encode_arguments(self, arguments: Raw, passage: PolicyContext) -> str:
        policy = self._policy
        digest_member = f',"digest":"{policy.digest(arguments)}"' if policy.logs_digest else ""
        if policy.logs_values:
            owner, name = passage.component or ("", "")
            fields = policy.select_fields(owner or self._server, name, arguments)
            if fields:
                digest_member += f',"fields":{_text(fields)}'
        return digest_member

    def _cached_prefix(self, ended: CompletedCall, exposed_name: str, outcome: str, inner: bool) -> str:
        passage = ended.passage
        call, client = passage.call, passage.call.client
        key = (
            call.method,
            exposed_name,
            passage.component,
            id(call.principal),
            # By value: a request with a progress token has a new object.
            None if client is None else (client.name, client.version),
            call.address,
            call.protocol_version,
            outcome,
            ended.error,
            # Decisions are cached objects of the policy engine, so their identity stands for rule, effect and dry-run
            # rules.
            id(passage.decision),
            passage.upstream,
            inner,
        )
        result = self._prefix_cache.peek(key)
        if result is None:
            text = _text(self._encode_prefix(ended, exposed_name, outcome, inner))[_NUMBERED:-1]
            result = self._prefix_cache[key] = (text, call.principal, passage.decision)
        return result[0]

    def _encode_prefix(self, ended: CompletedCall, exposed_name: str, outcome: str, inner: bool) -> AuditEvent:
        passage = ended.passage
        call, decision = passage.call, passage.decision
        owner, name = passage.component or ("", "")
        principal, client = call.principal, call.client
        if call.method != "tools/call" or not name:
            # Clients put secrets into URIs and misspelled names. Names of existing tools come from the server and are
            # safe.
            exposed_name = self._policy.name(exposed_name)
            name = self._policy.name(name) if name else exposed_name
        return AuditEvent(
            number=0,
            at=0,
            method=call.method,
            owner=owner or self._server,
            name=name,
            shown="" if exposed_name == name else exposed_name,
            principal="" if principal is None else strip_unstorable(str(principal.id)),
            issuer="" if principal is None else strip_unstorable(getattr(principal, "issuer", None) or ""),
            actors=() if principal is None else _actors(principal),
            client="" if client is None else strip_unstorable(f"{client.name[:100]} {client.version[:50]}".strip()),
            client_id="" if principal is None else strip_unstorable(getattr(principal, "client_id", None) or ""),
            address=call.address or "",
            revision=call.protocol_version or "",
            decision="" if decision is None else "allow" if decision.allowed else "deny",
            rule="" if decision is None else decision.rule,
            shadow="" if decision is None else ", ".join(decision.dry_run_rules),
            outcome=outcome,
            error=strip_unstorable(ended.error),
            upstream=passage.upstream,
            inner=inner,
        )


_encode = msgspec.json.Encoder().encode


def _text(value: Any) -> str:
    return _encode(value).decode()


def _decode_params(call: Call) -> Any:
    """Return the decoded params, or None if they are invalid."""
    try:
        return call.decode_params() if call.method in METHODS else None
    except ProtocolError:
        return None


def _exposed_name(call: Call, typed: Any) -> str:
    """Return the name of the component that a call addresses, as the client sent it."""
    if typed is None:
        return ""
    return typed.name if call.method == "tools/call" else METHODS[call.method].get_name(typed) or ""


def _arguments(typed: Any) -> Raw | None:
    result = getattr(typed, "arguments", None)
    if type(result) is Raw:
        return result if result else None
    return Raw(_encode(result)) if isinstance(result, dict) else None


def _actors(principal: Any) -> tuple[str, ...]:
    result = tuple(getattr(principal, "actor_chain", ()))
    return tuple(strip_unstorable(str(item)[:MAX_NAME_CHARS]) for item in result[:MAX_ACTORS])
