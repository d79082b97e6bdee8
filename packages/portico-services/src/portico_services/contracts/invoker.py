"""Calls by contract: find the tool, validate the arguments against its schema, call it and classify the outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec
from msgspec import Raw, Struct

from portico import PorticoError, ProtocolError
from portico.auth import AuthorizationError
from portico.errors import (
    ComponentNotFound,
    HeaderMismatch,
    HttpStatusError,
    InvalidParams,
    RequestTimeout,
    ResourceNotFound,
    TransportError,
)
from portico.extend import (
    FIRST_MODERN_VERSION,
    Call,
    CallbackReply,
    Handler,
    NotificationCallback,
    Reply,
    dispatch_in_process,
    error_from_response,
    get_capabilities,
)
from portico.jsonschema import SchemaError, ValidationIssue, validate
from portico_services.contracts import outcomes
from portico_services.contracts.contract_cache import ContractCache
from portico_services.contracts.definitions import ServerContract, ToolDefinitionSnapshot
from portico_services.contracts.outcomes import Outcome

# Error types for HTTP status codes of servers that reject calls at the HTTP level.
_ERROR_TYPE_BY_HTTP_STATUS = {
    401: "AuthenticationError",
    403: "PermissionError",
    404: "ResourceNotFound",
    408: "TimeoutError",
    429: "ApiLimitExceeded",
    504: "TimeoutError",
}
# The first matching class wins.
# ResourceNotFound derives from InvalidParams, so it comes first.
_ERROR_TYPE_BY_EXCEPTION: tuple[tuple[type[PorticoError], str], ...] = (
    (ResourceNotFound, "ResourceNotFound"),
    (InvalidParams, "ValidationError"),
    (HeaderMismatch, "ValidationError"),
    (RequestTimeout, "TimeoutError"),
    (AuthorizationError, "AuthenticationError"),
)


class CallTarget(Protocol):
    """Target that lists and calls tools."""

    @property
    def protocol_version(self) -> str: ...

    async def contract(self, *, fresh: bool) -> ServerContract:
        """Return the contract of the tools; with `fresh`, bypass the cache. Raises PorticoError."""
        ...

    async def call(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return the result of `tools/call` as JSON. Raises PorticoError."""
        ...


async def invoke(
    target: CallTarget,
    name: str,
    arguments: dict[str, Any],
    *,
    meta: Mapping[str, Any] | None = None,
    cached_contract: ServerContract | None = None,
    fresh: bool = False,
) -> Outcome:
    """Call a tool and return the outcome. If the call does not fit a cached contract, retry with a fresh one."""
    # The cached contract is only an optimization: it saves a tools/list per call. Every decision that it leads to and
    # that would fail the call is repeated with a fresh contract.
    contract = cached_contract if cached_contract is not None else await _fetch_contract(target, fresh=fresh)
    tool = contract.find(name)
    problems = _validate_arguments(tool, arguments)
    # The tool may have been added, or its schema extended, since the contract was cached. Nothing was called yet, so
    # repeating is safe even for writes.
    if cached_contract is not None and (tool is None or problems):
        return await invoke(target, name, arguments, meta=meta, fresh=True)
    if problems:
        return outcomes.invalid_arguments(problems)
    # An unlisted name may be an alias that the server accepts.
    params: dict[str, Any] = {"name": tool.name if tool is not None else name, "arguments": arguments}
    try:
        result = await target.call({**params, "_meta": dict(meta)} if meta else params)
    except PorticoError as failure:
        # Both errors are raised before the tool runs, so the retry cannot repeat an effect. Other errors are not
        # retried.
        if cached_contract is not None and isinstance(failure, ComponentNotFound | HeaderMismatch):
            return await invoke(target, name, arguments, meta=meta, fresh=True)
        refused = failure_from_exception(failure)
        return refused if tool is not None else outcomes.with_suggestion(refused, name, contract)
    try:
        # The tool has run by now. From here on nothing is called again; only the result is validated once more.
        match = outcomes.outcome_from_result(result, tool, target.protocol_version)
        return match if tool is not None else outcomes.with_suggestion(match, name, contract)
    except outcomes.ContractOutputViolation as broken:
        return broken.outcome if fresh else await _revalidate(target, name, result, broken)


async def _revalidate(
    target: CallTarget, name: str, result: dict[str, Any], broken: outcomes.ContractOutputViolation
) -> Outcome:
    """Validate the same result against the tool's current schema: the server may have been upgraded."""
    tool = (await _fetch_contract(target, fresh=True)).find(name)
    try:
        return broken.outcome if tool is None else outcomes.outcome_from_result(result, tool, target.protocol_version)
    except outcomes.ContractOutputViolation as still:
        return still.outcome


async def _fetch_contract(target: CallTarget, *, fresh: bool) -> ServerContract:
    try:
        return await target.contract(fresh=fresh)
    except PorticoError:
        # A server that cannot list its tools may still be able to run one.
        return ServerContract()


def _validate_arguments(tool: ToolDefinitionSnapshot | None, arguments: dict[str, Any]) -> list[ValidationIssue]:
    if tool is None:
        return []
    try:
        return validate(tool.input_schema, arguments)
    except SchemaError:
        # The server decides about its own schema, and about everything that cannot be validated here.
        return []


def failure_from_exception(failure: PorticoError) -> Outcome:
    """Return the outcome for a call that raised an exception."""
    if not isinstance(failure, ProtocolError):
        status = failure.http_status if isinstance(failure, HttpStatusError) else 0
        return outcomes.failure(_error_type(failure, status), str(failure))
    data = failure.data
    # The code lets callers distinguish a missing tool from a resource that the tool did not find.
    if isinstance(failure, ComponentNotFound):
        error_data = data if isinstance(data, dict) else {}
        return outcomes.failure(
            "ResourceNotFound", failure.message, {"code": outcomes.TOOL_NOT_FOUND_CODE, **error_data}
        )
    problems = outcomes.argument_problems(data)
    if problems is not None:
        return outcomes.failure("ValidationError", failure.message, problems)
    details = data if isinstance(data, dict | str) else None
    return outcomes.failure(_error_type(failure, failure.http_status), failure.message, details)


def _error_type(failure: PorticoError, status: int) -> str:
    # A status of the HTTP layer, such as 401 of a proxy, says more than the general error around it.
    kind = next((kind for tp, kind in _ERROR_TYPE_BY_EXCEPTION if isinstance(failure, tp)), "ToolExecutionError")
    return kind if isinstance(failure, ResourceNotFound) else _ERROR_TYPE_BY_HTTP_STATUS.get(status, kind)


class HandlerTarget:
    """Call target for a Handler in this process.

    `about` holds fields of the Call, and `emit`, which receives notifications; `cache` is the contract cache.
    """

    protocol_version = FIRST_MODERN_VERSION

    def __init__(
        self, handler: Handler, *, timeout: float | None = None, cache: ContractCache | None = None, **about: Any
    ) -> None:
        self.handler, self.timeout, self._cache, self._about = handler, timeout, cache, about

    async def contract(self, *, fresh: bool) -> ServerContract:
        return await fetch_contract(self.handler, self._cache, **self._about)

    async def call(self, params: dict[str, Any]) -> dict[str, Any]:
        try:
            async with asyncio.timeout(self.timeout):
                response = await _request(self.handler, "tools/call", params, **self._about)
        # RequestTimeout of an upstream is both a TransportError and a TimeoutError; it already names the upstream.
        except TransportError:
            raise
        except TimeoutError:
            raise RequestTimeout(f"{params['name']} did not answer within {self.timeout:g} s.") from None
        result: dict[str, Any] = msgspec.json.decode(response)
        return result

    def run(self) -> Any:
        """Return the handler's lifespan. A server that is already running is not started again."""
        return get_capabilities(self.handler).lifespan()


async def fetch_contract(handler: Handler, cache: ContractCache | None = None, **about: Any) -> ServerContract:
    """Return the contract of a handler's tools, as far as this caller can see them."""
    return await (cache or ContractCache()).get(handler, **about)


class _RpcResponse(Struct):
    """Dispatcher response with an undecoded result."""

    result: Raw = Raw(b"{}")
    error: dict[str, Any] | None = None


async def _request(
    handler: Handler, method: str, params: Mapping[str, Any], *, emit: NotificationCallback | None = None, **about: Any
) -> Raw:
    """Return the result of a request. The dispatcher converts every exception into a response."""
    reply = Reply() if emit is None else CallbackReply(emit)
    request = Call(
        method=method,
        params=Raw(msgspec.json.encode(params)),
        id="contract",
        protocol_version=FIRST_MODERN_VERSION,
        reply=reply,
        **about,
    )
    # Through the dispatcher and not the handler directly, so that errors are converted as for a remote call.
    answer = msgspec.json.decode(await dispatch_in_process(request, handler), type=_RpcResponse)
    if answer.error is not None:
        raise error_from_response(answer.error["code"], answer.error["message"], answer.error.get("data"))
    return answer.result
