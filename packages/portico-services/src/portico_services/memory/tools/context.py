"""Context shared by the tools, resources and prompts, and parameters that several tools have."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Awaitable, Callable
from inspect import signature
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Struct

from portico import Context, ProtocolError
from portico.errors import InvalidParams
from portico.extend import Call, LazyResource, is_loopback, principal_id
from portico.types import V2024_11_05, V2025_11_25
from portico_services import git_project
from portico_services.database_service import DatabaseService
from portico_services.memory.errors import (
    ContentBlocked,
    InvalidInput,
    MemoryNotFound,
    MemoryToolError,
    SavedPromptNotFound,
    UnknownNamespace,
)
from portico_services.memory.store import ownership, statistics, validation
from portico_services.memory.store.filters import MAX_FILTER_CHARS
from portico_services.memory.store.memory_store import MemoryStore
from portico_services.memory.store.records import MemoryRecord
from portico_services.memory.store.screening import ContentScreen
from portico_services.project_resolver import ProjectResolver

if TYPE_CHECKING:
    from portico_services.memory.extras.webhooks import WebhookDispatcher

ErrorStyle = Literal["result", "jsonrpc"]
Body = Callable[..., Awaitable[Any]]

_TOOL = re.compile(r"\bmemory_(?=[a-z])")


def wrap_tool(body: Body, name: str, logger: str, codes: ErrorStyle, *, resource: bool = False) -> Body:
    """Wrap the body of a tool, prompt or resource with log messages for the client, and convert errors to protocol
    errors for clients that expect them.
    """
    usual = {parameter.name: parameter.default for parameter in list(signature(body).parameters.values())[1:]}

    @functools.wraps(body)
    async def run(ctx: Context, /, *args: Any, **kwargs: Any) -> Any:
        # Log the names only: the values may be secret.
        arguments = {**dict(zip(usual, args, strict=False)), **kwargs}
        provided = [word for word, value in arguments.items() if value != usual[word]]
        ctx.debug(f"{name} called with {', '.join(provided) or 'no arguments'}", logger)
        started_at = time.perf_counter()
        try:
            result = await body(ctx, *args, **kwargs)
        except MemoryToolError as refusal:
            # Use the tool names that this server lists.
            ctx.log(_level(refusal), f"{name} rejected: {_TOOL.sub(f'{logger}_', str(refusal))}", logger)
            # The protocol has a dedicated code for a missing resource; the error number is in its data.
            is_missing_resource = resource and isinstance(refusal, MemoryNotFound | SavedPromptNotFound)
            protocol_error = None if is_missing_resource else _to_jsonrpc_error(refusal, ctx, codes)
            raise protocol_error or refusal from None
        except ProtocolError:
            raise
        except Exception as failure:
            ctx.error(f"{name} failed: {type(failure).__name__}", logger)
            raise
        ctx.debug(f"{name} finished in {(time.perf_counter() - started_at) * 1000:.1f} ms", logger)
        return result

    return run


def _level(refusal: MemoryToolError) -> Literal["error", "warning", "info"]:
    # The request was valid, but the server failed.
    if refusal.error_type == "ToolExecutionError":
        return "error"
    return "warning" if isinstance(refusal, ContentBlocked) else "info"


def _to_jsonrpc_error(refusal: MemoryToolError, ctx: Context, codes: ErrorStyle) -> ProtocolError | None:
    """Return the protocol error for a tool error, or None if it stays a tool result.

    An unknown namespace is an invalid argument and follows the server's setting for those.
    """
    # Protocol versions before 2025-11-25 report invalid arguments as -32602; from then on they are tool results, which
    # the model can read and correct.
    habit, revision = ctx.server.argument_errors, ctx.protocol_version
    if isinstance(refusal, UnknownNamespace) and (habit == "protocol" or (habit == "auto" and revision < V2025_11_25)):
        return InvalidParams(refusal.brief, refusal.to_meta())
    # The numbers lie in the range that JSON-RPC 2.0 (section 5.1) reserves, so later versions of the protocol may
    # define them.
    if codes == "jsonrpc" and revision == V2024_11_05:
        return ProtocolError(str(refusal), refusal.to_meta(), code=refusal.details["number"])
    return None


MemoryId = Annotated[str, Meta(min_length=1, max_length=300, description="Memory id or URN")]
DryRun = Annotated[bool, "Report the result without changing anything"]
OptionalFilter = Annotated[
    str | None, Meta(max_length=MAX_FILTER_CHARS, description="Filter expression, same syntax as memory_recall")
]


class MemoryToolContext:
    """Access to the store, screening and project of a call. `prefix` is the prefix of tool names and the URI scheme of
    resources.
    """

    def __init__(
        self,
        service: DatabaseService[MemoryStore],
        prefix: str,
        guard: ContentScreen,
        projects: ProjectResolver,
        codes: ErrorStyle,
    ) -> None:
        self._service = service
        self._projects = projects
        self._error_style = codes
        self.prefix = prefix
        self.screening = guard
        # Set if webhooks are configured.
        self.webhooks: WebhookDispatcher | None = None

    def notify_webhooks(self, change: str, memory: MemoryRecord) -> None:
        """Send a change made by a call to the webhooks."""
        if self.webhooks is not None:
            self.webhooks.dispatch(change, memory, self.prefix)

    def wrap(self, body: Body, name: str = "", *, resource: bool = False) -> Body:
        """Return the wrapped body of a component."""
        return wrap_tool(body, name, self.prefix, self._error_style, resource=resource)

    def resource(
        self,
        body: Body,
        uri: str,
        name: str,
        *,
        mime_type: str = "application/json",
        description: str | None = None,
    ) -> LazyResource:
        """Return a resource whose body is wrapped on first use."""

        def load() -> Body:
            return self.wrap(body, f"reading {uri}", resource=True)

        return LazyResource(load, uri, name=name, mime_type=mime_type, description=description)

    async def store(self, ctx: Context, *, any_project: bool = False) -> MemoryStore:
        """Return the store for the caller and project of a call.

        With `any_project` the call concerns no project, and the client's roots are not requested.
        """
        return await self._scope_to_call(await self._service.store(), ctx, any_project)

    async def writable_store(self, ctx: Context, *, any_project: bool = False) -> MemoryStore:
        """Return the store for the caller and project of a call. Raises `InvalidInput` if the service is read-only."""
        return await self._scope_to_call(await self._service.writable_store(), ctx, any_project)

    async def _scope_to_call(self, memories: MemoryStore, ctx: Context, any_project: bool) -> MemoryStore:
        memories = memories.owned_by(self.owner_of(ctx.call))
        # Requesting roots costs a round trip to the client, so calls by id skip it.
        return memories if any_project else memories.for_project(await self._projects.resolve(ctx))

    async def git_author(self, ctx: Context, memories: MemoryStore) -> str | None:
        """Return the git user name in the repository of a call, if the caller works there.

        None for authenticated principals, for remote clients, and for a name that screening blocks.
        """
        # A remote client must not learn the name of the user who runs the server.
        is_local = ctx.principal is None and (ctx.client_address is None or is_loopback(ctx.client_address))
        if not is_local or self._projects.is_named:
            return None
        try:
            name = validation.check_label_length(git_project.user_name(memories.root), "author")
            return (await self.screening.screen(name)).texts[0] or None
        except (ContentBlocked, InvalidInput):
            return None

    async def shared_memories(self) -> MemoryStore:
        """Return the store as the service itself sees it, from which the component lists are built."""
        return await self._service.store()

    async def memories_for(self, call: Call) -> MemoryStore:
        """Return the store for the sender of a call, without a Context."""
        return (await self._service.store()).owned_by(self.owner_of(call))

    def owner_of(self, call: Call) -> str:
        """Return the owner key of the sender of a call for the user domain.

        A principal has a separate key. A client without a token is the local owner, unless the server also has clients
        with tokens.
        """
        identity = principal_id(call.principal)
        if identity is not None:
            return ownership.owner_key(identity)
        # Fail closed: where some clients have tokens, a client without one must not read the memories of the local
        # user.
        if call.is_anonymous and any(
            server.auth is not None and server.auth.allow_anonymous for server in self._service.servers
        ):
            return ownership.ANONYMOUS_OWNER
        return ownership.LOCAL_OWNER

    async def complete_topic(self, typed: str, call: Call) -> list[str]:
        """Return tags that complete the typed prefix."""
        memories = await self.memories_for(call)
        return list(
            await memories.read(lambda tx: statistics.list_topics(tx, 50, typed.casefold(), owner=memories.owner))
        )


class OwnerOnly(Struct, frozen=True):
    """Admits subscribers whose user domain belongs to this owner."""

    access: MemoryToolContext
    owner: str

    def __call__(self, call: Call) -> bool:
        return self.access.owner_of(call) == self.owner
