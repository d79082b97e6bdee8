"""Base class of services with a database: opens it once, rejects writes in read-only mode and publishes changes."""

from __future__ import annotations

import asyncio
import os
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from hashlib import sha256
from typing import Any, ClassVar, Generic, TypeVar

from msgspec import Struct

from portico import Context, Server, Service, ToolError
from portico.errors import StoreError
from portico.extend import BackgroundTasks, Call, Database, Event, retry_until_ready
from portico_services import text

StoreT = TypeVar("StoreT")
ResultT = TypeVar("ResultT", bound=Struct)

MAX_ACTOR_CHARS = 200


class DatabaseService(Service, Generic[StoreT]):
    """Service with its own kind of store, opened by the lifespan or by the first call.

    A service that is added to a running server may be called before its lifespan is entered.
    """

    # Database topics to subscribe to.
    topics: ClassVar[tuple[str, ...]]

    def __init__(self, store: str | os.PathLike[str], *, read_only: bool) -> None:
        super().__init__()
        self._database = Database(store)
        self._read_only = read_only
        self._servers: set[Server] = set()
        self._store: StoreT | None = None
        # Guards `_open_once` against concurrent first calls.
        self._opening = asyncio.Lock()
        # Holds the open database and background tasks; closed by the lifespan.
        self._opened = AsyncExitStack()

    @abstractmethod
    async def _open_store(self, stack: AsyncExitStack) -> StoreT:
        """Open the store on the open database. Push resources that must be closed onto the stack."""

    @abstractmethod
    async def _on_change(self, store: StoreT, event: Event) -> None:
        """Handle a change to the store, including changes by other processes."""

    @abstractmethod
    def _store_error(self, failure: StoreError) -> ToolError:
        """Return the error that clients receive when the database fails, without paths and addresses."""

    @abstractmethod
    def _read_only_error(self) -> ToolError:
        """Return the error for a write to a read-only store."""

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        # A StoreError raised here contains paths and addresses. Only the operator who starts the server sees it.
        await retry_until_ready(self._open_once)
        try:
            yield
        finally:
            self._store = None
            await self._opened.aclose()

    async def store(self) -> StoreT:
        """Return the open store; open it first if needed. Raises ToolError if the database fails."""
        try:
            return self._store if self._store is not None else await self._open_once()
        except StoreError as failure:
            raise self._store_error(failure) from failure

    async def writable_store(self) -> StoreT:
        """Return the store for writing. Raises ToolError if the service is read-only."""
        if self._read_only:
            raise self._read_only_error()
        return await self.store()

    async def _open_once(self) -> StoreT:
        # Concurrent first calls must not open the database twice.
        async with self._opening:
            if self._store is None:
                async with AsyncExitStack() as stack:
                    await stack.enter_async_context(self._database)
                    store = await self._open_store(stack)
                    # Subscribe before the first call is answered so that no change is missed.
                    events = await stack.enter_async_context(self._database.subscribe(*self.topics))
                    self._start_background(stack, f"{self.name} changes", partial(self._watch_events, store, events))
                    # Only a store that opened completely is handed over; after a failure the stack closes what was
                    # opened.
                    self._opened = stack.pop_all()
                self._store = store
        return self._store

    async def _watch_events(self, store: StoreT, events: AsyncIterator[Event]) -> None:
        async for event in events:
            await self._on_change(store, event)

    @staticmethod
    def _start_background(stack: AsyncExitStack, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a coroutine function in the background until the store is closed; restart it after a failure."""
        supervisor = BackgroundTasks()
        supervisor.run(name, work)
        stack.push_async_callback(supervisor.close)

    def on_added(self, server: Server) -> None:
        self._servers.add(server)

    @property
    def servers(self) -> Collection[Server]:
        """Return the servers that this service was added to."""
        return self._servers

    def _notify_subscribers(self, uris: Iterable[str], admits: Callable[[Call], bool] | None = None) -> None:
        """Notify the subscribers of every server that these resources have changed. If `admits` is given, notify only
        the subscriptions for which it returns True.
        """
        for uri in uris:
            for server in self._servers:
                # Every process receives the change from the store, so the server must not replicate it.
                server.notify_resource_updated(uri, replicate=False, admits=admits)


def actor_name(ctx: Context, author: str | None = None) -> str:
    """Return the name for a history entry: the authenticated principal, else the given author, else the client."""
    name = author or (ctx.client_info.name if ctx.client_info is not None else "")
    if ctx.principal is not None:
        # The display name alone may be ambiguous when two issuers use the same id, so a long name is shortened with a
        # hash instead of being cut.
        name = str(getattr(ctx.principal, "display_name", None) or ctx.principal.id)
        if len(name) > MAX_ACTOR_CHARS:
            name = f"{name[: MAX_ACTOR_CHARS - 17]}~{sha256(name.encode()).hexdigest()[:16]}"
    return text.replace_unstorable(name)[:MAX_ACTOR_CHARS]


def choice_completer(words: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a completer for an argument that is one of these words."""
    return lambda typed: [word for word in words if word.startswith(typed)]


def copy_to_result(
    record: Struct, kind: type[ResultT], format_timestamp: Callable[[int], str], **overrides: Any
) -> ResultT:
    """Return a result with the fields it shares with a record, timestamps formatted by `written`; `given` supplies the
    others.
    """
    for name in kind.__struct_fields__:
        if name not in overrides and hasattr(record, name):
            value = getattr(record, name)
            overrides[name] = (
                format_timestamp(value) if isinstance(value, int) and name.endswith(_TIMESTAMP_SUFFIXES) else value
            )
    return kind(**overrides)


_TIMESTAMP_SUFFIXES = ("at", "_until")
