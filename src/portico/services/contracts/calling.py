"""`call(target, MCPToolCall) -> MCPToolResult`, on a Client, a SyncClient or a Handler."""

from __future__ import annotations

import logging
import time
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Any, overload
from weakref import WeakKeyDictionary

import msgspec

from portico import Client, SyncClient
from portico.extend import Handler
from portico.services.contracts.asking import HandlerTarget, ask
from portico.services.contracts.definitions import Contract, contract_of
from portico.services.contracts.models import ContractContext, MCPToolCall, MCPToolResult

log = logging.getLogger("portico.contracts")

# What the tools of a client's server promise. Asked for again as soon as something does not fit.
_known: WeakKeyDictionary[Client, Contract] = WeakKeyDictionary()


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
    if isinstance(target, SyncClient):
        return target.run(lambda client: _call(client, request, context, timeout))
    return _call(target, request, context, timeout)


async def _call(
    target: Client | Handler, request: MCPToolCall, context: ContractContext | None, timeout: float | None
) -> MCPToolResult:
    began, seconds = time.monotonic(), _seconds_left(context, timeout)
    meta = {} if context is None else context.meta()
    # As JSON has them: a datetime and a path are texts there.
    arguments: dict[str, Any] = request.model_dump(mode="json")["arguments"]
    if isinstance(target, Client):
        known = _known.get(target)
        outcome = await ask(ClientTarget(target, seconds), request.tool_name, arguments, meta=meta, known=known)
    else:
        handler = HandlerTarget(target, timeout=seconds)
        async with handler.running():
            outcome = await ask(handler, request.tool_name, arguments, meta=meta)
    result = MCPToolResult.model_validate(outcome)
    _log(request, context, result, time.monotonic() - began)
    return result


def _seconds_left(context: ContractContext | None, timeout: float | None) -> float | None:
    if context is None or context.deadline is None:
        return timeout
    left = max((context.deadline - datetime.now(UTC)).total_seconds(), 0.001)
    return left if timeout is None else min(left, timeout)


class ClientTarget:
    """The server that an open Client talks to."""

    def __init__(self, client: Client, timeout: float | None) -> None:
        self._client, self._timeout = client, timeout

    @property
    def revision(self) -> str:
        return self._client.revision

    async def contract(self, *, fresh: bool) -> Contract:
        client = self._client
        listed = [msgspec.to_builtins(tool) for tool in await client.list_tools(fresh=fresh)]
        info = client.server_info
        name, version = (info.name, info.version) if info is not None else ("", "")
        found = _known[client] = contract_of(listed, server=name, version=version, revision=client.revision)
        return found

    async def call(self, params: dict[str, Any]) -> dict[str, Any]:
        result: dict[str, Any] = msgspec.json.decode(
            await self._client.request("tools/call", params, timeout=self._timeout)
        )
        return result


def _log(request: MCPToolCall, context: ContractContext | None, result: MCPToolResult, seconds: float) -> None:
    """Every call by contract leaves a line: which tool, how it ended, and nothing that it was given."""
    log.info(
        "%s: %s%s in %.1f ms%s",
        request.tool_name,
        result.status,
        f" ({result.error.error_type!r})" if result.error is not None else "",
        1000 * seconds,
        f", correlation {context.correlation_id!r}" if context is not None else "",
    )
