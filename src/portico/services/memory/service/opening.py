"""A service that has memories: opening them, refusing, and telling servers of what changes."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, Concatenate, Literal, ParamSpec, TypeVar, cast

from portico.server.context import Context
from portico.server.prompts import Prompt
from portico.server.resources import Resource
from portico.server.results import ToolResult
from portico.server.server import Server
from portico.server.service import Service
from portico.services.memory.errors import Invalid, StorageFailed, Trouble, UnknownNamespace
from portico.services.memory.search import model
from portico.services.memory.share import repository
from portico.services.memory.store import records, screening_policy, statistics, templates, texts
from portico.services.memory.store.memories import Memories, failed
from portico.services.memory.store.namespaces import DOMAINS
from portico.services.memory.store.templates import Template
from portico.store.bus import Subscription
from portico.store.database import Database
from portico.store.errors import StoreError
from portico.wire.errors import InvalidParams, ProtocolError, UsageError
from portico.wire.revisions import V2024_11_05, V2025_11_25

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound="Opening")

Codes = Literal["result", "protocol"]
ERROR = "portico/error"
# What memories are addressed by, here and in servers that others know.
SCHEMES = ("memory", "subcog")
# How many of the searches, topics and the like that were read are told of changes.
MOST_WATCHED = 256


def answered(
    body: Callable[Concatenate[S, Context, P], Awaitable[R]],
) -> Callable[Concatenate[S, Context, P], Awaitable[R]]:
    """Around a tool: what it refuses is said to the model, and its number beside it for programs."""

    @functools.wraps(body)
    async def answer(self: S, ctx: Context, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            await self.meet(ctx.server)
            return await body(self, ctx, *args, **kwargs)
        except Trouble as trouble:
            return cast("R", self.refused(trouble, ctx))

    return answer


def who(ctx: Context, author: str | None = None) -> str:
    """For the history: a principal that was checked, then what was said."""
    if ctx.principal is not None:
        return texts.whole(str(ctx.principal.id))[:200]
    return texts.whole(author or (ctx.client.name if ctx.client is not None else ""))[:200]


class Opening(Service):
    def __init__(
        self,
        store: str | os.PathLike[str],
        guard: screening_policy.Guard,
        *,
        project: str | None,
        folder: str | os.PathLike[str] | None,
        naming: str,
        codes: Codes,
        read_only: bool,
        models: str | os.PathLike[str] | None,
    ) -> None:
        super().__init__()
        self._models = None if models is None else Path(models)
        self.scheme = self.prefix = naming
        self.schemes = {other: naming for other in SCHEMES if other != naming}
        self.guard = guard
        self._database = Database(store)
        self._memories: Memories | None = None
        self._opening = asyncio.Lock()
        self._project, self._folder = project, folder
        self._codes: Codes = codes
        self._read_only = read_only
        # Each server, and what of ours comes and goes there: live prompts by name, filled namespaces by URI.
        self._servers: dict[Server, dict[str, Template | None]] = {}
        # What was read and is computed from many memories: any change may be one of it.
        self._watched: dict[str, None] = {}
        self._watch: asyncio.Task[None] | None = None
        self._opened = AsyncExitStack()

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        try:
            await self.memories()
        except StorageFailed as failure:
            # Whoever starts a server is told where it is, as no client is.
            raise failure.__cause__ or failure from None
        try:
            yield
        finally:
            await self.close()

    async def memories(self) -> Memories:
        """Opened by whoever comes first: a service that is added while the server runs has no lifespan yet."""
        if self._memories is not None:
            return self._memories
        async with self._opening:
            if self._memories is None:
                try:
                    self._memories = await self._open()
                except StoreError as failure:
                    raise failed(failure) from failure
        return self._memories

    async def _open(self) -> Memories:
        where = await asyncio.to_thread(repository.look, self._folder)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._database)
            memories = Memories(
                self._database,
                project=self._project or where.project,
                root=where.root,
                meanings=model.meanings(self._models),
            )
            stack.push_async_callback(memories.close)
            await memories.open(thorough=True, read_only=self._read_only)
            # Before anybody is answered, so that nothing is missed.
            events = await stack.enter_async_context(self._database.subscribe(records.TOPIC, templates.TOPIC))
            await self._refresh(memories)
            self._watch = asyncio.create_task(self._tell_of_changes(memories, events))
            self._opened = stack.pop_all()
        return memories

    async def writing(self) -> Memories:
        if self._read_only:
            raise Invalid("This memory is read-only: it can be searched, and not changed.")
        return await self.memories()

    async def close(self) -> None:
        self._memories = None
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
            self._watch = None
        await self._opened.aclose()

    # Refusing

    def refused(self, trouble: Trouble, ctx: Context) -> ToolResult:
        """Or raises, where a refusal is an error of the protocol."""
        habit, revision = ctx.server.argument_errors, ctx.revision
        if isinstance(trouble, UnknownNamespace) and (
            habit == "protocol" or (habit == "auto" and revision < V2025_11_25)
        ):
            raise InvalidParams(trouble.brief, trouble.described())
        if self._codes == "protocol" and revision == V2024_11_05:
            raise ProtocolError(str(trouble), trouble.described(), code=trouble.number)
        return ToolResult(content=str(trouble), is_error=True, meta={ERROR: trouble.described()})

    # Telling

    def added(self, server: Server) -> None:
        """Whom to tell of changes, and where to put what comes and goes: live prompts, and namespaces that fill."""
        self._servers.setdefault(server, {})

    async def meet(self, server: Server) -> None:
        if server not in self._servers:
            self.added(server)
            await self._refresh(await self.memories())

    async def _tell_of_changes(self, memories: Memories, events: Subscription) -> None:
        """Also of those that other processes make."""
        async for event in events:
            if event.topic == records.TOPIC and event.payload:
                self._tell(event.payload)
                domain, namespace, _ = event.payload.split("/", 2)
                for server in self._servers:
                    self._list_namespace(server, domain, namespace)
            else:
                self._told(["_prompts", *(f"{domain}/_prompts/{event.payload}" for domain in DOMAINS)])
                await self._refresh(memories)

    def _tell(self, place: str) -> None:
        """A listener to what stands above it hears of it too, so this is enough for whole namespaces and domains."""
        _, rest = place.split("/", 1)
        id = rest.rpartition("/")[2]
        self._told([place, f"_/{rest}", f"memory/{id}", f"summaries/{id}", "topics", "status", *self._watched])

    def _told(self, places: list[str]) -> None:
        """Whoever subscribed by another name for it hears of it by that name."""
        for server in self._servers:
            for scheme in (self.scheme, *self.schemes):
                for place in places:
                    server.resource_updated(f"{scheme}://{place}")

    def watch(self, place: str) -> None:
        """Somebody has read this, and may want to know when it changes. The oldest are forgotten."""
        self._watched.pop(place, None)
        self._watched[place] = None
        if len(self._watched) > MOST_WATCHED:
            del self._watched[next(iter(self._watched))]

    async def _refresh(self, memories: Memories) -> None:
        """Bring the servers' lists up to date: prompts that were saved or deleted, namespaces that have filled."""
        if not self._servers:
            return
        saved = await memories.read(lambda tx: templates.visible(tx, memories.project))
        filled = await memories.read(statistics.places)
        for server in self._servers:
            for domain, namespace in filled:
                self._list_namespace(server, domain, namespace)
            self._list_prompts(server, {one.name: one for one in saved})

    def _list_namespace(self, server: Server, domain: str, namespace: str) -> None:
        """A namespace that has something in it is listed. The template reads it just the same."""
        uri = f"{self.scheme}://{domain}/{namespace}"
        if uri in self._servers[server]:
            return
        self._servers[server][uri] = None

        async def read() -> Any:
            return await self.listed(domain, namespace)

        described = f"The {namespace} of the {domain}" if domain != "user" else f"The user's {namespace}"
        listing = Resource(read, uri, name=f"{domain} {namespace}", description=described, mime_type="application/json")
        try:
            server.add(listing)
        except UsageError:
            pass  # another service has this URI; it can still be read through the template

    async def listed(self, domain: str, namespace: str) -> Any:
        raise NotImplementedError

    # Live prompts

    def _list_prompts(self, server: Server, saved: dict[str, Template]) -> None:
        here = self._servers[server]
        for name in [name for name, one in here.items() if one is not None and saved.get(name) != one]:
            del here[name]
            server.remove(name)
        for name, template in saved.items():
            if name in here or name in server.prompts:
                continue
            server.add(self._live(template))
            # A choice of words completes itself.
            for variable in (one for one, about in template.variables.items() if not about.choices):
                server.completion(name, variable)(self._complete_topic)
            here[name] = template

    def is_taken(self, name: str) -> bool:
        """Whether a prompt of that name is there that nobody saved."""
        return any(name in server.prompts and name not in here for server, here in self._servers.items())

    def _live(self, template: Template) -> Prompt:
        """A saved prompt as a prompt of the protocol: its variables are the arguments."""

        async def fill(**given: str | None) -> str:
            return templates.filled(template, {name: value for name, value in given.items() if value is not None})

        parameters = []
        for name, one in template.variables.items():
            kind: Any = Literal[tuple(one.choices)] if one.choices else str
            hint: Any = Annotated[kind, one.description or name]
            if one.default is not None:
                hint = Annotated[kind | None, one.description or name]
            default = Parameter.empty if one.default is None else None
            parameters.append(Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=hint))
        fill.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        fill.__annotations__ = {one.name: one.annotation for one in parameters}
        return Prompt(fill, name=template.name, description=template.description or f"The saved prompt {template.name}")

    async def _complete_topic(self, typed: str) -> list[str]:
        memories = await self.memories()
        return list(await memories.read(lambda tx: statistics.topics(tx, 50, typed.casefold())))
