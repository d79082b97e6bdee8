"""`call(target, MCPToolCall) -> MCPToolResult`, on whatever answers calls."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any, overload
from weakref import WeakKeyDictionary

import msgspec

from portico.client.client import Client
from portico.client.sync import SyncClient
from portico.rpc.call import Handler
from portico.services.contracts import asking, outcomes
from portico.services.contracts.asking import Answered, Conversation
from portico.services.contracts.definitions import Contract, contract_of
from portico.services.contracts.models import ContractContext, MCPToolCall, MCPToolResult
from portico.services.contracts.outcomes import Outcome
from portico.wire.errors import Error

log = logging.getLogger("portico.contracts")

# What the tools of a client's server promise. Looked at again as soon as something does not fit.
_known: WeakKeyDictionary[Any, Contract] = WeakKeyDictionary()


@overload
def call(
    target: SyncClient, request: MCPToolCall, *, context: ContractContext | None = None, timeout: float | None = None
) -> MCPToolResult: ...
@overload
def call(
    target: Client | Handler,
    request: MCPToolCall,
    *,
    context: ContractContext | None = None,
    timeout: float | None = None,
) -> Coroutine[Any, Any, MCPToolResult]: ...
def call(
    target: SyncClient | Client | Handler,
    request: MCPToolCall,
    *,
    context: ContractContext | None = None,
    timeout: float | None = None,
) -> MCPToolResult | Coroutine[Any, Any, MCPToolResult]:
    """Call a tool by its contract. Nothing that goes wrong is raised: it is a result with the status `failure`.

    The target is an open Client, an open SyncClient (then the result is there at once, and needs no `await`), a Server,
    or any other Handler. A deadline in the context counts as a timeout.
    """
    timeout = _until(context, timeout)
    if isinstance(target, SyncClient):
        return _waited(target, request, context, timeout)
    return _awaited(target, request, context, timeout)


def _until(context: ContractContext | None, timeout: float | None) -> float | None:
    if context is None or context.deadline is None:
        return timeout
    left = max((context.deadline - datetime.now(UTC)).total_seconds(), 0.001)
    return left if timeout is None else min(left, timeout)


def _talk(client: Client | SyncClient, request: MCPToolCall, context: ContractContext | None) -> Conversation:
    return asking.conversation(
        request.tool_name,
        _arguments(request),
        meta={} if context is None else context.meta(),
        known=_known.get(client),
        revision=client.revision,
    )


def _arguments(request: MCPToolCall) -> dict[str, Any]:
    """As JSON has them: a datetime and a path are texts there."""
    found: dict[str, Any] = request.model_dump(mode="json")["arguments"]
    return found


def _waited(
    client: SyncClient, request: MCPToolCall, context: ContractContext | None, timeout: float | None
) -> MCPToolResult:
    began, talk = time.monotonic(), _talk(client, request, context)
    answer: Answered | None = None
    while True:
        try:
            asked = next(talk) if answer is None else talk.send(answer)
        except StopIteration as end:
            return _concluded(request, context, end.value, began)
        try:
            if asked.params is None:
                answer = Answered(_learnt(client, client.list_tools()))
            else:
                answer = Answered(msgspec.json.decode(client.request("tools/call", asked.params, timeout=timeout)))
        except Error as failure:
            answer = asking.refused(failure)


async def _awaited(
    target: Client | Handler, request: MCPToolCall, context: ContractContext | None, timeout: float | None
) -> MCPToolResult:
    began = time.monotonic()
    if isinstance(target, Client):
        outcome = await _over_client(target, request, context, timeout)
    else:
        # A server that is running is not started again by this, and one that is not gets what it needs.
        lifespan = getattr(target, "lifespan", nullcontext)
        async with lifespan():
            outcome = await _over_handler(target, request, context, timeout)
    return _concluded(request, context, outcome, began)


async def _over_client(
    client: Client, request: MCPToolCall, context: ContractContext | None, timeout: float | None
) -> Outcome:
    talk = _talk(client, request, context)
    answer: Answered | None = None
    while True:
        try:
            asked = next(talk) if answer is None else talk.send(answer)
        except StopIteration as end:
            found: Outcome = end.value
            return found
        try:
            if asked.params is None:
                answer = Answered(_learnt(client, await client.list_tools()))
            else:
                said = await client.request("tools/call", asked.params, timeout=timeout)
                answer = Answered(msgspec.json.decode(said))
        except Error as failure:
            answer = asking.refused(failure)


async def _over_handler(
    handler: Handler, request: MCPToolCall, context: ContractContext | None, timeout: float | None
) -> Outcome:
    meta = {} if context is None else context.meta()
    try:
        async with asyncio.timeout(timeout):
            return await asking.ask(handler, request.tool_name, _arguments(request), meta=meta)
    except TimeoutError:
        return outcomes.unanswered("TimeoutError", f"{request.tool_name} did not answer within {timeout:g} s.")


def _learnt(client: Client | SyncClient, tools: list[Any]) -> Contract:
    info = client.server_info
    module, version = (info.name, info.version) if info is not None else ("", "")
    listed = [msgspec.to_builtins(tool) for tool in tools]
    found = _known[client] = contract_of(listed, server=module, version=version, revision=client.revision)
    return found


def _concluded(request: MCPToolCall, context: ContractContext | None, outcome: Outcome, began: float) -> MCPToolResult:
    """Every call by contract leaves a line in the log: which tool, what came of it, and nothing that it was given."""
    result = MCPToolResult.model_validate(outcome)
    log.info(
        "%s: %s%s in %.1f ms%s",
        request.tool_name,
        result.status,
        f" ({result.error.error_type!r})" if result.error is not None else "",
        1000 * (time.monotonic() - began),
        f", correlation {context.correlation_id!r}" if context is not None else "",
    )
    return result
