"""Server-to-client requests that the gateway answers itself: roots from the settings, sampling by a function."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Mapping
from typing import Any, TypedDict

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from portico._options import check_table
from portico.protocol import jsonrpc
from portico.protocol.client_features import CreateMessageParams, CreateMessageResult, InputRequiredResult
from portico.protocol.content import TextContent
from portico.protocol.errors import ClientRequestFailed, MissingClientCapability, UsageError
from portico.protocol.meta import ClientCapabilities
from portico.rpc.attribution import attribute
from portico.rpc.call import Call, Reply
from portico.transports import importer

log = logging.getLogger("portico.gateway")

# Timeout of the sampling function.
# Models take long for long answers; beyond five minutes the upstream's call has usually timed out.
MAX_SAMPLING_SECONDS = 300.0
REJECT = "reject"
SAMPLING, ROOTS = "sampling/createMessage", "roots/list"


class _ClientHandlerOptions(TypedDict, total=False):
    # Function that answers sampling requests, as `module:function`, within 300 seconds; or `reject`. None: the client
    # answers.
    sampling: str
    # `file://` URIs that replace the client's roots. None: the client's roots.
    roots: list[str]


class ClientHandlerSettings(Struct, frozen=True, kw_only=True):
    """Settings of `client_handlers`.

    `sampling` is a `module:function`, or "reject"; None forwards the request to the client. `roots` replaces the
    client's roots.
    """

    sampling: str | None = None
    roots: tuple[str, ...] | None = None


def parse_client_handlers(section: str, table: Mapping[str, Any]) -> ClientHandlerSettings:
    """Parse a `client_handlers` table. Raises UsageError if it is invalid."""
    check_table(f"{section}.client_handlers", table, _ClientHandlerOptions)
    sampling, roots = table.get("sampling"), table.get("roots")
    if sampling is not None and sampling != REJECT and ":" not in sampling:
        raise UsageError(f'{section}.client_handlers: sampling must be module:function or "reject", got {sampling!r}')
    for root in roots or ():
        # The specification allows file:// roots only (2025-06-18, Client Features, Roots).
        if not root.startswith("file://"):
            raise UsageError(f"{section}.client_handlers: roots must begin with file://, got {root!r}")
    return ClientHandlerSettings(sampling=sampling, roots=None if roots is None else tuple(roots))


class ClientHandlers:
    """Handlers of a gateway for the server-to-client requests of one upstream."""

    def __init__(self, settings: ClientHandlerSettings) -> None:
        self._settings = settings
        self._sample: Any = None
        if settings.sampling not in (None, REJECT):
            self._sample = importer.import_function(settings.sampling or "")

    def handles(self, method: str) -> bool:
        """Return whether the gateway handles a method instead of the client."""
        if method == ROOTS:
            return self._settings.roots is not None
        return method == SAMPLING and self._settings.sampling is not None

    def merge_capabilities(self, client: ClientCapabilities) -> ClientCapabilities:
        """Return the client's capabilities, changed by those that the gateway provides or refuses."""
        changed: dict[str, Any] = {}
        if self._settings.roots is not None:
            changed["roots"] = {}
        if self._settings.sampling is not None:
            # Removed from the capabilities if it is rejected, so that a well-behaved upstream does not ask at all.
            changed["sampling"] = None if self._sample is None else {}
        return replace(client, **changed)

    async def handle(self, method: str, params: Any) -> Raw:
        """Answer a request. Raises ClientRequestFailed with the reason."""
        if method == ROOTS:
            return Raw(jsonrpc.encode({"roots": [{"uri": uri} for uri in self._settings.roots or ()]}))
        if self._sample is None:
            raise ClientRequestFailed("this gateway does not allow sampling")
        try:
            sampling_params = msgspec.json.decode(jsonrpc.encode(params), type=CreateMessageParams)
        except msgspec.DecodeError as mistake:
            raise ClientRequestFailed(f"invalid sampling/createMessage request: {mistake}") from None
        try:
            async with asyncio.timeout(MAX_SAMPLING_SECONDS):
                response = self._sample(sampling_params)
                response = await response if inspect.isawaitable(response) else response
        except Exception:
            # The reason stays in the operator's log: the upstream is not trusted with stack traces or provider
            # errors.
            log.exception("the sampling function failed")
            raise ClientRequestFailed("the gateway could not answer sampling/createMessage") from None
        if isinstance(response, str):
            model = self._settings.sampling or ""
            response = CreateMessageResult(role="assistant", content=TextContent(text=response), model=model)
        return Raw(jsonrpc.encode(response))

    def handles_all(self, result: InputRequiredResult) -> bool:
        """Return whether the gateway can answer all input requests of a result."""
        questions = (result.input_requests or {}).values()
        return bool(questions) and all(self.handles(question.method) for question in questions)

    def wrap_call(self, call: Call, alias: str | None) -> Call:
        """Return the call with a reply that answers requests here, or forwards them to the client attributed to
        `alias`.
        """
        return replace(call, reply=_HandledReply(self, call.reply, alias))


class _HandledReply(Reply):
    can_request = True

    def __init__(self, answers: ClientHandlers, outer: Reply, alias: str | None) -> None:
        self._alias = alias
        self._answers = answers
        self._outer = outer

    def _notify(self, method: str, params: Any) -> None:
        self._outer.notify(method, params)

    async def _ask(self, method: str, params: Any) -> Raw:
        if self._answers.handles(method):
            return await self._answers.handle(method, params)
        if not self._outer.can_request:
            raise MissingClientCapability({method.partition("/")[0]: {}})
        attributed = params if self._alias is None else attribute(self._alias, method, params)
        return await self._outer.request(method, attributed)
