"""A call by contract, as a conversation without I/O: a generator that asks for the tools or for a call, and is given
what came of it. Below it, how a Handler in this process is asked."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct

from portico.auth.errors import AuthorizationFailed
from portico.rpc.call import Call, Handler
from portico.rpc.door import respond
from portico.schema import SchemaError
from portico.schema import check as schemas
from portico.services.contracts import outcomes
from portico.services.contracts.definitions import Contract, Definition, contract_of
from portico.services.contracts.outcomes import Outcome
from portico.wire import jsonrpc
from portico.wire.errors import BadStatus, Error, HeaderMismatch, ProtocolError, TimedOut, Unknown
from portico.wire.revisions import MODERN

# A list of a Handler's that has no end is not followed further.
MOST_PAGES = 1000


class Asked(Struct, frozen=True):
    """What the conversation wants to know: the tools, or what a call with these params comes to."""

    params: dict[str, Any] | None = None


class Answered(Struct, frozen=True):
    """What came of it: a Contract, or a result as JSON, or why there is none."""

    result: Any = None
    refused: Outcome | None = None
    # The name may be one that the server no longer knows, or the schema one that it has changed.
    may_be_stale: bool = False


Conversation = Generator[Asked, Answered, Outcome]


def conversation(
    name: str, arguments: dict[str, Any], *, meta: Mapping[str, Any], known: Contract | None, revision: str
) -> Conversation:
    """Find the tool, hold the arguments against its schema, call it, and say what came of it."""
    contract, fresh = known, False
    while True:
        if contract is None:
            contract, fresh = (yield Asked()).result, True
        tool = contract.find(name) if contract is not None else None
        problems = _problems(tool, arguments)
        if (tool is not None and not problems) or fresh:
            break
        # What is known may be out of date.
        contract = None
    if problems:
        return outcomes.invalid(problems)
    # A name that nobody lists may still be one that the server knows the tool by.
    params: dict[str, Any] = {"name": tool.name if tool is not None else name, "arguments": arguments}
    said = yield Asked({**params, "_meta": dict(meta)} if meta else params)
    if said.may_be_stale and not fresh:
        return (yield from conversation(name, arguments, meta=meta, known=None, revision=revision))
    if said.refused is not None:
        return (
            said.refused if tool is not None or contract is None else outcomes.suggesting(said.refused, name, contract)
        )
    return outcomes.outcome(said.result, tool, revision)


def _problems(tool: Definition | None, arguments: dict[str, Any]) -> list[schemas.Complaint]:
    if tool is None:
        return []
    try:
        return schemas.complaints(tool.input_schema, arguments)
    except SchemaError:
        # The server has the last word about its own schema, and about everything where nothing can be checked here.
        return []


def refused(failure: Error) -> Answered:
    """What a client raised instead of an answer."""
    if isinstance(failure, ProtocolError):
        stale = isinstance(failure, Unknown | HeaderMismatch)
        said = outcomes.refusal(failure.code, failure.message, failure.data, failure.status)
        return Answered(refused=said, may_be_stale=stale)
    if isinstance(failure, BadStatus):
        return Answered(refused=outcomes.unanswered(failure.status, str(failure)))
    kind = "TimeoutError" if isinstance(failure, TimedOut) else "ToolExecutionError"
    kind = "AuthenticationError" if isinstance(failure, AuthorizationFailed) else kind
    return Answered(refused=outcomes.unanswered(kind, str(failure)))


# A Handler in this process


async def ask(
    handler: Handler,
    name: str,
    arguments: dict[str, Any],
    *,
    meta: Mapping[str, Any] | None = None,
    known: Contract | None = None,
    **about: Any,
) -> Outcome:
    """What a call comes to. `about`: who calls, and who hears of progress; the members of a Call."""
    talk = conversation(name, arguments, meta=meta or {}, known=known, revision=MODERN)
    answer: Answered | None = None
    while True:
        try:
            asked = next(talk) if answer is None else talk.send(answer)
        except StopIteration as end:
            found: Outcome = end.value
            return found
        if asked.params is None:
            answer = Answered(await contract_from(handler, **about))
        else:
            answer = await _invoked(handler, asked.params, **about)


async def contract_from(handler: Handler, **about: Any) -> Contract:
    """What the tools of a Handler promise, as far as this caller is shown them."""
    listed: list[Any] = []
    cursor: str | None = None
    for _ in range(MOST_PAGES):
        said = await _responded(handler, "tools/list", {} if cursor is None else {"cursor": cursor}, **about)
        page = said.get("result") or {}
        listed += page.get("tools") or ()
        cursor = page.get("nextCursor")
        if cursor is None:
            break
    info = getattr(handler, "info", None)
    module, version = str(getattr(info, "name", "")), str(getattr(info, "version", ""))
    return contract_of(listed, server=module, version=version, revision=MODERN)


async def _invoked(handler: Handler, params: Mapping[str, Any], **about: Any) -> Answered:
    said = await _responded(handler, "tools/call", params, **about)
    if "error" not in said:
        return Answered(said["result"])
    error = said["error"]
    return Answered(
        refused=outcomes.refusal(error["code"], error["message"], error.get("data")),
        may_be_stale=error["message"].startswith("Unknown tool"),
    )


async def _responded(handler: Handler, method: str, params: Mapping[str, Any], **about: Any) -> dict[str, Any]:
    """Through the one door, so that whatever happens is an answer."""
    request = Call(method=method, params=Raw(jsonrpc.encode(params)), id="contract", revision=MODERN, **about)
    return msgspec.json.decode(await respond(request, handler))  # type: ignore[no-any-return]
