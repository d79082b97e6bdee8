"""`call(target, MCPToolCall) -> MCPToolResult` for a Client, a SyncClient or a Handler."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Coroutine, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar, overload
from weakref import WeakKeyDictionary

import msgspec
from pydantic import BaseModel, ValidationError
from pydantic_core import to_jsonable_python

from portico import Client, SyncClient, UsageError
from portico.errors import MissingClientCapability
from portico.extend import Handler
from portico.jsonschema import ValidationIssue
from portico_services.contracts import outcomes
from portico_services.contracts.contract_cache import ContractCache
from portico_services.contracts.definitions import ServerContract, contract_from_tools
from portico_services.contracts.invoker import HandlerTarget, invoke
from portico_services.contracts.models import CONTEXT_KEY, ContractContext, MCPToolCall, MCPToolResult
from portico_services.contracts.outcomes import Outcome

log = logging.getLogger("portico.contracts")

Message = TypeVar("Message", bound=BaseModel)

_NON_JSON_TYPES = (bytes, bytearray, memoryview, set, frozenset, complex)

# Contracts of the servers that clients are connected to. Refreshed as soon as a call does not fit.
# Weak keys: a contract must not keep a closed client and its connection alive.
_client_contracts: WeakKeyDictionary[Client, ServerContract] = WeakKeyDictionary()
# The same for handlers in this process, which report themselves whether their lists have changed.
_handler_caches: WeakKeyDictionary[Handler, ContractCache] = WeakKeyDictionary()


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
    """Call a tool by contract. Failures are not raised but returned as a result with the status `failure`.

    `target` is an open Client, an open SyncClient (the result is returned directly, without `await`), a Server, or any
    other Handler. `request` names the tool and its arguments. `context` is sent in `_meta`; its deadline limits
    `timeout`, which is in seconds.
    """
    if isinstance(target, SyncClient):
        try:
            return target.run(lambda client: _call(client, request, context, timeout))
        # Failures are never raised here, not even for a client that was not opened.
        except UsageError as closed:
            return MCPToolResult.model_validate(outcomes.failure("ToolExecutionError", str(closed)))
    return _call(target, request, context, timeout)


async def _call(
    target: Client | Handler, request: MCPToolCall, context: ContractContext | None, timeout: float | None
) -> MCPToolResult:
    # Not time.time(): the clock may be adjusted during a call.
    started_at = time.monotonic()
    name = "?"
    try:
        request, context = _validate_model(MCPToolCall, "request", request), _message_or_none(context)
        name = request.tool_name
        arguments, meta = _to_json(request, context)
    except UnserializableArgument as unfit:
        context, outcome = None, outcomes.invalid_arguments([unfit.complaint])
    else:
        outcome = await _invoke(target, name, arguments, meta, _remaining_timeout(context, timeout))
    result = MCPToolResult.model_validate(outcome)
    # Every call by contract is logged: the tool and the outcome, but never the arguments.
    log.info(
        "%s: %s%s in %.1f ms%s",
        name,
        result.status,
        f" ({result.error.error_type!r})" if result.error is not None else "",
        1000 * (time.monotonic() - started_at),
        f", correlation {context.correlation_id!r}" if context is not None else "",
    )
    return result


def _message_or_none(context: Any) -> ContractContext | None:
    return None if context is None else _validate_model(ContractContext, "context", context)


def _validate_model(model: type[Message], path: str, value: Any) -> Message:
    """Return the validated message, also if it was passed as JSON or constructed without validation. Raises
    UnserializableArgument.
    """
    try:
        # `model_construct` and assignment bypass validation, so an instance is validated again from its members.
        data = {**value.__dict__, **(value.model_extra or {})} if isinstance(value, model) else value
        return model.model_validate(data)
    except ValidationError as unlike:
        first = unlike.errors()[0]
        raise UnserializableArgument(".".join([path, *map(str, first["loc"])]), value, first["msg"]) from None
    except Exception:
        # An object of the caller may raise any exception while it is inspected.
        raise UnserializableArgument(path, value, f"expected a {model.__name__}") from None


async def _invoke(
    target: Any, name: str, arguments: dict[str, Any], meta: dict[str, Any], seconds: float | None
) -> Outcome:
    if not isinstance(target, Client) and not callable(target):
        kind = type(target).__name__
        message = (
            f"the target must be a Client, SyncClient, Server or other Handler, got {kind}; open an address with Client"
        )
        return outcomes.invalid_arguments([ValidationIssue("target", "type", message, kind)])
    if isinstance(target, Client):
        return await invoke(
            ClientTarget(target, seconds), name, arguments, meta=meta, cached_contract=_client_contracts.get(target)
        )
    # A server that is not running yet is started for this call, with its lifespan, and stopped afterwards.
    handler = LocalHandlerTarget(target, timeout=seconds, cache=_cache_for(target))
    async with handler.run():
        return await invoke(handler, name, arguments, meta=meta)


def _cache_for(handler: Handler) -> ContractCache | None:
    """Return the contract cache of a handler, or None if the handler is not hashable."""
    try:
        return _handler_caches.setdefault(handler, ContractCache())
    except TypeError:
        return None


class UnserializableArgument(Exception):
    """Argument that cannot be represented in JSON; `complaint` identifies it."""

    def __init__(self, path: str, value: Any, reason: str = "") -> None:
        super().__init__(path)
        reason = reason or f"{type(value).__name__} is not JSON-serializable or contains a value that is not"
        self.complaint = ValidationIssue(path, "type", reason, type(value).__name__)


def _to_json(request: MCPToolCall, context: ContractContext | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments and `_meta` as JSON values: datetimes and paths become strings. Raises
    UnserializableArgument.
    """
    arguments = {
        _format_path("arguments", name): _format_path(name, value) for name, value in request.arguments.items()
    }
    return arguments, {} if context is None else {CONTEXT_KEY: _format_path("context", context.to_json())}


def _format_path(path: str, value: Any) -> Any:
    try:
        _require_json_types(value)
        result = to_jsonable_python(value)
        # A lone surrogate is valid in a Python str but not in UTF-8, and JSON has no NaN or infinity.
        json.dumps(result, ensure_ascii=False, allow_nan=False).encode()
    except Exception:
        # An object of the caller may raise any exception while it is inspected.
        raise UnserializableArgument(path.encode(errors="replace").decode(), value) from None
    return result


def _require_json_types(value: Any) -> None:
    """Raise TypeError for values that would be silently converted: bytes, sets, complex numbers, non-string keys."""
    if isinstance(value, _NON_JSON_TYPES):
        raise TypeError
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError
        value = value.values()
    elif not isinstance(value, list | tuple):
        return
    for item in value:
        _require_json_types(item)


def _remaining_timeout(context: ContractContext | None, timeout: float | None) -> float | None:
    """Return the smaller of the timeout and the time left until the context's deadline."""
    if context is None or context.deadline is None:
        return timeout
    # Never zero or negative: a deadline in the past fails as a timeout, like one that passes during the call.
    left = max((context.deadline - datetime.now(UTC)).total_seconds(), 0.001)
    return left if timeout is None else min(left, timeout)


class ClientTarget:
    """Call target for the server that an open Client is connected to."""

    def __init__(self, client: Client, timeout: float | None) -> None:
        self._client, self._timeout = client, timeout

    @property
    def protocol_version(self) -> str:
        return self._client.protocol_version

    async def contract(self, *, fresh: bool) -> ServerContract:
        client = self._client
        listed = [msgspec.to_builtins(tool) for tool in await client.list_tools(refresh=fresh)]
        info = client.server_info
        name, version = (info.name, info.version) if info is not None else ("", "")
        contract = _client_contracts[client] = contract_from_tools(
            listed, server=name, version=version, revision=client.protocol_version
        )
        return contract

    async def call(self, params: dict[str, Any]) -> dict[str, Any]:
        client = self._client
        tool = _client_contracts[client].find(params["name"]) if client in _client_contracts else None
        # 2025-11-25 lists task support per tool; a plain call would be rejected.
        if tool is not None and tool.task == "required":
            return await self.as_task(params)
        try:
            response = await client.request("tools/call", params, timeout=self._timeout)
        except MissingClientCapability as missing:
            if not _requires_task(missing):
                raise
            return await self.as_task(params)
        result: dict[str, Any] = msgspec.json.decode(response)
        return result

    async def as_task(self, params: dict[str, Any]) -> dict[str, Any]:
        """Start a tool that runs only as a task, wait for it and return its result."""
        name, arguments, meta = params["name"], params["arguments"], params.get("_meta")
        task = await self._client.start_task(name, arguments, timeout=self._timeout, meta=meta)
        response = await task.result(timeout=self._timeout, result_type=Any, raise_on_error=False)
        result = {
            "content": msgspec.to_builtins(response.content),
            "isError": response.is_error,
            "_meta": response.meta or {},
        }
        return result if response.structured is None else {**result, "structuredContent": response.structured}


def _requires_task(missing: MissingClientCapability) -> bool:
    """Return whether the error means that the tool can only be called as a task."""
    return any(name.endswith("/tasks") for name in missing.required_extensions)


class LocalHandlerTarget(HandlerTarget):
    """Call target for a Handler in this process. Tools that run only as tasks are started and awaited."""

    async def call(self, params: dict[str, Any]) -> dict[str, Any]:
        try:
            return await super().call(params)
        except MissingClientCapability as missing:
            if not _requires_task(missing):
                raise
            # Tasks need a connection, which a bare handler call does not have.
            async with Client(self.handler) as client:
                return await ClientTarget(client, self.timeout).as_task(params)
