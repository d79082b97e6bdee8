"""A call by contract: find the tool, check the arguments against its schema, call it, and say how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec
from msgspec import Raw, Struct

from portico import Error, ProtocolError
from portico.auth import AuthorizationFailed
from portico.definitions import LISTS, Offer, offers_of
from portico.extend import (
    MODERN,
    BadStatus,
    Call,
    Emit,
    Handler,
    HeaderMismatch,
    InvalidParams,
    Listening,
    MethodNotFound,
    Reply,
    ResourceNotFound,
    TimedOut,
    TransportError,
    Unknown,
    from_wire,
    members,
    respond,
)
from portico.jsonschema import Complaint, SchemaError, complaints
from portico_services.contracts import outcomes
from portico_services.contracts.contract_cache import MOST_PAGES, KeptContracts
from portico_services.contracts.definitions import Contract, Definition
from portico_services.contracts.outcomes import Outcome

# HTTP's own refusals, where a server refuses in them.
_STATUSES = {
    401: "AuthenticationError",
    403: "PermissionError",
    404: "ResourceNotFound",
    408: "TimeoutError",
    429: "ApiLimitExceeded",
    504: "TimeoutError",
}
# The first class that fits decides.
_KINDS: tuple[tuple[type[Error], str], ...] = (
    (ResourceNotFound, "ResourceNotFound"),
    (InvalidParams, "ValidationError"),
    (HeaderMismatch, "ValidationError"),
    (TimedOut, "TimeoutError"),
    (AuthorizationFailed, "AuthenticationError"),
)


class Target(Protocol):
    """Where tools can be listed and called."""

    @property
    def revision(self) -> str: ...

    async def contract(self, *, fresh: bool) -> Contract:
        """What the tools promise; `fresh`: not from what was kept. Raises Error."""
        ...

    async def call(self, params: dict[str, Any]) -> dict[str, Any]:
        """The result of `tools/call`, as JSON. Raises Error."""
        ...


async def ask(
    target: Target,
    name: str,
    arguments: dict[str, Any],
    *,
    meta: Mapping[str, Any] | None = None,
    known: Contract | None = None,
    fresh: bool = False,
) -> Outcome:
    """The outcome of one call. What does not fit a contract that was kept is held against a `fresh` one."""
    contract = known if known is not None else await _current(target, fresh=fresh)
    tool = contract.find(name)
    problems = _problems(tool, arguments)
    if known is not None and (tool is None or problems):
        return await ask(target, name, arguments, meta=meta, fresh=True)
    if problems:
        return outcomes.invalid(problems)
    # A name that is not listed may be an alias that the server knows.
    params: dict[str, Any] = {"name": tool.name if tool is not None else name, "arguments": arguments}
    try:
        result = await target.call({**params, "_meta": dict(meta)} if meta else params)
    except Error as failure:
        if known is not None and isinstance(failure, Unknown | HeaderMismatch):
            return await ask(target, name, arguments, meta=meta, fresh=True)
        refused = refusal(failure)
        return refused if tool is not None else outcomes.suggesting(refused, name, contract)
    try:
        found = outcomes.outcome(result, tool, target.revision)
        return found if tool is not None else outcomes.suggesting(found, name, contract)
    except outcomes.UnkeptPromise as broken:
        return broken.outcome if fresh else await _again(target, name, result, broken)


async def _again(target: Target, name: str, result: dict[str, Any], broken: outcomes.UnkeptPromise) -> Outcome:
    """The same result, held against what the tool promises now: the server may have been upgraded."""
    tool = (await _current(target, fresh=True)).find(name)
    try:
        return broken.outcome if tool is None else outcomes.outcome(result, tool, target.revision)
    except outcomes.UnkeptPromise as still:
        return still.outcome


async def _current(target: Target, *, fresh: bool) -> Contract:
    try:
        return await target.contract(fresh=fresh)
    except Error:
        # A server that cannot list its tools may still be able to run one.
        return Contract()


def _problems(tool: Definition | None, arguments: dict[str, Any]) -> list[Complaint]:
    if tool is None:
        return []
    try:
        return complaints(tool.input_schema, arguments)
    except SchemaError:
        # The server has the last word about its own schema, and about everything where nothing can be checked here.
        return []


def refusal(failure: Error) -> Outcome:
    """The outcome of a call that has no result."""
    if not isinstance(failure, ProtocolError):
        status = failure.status if isinstance(failure, BadStatus) else 0
        return outcomes.failure(_kind(failure, status), str(failure))
    data = failure.data
    if isinstance(failure, Unknown):
        known = data if isinstance(data, dict) else {}
        return outcomes.failure("ResourceNotFound", failure.message, {"code": outcomes.NOT_FOUND, **known})
    problems = outcomes.problems(data)
    if problems is not None:
        return outcomes.failure("ValidationError", failure.message, problems)
    details = data if isinstance(data, dict | str) else None
    return outcomes.failure(_kind(failure, failure.status), failure.message, details)


def _kind(failure: Error, status: int) -> str:
    kind = next((kind for tp, kind in _KINDS if isinstance(failure, tp)), "ToolExecutionError")
    return kind if isinstance(failure, ResourceNotFound) else _STATUSES.get(status, kind)


class HandlerTarget:
    """A Handler in this process. `about`: the members of a Call, and `emit`, which takes notifications; `kept`: what
    is known of it already."""

    revision = MODERN

    def __init__(
        self, handler: Handler, *, timeout: float | None = None, kept: KeptContracts | None = None, **about: Any
    ) -> None:
        self.handler, self.timeout, self._kept, self._about = handler, timeout, kept, about

    async def contract(self, *, fresh: bool) -> Contract:
        return await contract_from(self.handler, self._kept, **self._about)

    async def call(self, params: dict[str, Any]) -> dict[str, Any]:
        try:
            async with asyncio.timeout(self.timeout):
                said = await _request(self.handler, "tools/call", params, **self._about)
        except TransportError:
            raise
        except TimeoutError:
            raise TimedOut(f"{params['name']} did not answer within {self.timeout:g} s.") from None
        result: dict[str, Any] = msgspec.json.decode(said)
        return result

    def running(self) -> Any:
        """Its lifespan. A server that runs already is not started again by this."""
        return members(self.handler).lifespan()


async def contract_from(handler: Handler, kept: KeptContracts | None = None, **about: Any) -> Contract:
    """What the tools of a Handler promise, as far as this caller is shown them."""

    async def page(params: dict[str, Any]) -> Raw:
        return await _request(handler, "tools/list", params, **about)

    return await (kept or KeptContracts()).current(handler, page, whole=about.get("facet") is None)


async def offers_from(handler: Handler, **about: Any) -> tuple[Offer, ...]:
    """What a Handler offers besides tools. It may not know of such lists."""
    found: list[Offer] = []
    for kind, (method, member, _) in LISTS.items():
        params: dict[str, Any] = {}
        for _ in range(MOST_PAGES):
            try:
                page = msgspec.json.decode(await _request(handler, method, params, **about))
            except MethodNotFound:
                break
            found += offers_of(kind, page.get(member) or ())
            if page.get("nextCursor") is None:
                break
            params = {"cursor": page["nextCursor"]}
    return tuple(found)


class _DoorAnswer(Struct):
    """What the door says, of which the result is decoded by those who want it."""

    result: Raw = Raw(b"{}")
    error: dict[str, Any] | None = None


async def _request(
    handler: Handler, method: str, params: Mapping[str, Any], *, emit: Emit | None = None, **about: Any
) -> Raw:
    """The result of a request. It goes through the one door, which makes an answer of everything that happens."""
    reply = Reply() if emit is None else Listening(emit)
    request = Call(
        method=method, params=Raw(msgspec.json.encode(params)), id="contract", revision=MODERN, reply=reply, **about
    )
    answer = msgspec.json.decode(await respond(request, handler), type=_DoorAnswer)
    if answer.error is not None:
        raise from_wire(answer.error["code"], answer.error["message"], answer.error.get("data"))
    return answer.result
