"""`call(target, MCPToolCall) -> MCPToolResult`, on a Client, a SyncClient or a Handler."""

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
from portico.extend import Handler, MissingCapability
from portico.jsonschema import Complaint
from portico_services.contracts import outcomes
from portico_services.contracts.contract_cache import KeptContracts
from portico_services.contracts.definitions import Contract, contract_of
from portico_services.contracts.invoker import HandlerTarget, ask
from portico_services.contracts.models import CONTEXT_KEY, ContractContext, MCPToolCall, MCPToolResult
from portico_services.contracts.outcomes import Outcome

log = logging.getLogger("portico.contracts")

Message = TypeVar("Message", bound=BaseModel)

_UNSAID = (bytes, bytearray, memoryview, set, frozenset, complex)

# What the tools of a client's server promise. Asked for again as soon as something does not fit.
_known: WeakKeyDictionary[Client, Contract] = WeakKeyDictionary()
# The same of Handlers in this process, which say themselves whether their lists have changed.
_kept: WeakKeyDictionary[Handler, KeptContracts] = WeakKeyDictionary()


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
        try:
            return target.run(lambda client: _call(client, request, context, timeout))
        except UsageError as closed:
            return MCPToolResult.model_validate(outcomes.failure("ToolExecutionError", str(closed)))
    return _call(target, request, context, timeout)


async def _call(
    target: Client | Handler, request: MCPToolCall, context: ContractContext | None, timeout: float | None
) -> MCPToolResult:
    began = time.monotonic()
    name = "?"
    try:
        request, context = _message(MCPToolCall, "request", request), _message_or_none(context)
        name = request.tool_name
        arguments, meta = _as_json(request, context)
    except UnfitArgument as unfit:
        context, outcome = None, outcomes.invalid([unfit.complaint])
    else:
        outcome = await _ask(target, name, arguments, meta, _seconds_left(context, timeout))
    result = MCPToolResult.model_validate(outcome)
    _log(name, context, result, time.monotonic() - began)
    return result


def _message_or_none(context: Any) -> ContractContext | None:
    return None if context is None else _message(ContractContext, "context", context)


def _message(model: type[Message], path: str, value: Any) -> Message:
    """The message, also where it is handed over as JSON has it, or was made past its checks. Raises UnfitArgument."""
    try:
        said = {**value.__dict__, **(value.model_extra or {})} if isinstance(value, model) else value
        return model.model_validate(said)
    except ValidationError as unlike:
        first = unlike.errors()[0]
        raise UnfitArgument(".".join([path, *map(str, first["loc"])]), value, first["msg"]) from None
    except Exception:
        # Whatever: an object of the caller's may raise anything while it is looked at.
        raise UnfitArgument(path, value, f"it is no {model.__name__}") from None


async def _ask(
    target: Any, name: str, arguments: dict[str, Any], meta: dict[str, Any], seconds: float | None
) -> Outcome:
    if not isinstance(target, Client) and not callable(target):
        kind = type(target).__name__
        said = f"{kind} is none of a Client, a SyncClient, a Server or another Handler; a Client opens an address"
        return outcomes.invalid([Complaint("target", "type", said, kind)])
    if isinstance(target, Client):
        return await ask(ClientTarget(target, seconds), name, arguments, meta=meta, known=_known.get(target))
    handler = OwnTarget(target, timeout=seconds, kept=_kept_of(target))
    async with handler.running():
        return await ask(handler, name, arguments, meta=meta)


def _kept_of(handler: Handler) -> KeptContracts | None:
    """None for a Handler that cannot be the key of anything."""
    try:
        return _kept.setdefault(handler, KeptContracts())
    except TypeError:
        return None


class UnfitArgument(Exception):
    """Something that JSON has no way to say; `complaint` tells which."""

    def __init__(self, path: str, value: Any, said: str = "") -> None:
        super().__init__(path)
        said = said or f"{type(value).__name__} is no value of JSON, or holds one that is not"
        self.complaint = Complaint(path, "type", said, type(value).__name__)


def _as_json(request: MCPToolCall, context: ContractContext | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments and the `_meta`, as JSON has them: a datetime and a path are texts there. Raises UnfitArgument."""
    arguments = {_told("arguments", name): _told(name, value) for name, value in request.arguments.items()}
    return arguments, {} if context is None else {CONTEXT_KEY: _told("context", context.plain())}


def _told(path: str, value: Any) -> Any:
    try:
        _check_sayable(value)
        found = to_jsonable_python(value)
        # Half of a pair of surrogates is a text for Python, and no UTF-8; what is no number is none in JSON.
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
    except Exception:
        # Whatever: an object of the caller's may raise anything while it is looked at.
        raise UnfitArgument(path.encode(errors="replace").decode(), value) from None
    return found


def _check_sayable(value: Any) -> None:
    """Raises TypeError for what would be said as something else: bytes, sets, complex numbers, odd keys."""
    if isinstance(value, _UNSAID):
        raise TypeError
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError
        value = value.values()
    elif not isinstance(value, list | tuple):
        return
    for one in value:
        _check_sayable(one)


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
        client = self._client
        tool = _known[client].find(params["name"]) if client in _known else None
        if tool is not None and tool.task == "required":
            return await self.as_task(params)
        try:
            said = await client.request("tools/call", params, timeout=self._timeout)
        except MissingCapability as missing:
            if not _wants_task(missing):
                raise
            return await self.as_task(params)
        result: dict[str, Any] = msgspec.json.decode(said)
        return result

    async def as_task(self, params: dict[str, Any]) -> dict[str, Any]:
        """The result of a tool that runs as a task only: it is started, and waited for."""
        name, arguments, meta = params["name"], params["arguments"], params.get("_meta")
        task = await self._client.start_task(name, arguments, timeout=self._timeout, meta=meta)
        said = await task.result(timeout=self._timeout, returns=Any, raise_on_error=False)
        result = {"content": msgspec.to_builtins(said.content), "isError": said.is_error, "_meta": said.meta or {}}
        return result if said.structured is None else {**result, "structuredContent": said.structured}


def _wants_task(missing: MissingCapability) -> bool:
    """Whether a tool cannot be called but as a task."""
    return any(name.endswith("/tasks") for name in missing.extensions)


class OwnTarget(HandlerTarget):
    """A Handler in this process, called on no behalf but ours: what runs as a task only is waited for."""

    async def call(self, params: dict[str, Any]) -> dict[str, Any]:
        try:
            return await super().call(params)
        except MissingCapability as missing:
            if not _wants_task(missing):
                raise
            async with Client(self.handler) as client:
                return await ClientTarget(client, self.timeout).as_task(params)


def _log(name: str, context: ContractContext | None, result: MCPToolResult, seconds: float) -> None:
    """Every call by contract leaves a line: which tool, how it ended, and nothing that it was given."""
    log.info(
        "%s: %s%s in %.1f ms%s",
        name,
        result.status,
        f" ({result.error.error_type!r})" if result.error is not None else "",
        1000 * seconds,
        f", correlation {context.correlation_id!r}" if context is not None else "",
    )
