"""`ctx.request_context` and `ctx.session` of the official SDK."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from portico.compat.unsupported import UnsupportedFeature, pop_unsupported
from portico.protocol.client_features import ListRootsResult
from portico.server.context.context import Context


class RequestContext:
    """The SDK's `ctx.request_context`."""

    __slots__ = ("_ctx",)

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    @property
    def context(self) -> Context:
        return self._ctx

    @property
    def request_id(self) -> int | str | None:
        return self._ctx.request_id

    @property
    def lifespan_context(self) -> Any:
        return self._ctx.lifespan_context

    @property
    def session(self) -> ServerSession:
        return ServerSession(self._ctx)

    @property
    def protocol_version(self) -> str:
        return self._ctx.protocol_version

    @property
    def meta(self) -> dict[str, Any]:
        return self._ctx.meta


class ServerSession:
    """The SDK's `ctx.session`. Messages always belong to the current request, so `related_request_id` has no effect."""

    __slots__ = ("_ctx",)

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    @property
    def client_capabilities(self) -> Any:
        return self._ctx.client_capabilities

    def check_client_capability(self, capability: Any) -> bool:
        """Return whether the client declared the capability, given as a dict, a Struct or a pydantic model."""
        required = capability if isinstance(capability, Mapping) else _to_dict(capability)
        return _includes(msgspec.to_builtins(self._ctx.client_capabilities), required)

    async def send_tool_list_changed(self) -> None:
        self._ctx.notify_tools_changed()

    async def send_prompt_list_changed(self) -> None:
        self._ctx.notify_prompts_changed()

    async def send_resource_list_changed(self) -> None:
        self._ctx.notify_resources_changed()

    async def send_resource_updated(self, uri: Any) -> None:
        self._ctx.notify_resource_updated(str(uri))

    async def send_log_message(
        self, level: Any, data: Any, logger: str | None = None, related_request_id: Any = None
    ) -> None:
        await self._ctx.log(level, data, logger)

    async def send_progress_notification(
        self,
        progress_token: Any,
        progress: float,
        total: float | None = None,
        message: str | None = None,
        related_request_id: Any = None,
    ) -> None:
        """Report the progress of the current request."""
        await self._ctx.report_progress(progress, total, message)

    async def send_elicit_complete(self, elicitation_id: str | None, related_request_id: Any = None) -> None:
        await self._ctx.notify_elicitation_complete(elicitation_id)

    async def elicit(self, message: str, requested_schema: Any, related_request_id: Any = None) -> Any:
        return await self._ctx.elicit(message, requested_schema)

    elicit_form = elicit

    async def elicit_url(
        self, message: str, url: str, elicitation_id: str | None = None, related_request_id: Any = None
    ) -> Any:
        return await self._ctx.elicit_url(message, url)

    async def create_message(
        self, messages: Sequence[Any], *, max_tokens: int, related_request_id: Any = None, **options: Any
    ) -> Any:
        pop_unsupported("create_message", options, _SAMPLING_UNSUPPORTED)
        return await self._ctx.sample(messages, max_tokens=max_tokens, **options)

    async def list_roots(self) -> ListRootsResult:
        return ListRootsResult(roots=await self._ctx.list_roots())


_SAMPLING_UNSUPPORTED = {
    "include_context": UnsupportedFeature("put the context into the messages", accepted=(None, "none")),
    "metadata": UnsupportedFeature("put information for the client into the messages"),
}


def _to_dict(capability: Any) -> Any:
    if hasattr(capability, "model_dump"):
        return capability.model_dump(by_alias=True, exclude_none=True)
    return msgspec.to_builtins(capability)


def _includes(declared: Any, required: Any) -> bool:
    if not isinstance(required, Mapping):
        return True
    return isinstance(declared, Mapping) and all(
        declared.get(name) is not None and _includes(declared[name], value)
        for name, value in required.items()
        if value is not None
    )
