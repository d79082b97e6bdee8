"""A service that keeps things in a database: opening it once, refusing writes, and telling servers of changes."""

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
from portico.extend import BackgroundTasks, Call, Database, Event, StoreError, when_ready
from portico_services import text

StoreT = TypeVar("StoreT")
ResultT = TypeVar("ResultT", bound=Struct)

LONGEST_REQUESTER = 200


class StoredService(Service, Generic[StoreT]):
    """A service with a store of its own kind, opened by the lifespan or by the first call, whichever comes first.

    A service that is added while the server runs may be called before its lifespan was entered.
    """

    # What the database is asked to tell of.
    topics: ClassVar[tuple[str, ...]]

    def __init__(self, store: str | os.PathLike[str], *, read_only: bool) -> None:
        super().__init__()
        self._database = Database(store)
        self._read_only = read_only
        self._servers: set[Server] = set()
        self._store: StoreT | None = None
        self._opening = asyncio.Lock()
        self._opened = AsyncExitStack()

    @abstractmethod
    async def _open_store(self, stack: AsyncExitStack) -> StoreT:
        """Opens the store on the open database. What is to be closed again goes onto the stack."""

    @abstractmethod
    async def _changed(self, store: StoreT, event: Event) -> None:
        """Called for each change to the store, also for those of other processes."""

    @abstractmethod
    def _failed(self, failure: StoreError) -> ToolError:
        """What a client is told of a failure of the database, without paths and addresses."""

    @abstractmethod
    def _refused(self) -> ToolError:
        """What a client is told that wants to change a read-only store."""

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        # A StoreError from here names paths and addresses: the person who starts the server may see them.
        await when_ready(self._open_once)
        try:
            yield
        finally:
            self._store = None
            await self._opened.aclose()

    async def store(self) -> StoreT:
        try:
            return self._store if self._store is not None else await self._open_once()
        except StoreError as failure:
            raise self._failed(failure) from failure

    async def writable_store(self) -> StoreT:
        if self._read_only:
            raise self._refused()
        return await self.store()

    async def _open_once(self) -> StoreT:
        async with self._opening:
            if self._store is None:
                async with AsyncExitStack() as stack:
                    await stack.enter_async_context(self._database)
                    store = await self._open_store(stack)
                    # Subscribed before the first call is answered, so that no change is missed.
                    events = await stack.enter_async_context(self._database.subscribe(*self.topics))
                    self._run(stack, f"{self.name} changes", partial(self._follow, store, events))
                    self._opened = stack.pop_all()
                self._store = store
        return self._store

    async def _follow(self, store: StoreT, events: AsyncIterator[Event]) -> None:
        async for event in events:
            await self._changed(store, event)

    @staticmethod
    def _run(stack: AsyncExitStack, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run in the background until the store is closed; after a failure it is started again."""
        supervisor = BackgroundTasks()
        supervisor.run(name, work)
        stack.push_async_callback(supervisor.close)

    def added(self, server: Server) -> None:
        self._servers.add(server)

    @property
    def servers(self) -> Collection[Server]:
        """The servers that this service was added to."""
        return self._servers

    def _tell(self, uris: Iterable[str], admits: Callable[[Call], bool] | None = None) -> None:
        """Tell the subscribers of every server that these resources have changed; with `admits`, only those whose
        subscription it returns True for."""
        for uri in uris:
            for server in self._servers:
                # Every process hears of it from the store.
                server.resource_updated(uri, everywhere=False, admits=admits)


def requester(ctx: Context, author: str | None = None) -> str:
    """The name in a history: the authenticated principal, else the author that was given, else the client."""
    name = author or (ctx.client.name if ctx.client is not None else "")
    if ctx.principal is not None:
        # Where two issuers may give the same id it is not enough to know who it was.
        name = str(getattr(ctx.principal, "name", None) or ctx.principal.id)
        if len(name) > LONGEST_REQUESTER:
            name = f"{name[: LONGEST_REQUESTER - 17]}~{sha256(name.encode()).hexdigest()[:16]}"
    return text.storable(name)[:LONGEST_REQUESTER]


def among(words: Iterable[str]) -> Callable[[str], list[str]]:
    """What completes an argument that is one of these words."""
    return lambda typed: [word for word in words if word.startswith(typed)]


def copied(record: Struct, kind: type[ResultT], written: Callable[[int], str], **given: Any) -> ResultT:
    """A result with the fields that it shares with a record, moments written out; `given` are the other ones."""
    for name in kind.__struct_fields__:
        if name not in given and hasattr(record, name):
            value = getattr(record, name)
            given[name] = written(value) if isinstance(value, int) and name.endswith(_MOMENTS) else value
    return kind(**given)


_MOMENTS = ("at", "_until")
