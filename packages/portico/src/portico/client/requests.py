"""Requests of a client: multi-round input, caching and decoding of results."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct

from portico.client import results
from portico.client.cache import CACHEABLE, ResponseCache
from portico.client.input_handlers import InputHandlers
from portico.protocol.client_features import InputRequest, InputRequiredResult
from portico.protocol.errors import InvalidParams, ProtocolError
from portico.protocol.jsonrpc import encode
from portico.protocol.methods import INPUT_REQUIRED_METHODS, METHODS, format_decode_error
from portico.rpc.call import Call, CallbackReply
from portico.transports.base import ClientTransport
from portico.transports.upstream import Upstream

MAX_INPUT_ROUNDS = 10
# Limit on JSON values in one response, in addition to the limit on its bytes.
MAX_JSON_VALUES = 5_000_000
# Input requests in one result.
MAX_INPUT_REQUESTS = 100

ProgressHandler = Callable[[float, float | None, str | None], Any]
NotificationCallback = Callable[..., None]
"""Receives a notification: its method, its params, and optionally the progress handler of its request."""


class CallProgress(Struct, frozen=True):
    """The progress token of a call, which all its rounds share, and its progress handler."""

    token: int
    handler: ProgressHandler


class _ResultTypeProbe(Struct):
    # Older servers do not send resultType; a missing one counts as "complete".
    result_type: str = msgspec.field(default="complete", name="resultType")


class RequestSession:
    """Sends the requests of one client.

    `on_notification` receives the notifications that arrive during a request. `timeout`: seconds that a request may
    take.
    """

    def __init__(
        self,
        upstream: Upstream,
        inputs: InputHandlers,
        cache: ResponseCache,
        on_notification: NotificationCallback,
        timeout: float | None,
    ) -> None:
        self._timeout = timeout
        self._upstream = upstream
        self._inputs = inputs
        self._cache = cache
        self._on_notification = on_notification
        self._reply = CallbackReply(on_notification)

    def _call(self, method: str, params: dict[str, Any], progress: CallProgress | None = None) -> Call:
        body = Raw(encode(params))
        if progress is None:
            return Call(method=method, params=body, id=0, reply=self._reply)
        reply = CallbackReply(partial(self._on_notification, on_progress=progress.handler))
        return Call(method=method, params=body, id=0, progress_token=progress.token, reply=reply)

    async def send(
        self,
        method: str,
        params: dict[str, Any],
        timeout: float | None = None,
        idempotent: bool | None = None,
        result_types: Collection[str] = ("complete",),
        progress: CallProgress | None = None,
        first_result: Raw | None = None,
    ) -> Raw:
        """Send a request, answer its input requests, and return the first result whose type is in `result_types`.

        `first_result`: the response of the first round, if it was already received.
        """
        # Every other request only reads, so it can be repeated after a broken connection.
        idempotent = method != "tools/call" if idempotent is None else idempotent
        round_params = params
        # A server could otherwise ask forever, and each round may show a dialog to the user.
        for _ in range(MAX_INPUT_ROUNDS + 1):
            response = first_result
            if response is None:
                response = await self._upstream.request(
                    self._call(method, round_params, progress), self.effective_timeout(timeout), idempotent
                )
            first_result = None
            kind = self._kind(method, response)
            if kind in result_types:
                return response
            if kind != "input_required" or method not in INPUT_REQUIRED_METHODS:
                raise ProtocolError(f"{self.name}: {method} returned an unknown resultType: {kind[:100]}")
            # Each round carries only its own responses; earlier ones are part of the server's opaque request state.
            round_params = {**params, **await self._answer_input_requests(method, response)}
        raise ProtocolError(f"{self.name}: {method} still requires input after {MAX_INPUT_ROUNDS} rounds")

    def effective_timeout(self, timeout: float | None) -> float | None:
        """Return the timeout of a request: None selects the client's timeout, infinity disables it."""
        return self._timeout if timeout is None else None if timeout == math.inf else timeout

    def _kind(self, method: str, result: Raw) -> str:
        # A value takes at least 2 bytes in JSON but about 60 bytes in memory.
        if len(bytes(result)) > 2 * MAX_JSON_VALUES and results.exceeds_value_count(bytes(result), MAX_JSON_VALUES):
            raise ProtocolError(f"{self.name}: {method} returned more than {MAX_JSON_VALUES} JSON values")
        kind: str = self.decode_result(method, result, _ResultTypeProbe).result_type
        return kind

    @property
    def name(self) -> str:
        name = self._upstream.name
        return (
            name
            if name != ClientTransport.name or self._upstream.handshake.server is None
            else self._upstream.handshake.server.name[:100]
        )

    async def _answer_input_requests(self, method: str, result: Raw) -> dict[str, Any]:
        input_required: InputRequiredResult = self.decode_result(method, result, InputRequiredResult)
        again: dict[str, Any] = {}
        if input_required.input_requests is not UNSET:
            if len(input_required.input_requests) > MAX_INPUT_REQUESTS:
                raise ProtocolError(
                    f"{self.name}: {method} sent {len(input_required.input_requests)} input requests (maximum "
                    f"{MAX_INPUT_REQUESTS})"
                )
            again["inputResponses"] = {
                key: await self.answer_input_request(method, input_request)
                for key, input_request in input_required.input_requests.items()
            }
        if input_required.request_state is not UNSET:
            # "The client MUST echo back the exact value" (2026-07-28, multi round-trip requests): it is never
            # decoded here.
            again["requestState"] = input_required.request_state
        if not again:
            raise ProtocolError(f"{self.name}: {method} returned input_required without inputRequests or requestState")
        return again

    async def answer_input_request(self, method: str, request: InputRequest) -> Any:
        """Answer one input request with the client's handlers. Raises `ProtocolError` if it cannot be answered."""
        if not self._inputs.can_handle(request.method, self._upstream.handshake.protocol_version):
            raise ProtocolError(
                f"{self.name}: {method} sent {request.method[:100]}, but the client has no handler for it"
            )
        try:
            return await self._inputs.handle(
                request.method, Raw(encode(request.params or {})), self._upstream.handshake.protocol_version
            )
        except (InvalidParams, RecursionError) as failure:
            raise ProtocolError(f"{self.name}: {method} sent an invalid input request: {failure}") from None

    async def send_and_decode(
        self,
        method: str,
        params: dict[str, Any],
        timeout: float | None = None,
        *,
        idempotent: bool = True,
        progress: CallProgress | None = None,
    ) -> Any:
        """Send a request and return the decoded result.

        The result type implies resultType "complete", so resultType is only inspected if decoding fails.
        """
        limit = self._timeout if timeout is None else self.effective_timeout(timeout)
        response = await self._upstream.request(self._call(method, params, progress), limit, idempotent)
        try:
            # So short a response cannot contain too many values, so counting them can be skipped.
            if len(bytes(response)) <= MAX_JSON_VALUES:
                return msgspec.json.decode(response, type=METHODS[method].result)
        except (msgspec.DecodeError, RecursionError):
            pass
        response = await self.send(method, params, timeout, idempotent, progress=progress, first_result=response)
        return self.decode_result(method, response)

    def decode_result(self, method: str, raw: Raw, type: Any = None) -> Any:
        """Decode a result as the result type of its method, or as `type`. Raises `ProtocolError`."""
        try:
            return msgspec.json.decode(raw, type=METHODS[method].result if type is None else type)
        except (msgspec.DecodeError, RecursionError) as failure:
            raise ProtocolError(
                f"{self.name} returned an invalid result for {method}: {format_decode_error(failure)}"
            ) from None

    async def send_cached(self, method: str, params: dict[str, Any], *, refresh: bool = False) -> Any:
        """Return a decoded result, from the cache if possible."""
        return self.decode_result(method, await self.send_cached_raw(method, params, refresh=refresh))

    async def send_cached_raw(self, method: str, params: dict[str, Any], *, refresh: bool = False) -> Raw:
        """Return an undecoded result, from the cache if possible. `refresh`: bypass the cache.

        Results that required input are never cached.
        """
        if not self._upstream.modern or method not in CACHEABLE:
            return await self.send(method, params)
        # Entries are bound to the login: after a new login as another user, cached results must not be
        # returned.
        response = None if refresh else self._cache.get(method, params, self._upstream.transport.auth_generation)
        if response is None:
            # Read before the request: a change notification that arrives in between makes this response stale,
            # and `put` discards it.
            since = self._cache.generation
            response = await self._upstream.request(self._call(method, params), self._timeout, True)
            if self._kind(method, response) != "complete":
                return await self.send(method, params, None, True, first_result=response)
            self._cache.put(method, params, self._upstream.transport.auth_generation, response, since)
        return response
