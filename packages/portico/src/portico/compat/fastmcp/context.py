"""The words that FastMCP and the official SDK have for what a Context does, for bodies that were written for them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from portico._lazy import LazyModule
from portico.protocol import notifications
from portico.protocol.client_features import ListRootsResult
from portico.protocol.errors import ProtocolError
from portico.protocol.pagination import Paging
from portico.protocol.prompts import ListPromptsResult
from portico.protocol.resources import ListResourcesResult, ListResourceTemplatesResult
from portico.protocol.tools import ListToolsResult
from portico.server.context.current import ContextType

if TYPE_CHECKING:
    from portico.server.components import interop
    from portico.server.context.context import Context
    from portico.server.transforms import session_visibility
else:
    interop = LazyModule("portico.server.components.interop")
    session_visibility = LazyModule("portico.server.transforms.session_visibility")


async def all_pages(ask: Callable[[dict[str, Any]], Awaitable[Any]], kind: Any, member: str) -> list[Any]:
    """Everything of a list, whose pages `ask` gives for their params."""
    found: list[Any] = []
    paging = Paging()
    cursor: str | None = ""
    params: dict[str, Any] = {}
    while cursor is not None:
        page = await ask(params)
        if isinstance(page, Raw):
            page = msgspec.json.decode(page, type=kind)
        entries = getattr(page, member)
        found += entries
        cursor = paging.after(page.next_cursor, len(entries))
        params = {"cursor": cursor}
    if paging.endless:
        raise ProtocolError(f"the list of {member} has no end: {len(found)} entries, and more to come")
    return found


class RequestContext:
    """What the SDK's `ctx.request_context` has."""

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
        return self._ctx.session

    @property
    def protocol_version(self) -> str:
        return self._ctx.revision

    @property
    def meta(self) -> dict[str, Any]:
        return self._ctx.meta


class ServerSession:
    """What the SDK's `ctx.session` has."""

    __slots__ = ("_ctx",)

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    @property
    def client_capabilities(self) -> Any:
        return self._ctx.capabilities

    def check_client_capability(self, capability: Any) -> bool:
        """Whether the client has declared everything that is said here, as one of ours or of theirs."""
        wanted = capability if isinstance(capability, Mapping) else _declared(capability)
        return _has_all(msgspec.to_builtins(self._ctx.capabilities), wanted)

    async def send_tool_list_changed(self) -> None:
        self._ctx.notify_tools_changed()

    async def send_prompt_list_changed(self) -> None:
        self._ctx.notify_prompts_changed()

    async def send_resource_list_changed(self) -> None:
        self._ctx.notify_resources_changed()

    async def send_resource_updated(self, uri: Any) -> None:
        self._ctx.notify_resource_updated(str(uri))

    async def send_log_message(self, level: Any, data: Any, logger: str | None = None, **_: Any) -> None:
        await self._ctx.log(level, data, logger)

    async def send_elicit_complete(self, elicitation_id: str | None, **_: Any) -> None:
        await self._ctx.elicitation_complete(elicitation_id)

    async def elicit(self, message: str, requested_schema: Any, **_: Any) -> Any:
        return await self._ctx.elicit(message, requested_schema)

    elicit_form = elicit

    async def elicit_url(self, message: str, url: str, elicitation_id: str | None = None, **_: Any) -> Any:
        return await self._ctx.elicit_url(message, url)

    async def create_message(self, messages: Sequence[Any], *, max_tokens: int, **options: Any) -> Any:
        options.pop("related_request_id", None)
        return await self._ctx.sample(messages, max_tokens=max_tokens, **options)

    async def list_roots(self) -> ListRootsResult:
        return ListRootsResult(roots=await self._ctx.roots())


def _declared(capability: Any) -> Any:
    if hasattr(capability, "model_dump"):
        return capability.model_dump(by_alias=True, exclude_none=True)
    return msgspec.to_builtins(capability)


def _has_all(has: Any, wanted: Any) -> bool:
    if not isinstance(wanted, Mapping):
        return True
    return isinstance(has, Mapping) and all(
        has.get(name) is not None and _has_all(has[name], value) for name, value in wanted.items() if value is not None
    )


class FamiliarContext(ContextType):
    """Mixed into Context."""

    __slots__ = ()

    def __class_getitem__(cls, item: Any) -> Any:
        """`Context[App]`: what the lifespan yields is an App."""
        return cls

    @property
    def request_context(self: Any) -> RequestContext:
        return RequestContext(self)

    @property
    def session(self: Any) -> ServerSession:
        return ServerSession(self)

    @property
    def lifespan_context(self: Any) -> Any:
        """What the lifespan of the server has yielded."""
        return self.server.yielded

    @property
    def fastmcp(self: Any) -> Any:
        return self.server

    @property
    def mcp_server(self: Any) -> Any:
        return self.server

    @property
    def client_id(self: Any) -> str | None:
        """Which client the token of the caller was given to; None without a token."""
        return getattr(self.principal, "client_id", None)

    def client_extension_settings(self: Any, identifier: str) -> dict[str, Any] | None:
        """What the client has declared about an extension; None if it does not know it."""
        return (self.capabilities.extensions or {}).get(identifier)

    def client_supports_extension(self: Any, identifier: str) -> bool:
        return self.client_extension_settings(identifier) is not None

    @property
    def input_responses(self: Any) -> dict[str, Any] | None:
        """What the client answers to the questions of an InputRequiredResult; None in the first round."""
        said = getattr(self._call.typed(), "input_responses", None)
        return None if not said else interop.responses(said)

    @property
    def request_state(self: Any) -> str | None:
        """What an InputRequiredResult has given the client to carry; None in the first round."""
        return self.begin().carried  # type: ignore[no-any-return]

    async def send_notification(self: Any, notification: Any) -> None:
        """A notification of `mcp.types`: that a list or a resource has changed."""
        root = getattr(notification, "root", notification)
        uri = getattr(getattr(root, "params", None), "uri", None)
        await self._changed(root.method, None if uri is None else str(uri))

    @property
    def client_capabilities(self: Any) -> Any:
        return self.capabilities

    @property
    def protocol_version(self: Any) -> str:
        return str(self.revision)

    @property
    def session_id(self: Any) -> str | None:
        """The same for all calls of one conversation; None where each request stands alone."""
        found: str | None = self._runtime.states.id_of(self._call)
        return found

    @property
    def transport(self: Any) -> str:
        return "stdio" if self._call.address is None else "streamable-http"

    # State

    async def get_state(self: Any, key: str) -> Any:
        """What an earlier call of this conversation has kept under a key; None for nothing."""
        return self._runtime.states.get(self._call, key)

    async def set_state(self: Any, key: str, value: Any, **_: Any) -> None:
        """Keep a JSON value for later calls of this conversation, or, where requests stand alone, of this principal."""
        self._runtime.states.set(self._call, key, value)

    async def delete_state(self: Any, key: str) -> None:
        self._runtime.states.drop(self._call, key)

    # Telling of changes

    def notify_tools_changed(self: Any) -> Awaitable[None]:
        return self._changed(notifications.TOOLS_CHANGED)  # type: ignore[no-any-return]

    def notify_prompts_changed(self: Any) -> Awaitable[None]:
        return self._changed(notifications.PROMPTS_CHANGED)  # type: ignore[no-any-return]

    def notify_resources_changed(self: Any) -> Awaitable[None]:
        return self._changed(notifications.RESOURCES_CHANGED)  # type: ignore[no-any-return]

    def notify_resource_updated(self: Any, uri: str) -> Awaitable[None]:
        return self._changed(notifications.RESOURCE_UPDATED, str(uri))  # type: ignore[no-any-return]

    async def close_sse_stream(self: Any) -> None:
        self.close_stream()

    # Showing and hiding, for this conversation

    async def enable_components(
        self: Any, *, names: Collection[str] = (), tags: Collection[str] = (), match_all: bool = False, **_: Any
    ) -> None:
        """Show this conversation what has one of these names or tags, although `server.disable` has taken it away."""
        self._set_visibility(True, names, tags, match_all)

    async def disable_components(
        self: Any, *, names: Collection[str] = (), tags: Collection[str] = (), match_all: bool = False, **_: Any
    ) -> None:
        """Hide what has one of these names or tags from this conversation."""
        self._set_visibility(False, names, tags, match_all)

    async def reset_visibility(self: Any) -> None:
        """Show this conversation what all others are shown."""
        self._set_visibility(None, (), (), False)

    def _set_visibility(
        self: Any, enabled: bool | None, names: Collection[str], tags: Collection[str], match_all: bool
    ) -> None:
        session_visibility.set_visibility(self._call, self.server, enabled, names or (), tags or (), match_all)
        for kind in (notifications.TOOLS_CHANGED, notifications.PROMPTS_CHANGED, notifications.RESOURCES_CHANGED):
            self._changed(kind)

    # Looking around in the same server

    async def list_tools(self: Any) -> Any:
        return await self._all("tools/list", ListToolsResult, "tools")

    async def list_resources(self: Any) -> Any:
        return await self._all("resources/list", ListResourcesResult, "resources")

    async def list_resource_templates(self: Any) -> Any:
        return await self._all("resources/templates/list", ListResourceTemplatesResult, "resource_templates")

    async def list_prompts(self: Any) -> Any:
        return await self._all("prompts/list", ListPromptsResult, "prompts")

    async def _all(self: Any, method: str, kind: Any, member: str) -> list[Any]:
        return await all_pages(lambda params: self._within(method, self._inner(method, params)), kind, member)

    async def get_prompt(self: Any, name: str, arguments: dict[str, Any] | None = None) -> Any:
        return await self._within(name, self._inner("prompts/get", {"name": name, "arguments": arguments or {}}))
