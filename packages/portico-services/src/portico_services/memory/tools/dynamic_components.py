"""What comes and goes on the servers: the namespaces that have filled, and the saved prompts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from inspect import Parameter, Signature
from typing import Annotated, Any, Literal

from msgspec import Struct

from portico import Context, Server, UsageError
from portico.extend import CallerCompleter, Completes, Component, Prompt, Resource
from portico_services.memory.extras import saved_prompts
from portico_services.memory.extras.saved_prompts import SavedPrompt
from portico_services.memory.store import statistics
from portico_services.memory.store.memory_store import Memories
from portico_services.memory.tools.context import Access


class ListedPrompt(Struct, frozen=True):
    """A saved prompt, and what was added to a server for it."""

    template: SavedPrompt
    components: list[Component]


class ServerListings:
    """`read` gives the memories of a namespace."""

    def __init__(self, access: Access, read: Callable[[Context, str, str], Awaitable[Any]]) -> None:
        self._access = access
        self._read = read
        # For each server, its saved prompts by name, and its namespaces by URI.
        self._listed: dict[Server, dict[str, ListedPrompt | None]] = {}
        # A refresh reads and then applies: a second one in between would apply an older state last.
        self._refreshing = asyncio.Lock()

    def add_server(self, server: Server) -> None:
        self._listed.setdefault(server, {})

    async def refresh(self, memories: Memories) -> None:
        """Bring the servers' lists up to date. `memories` are those of the service, not of a single caller."""
        if not self._listed:
            return
        await self.refresh_prompts(memories)
        for domain, namespace in await memories.read(lambda tx: statistics.places(tx, memories.owner)):
            self.add_namespace(domain, namespace)

    async def refresh_prompts(self, memories: Memories) -> None:
        """List the saved prompts as the store has them now, and no others."""
        async with self._refreshing:
            saved = await memories.read(lambda tx: saved_prompts.visible(tx, memories.homes, memories.owner))
            for server in self._listed:
                self._list_prompts(server, {one.name: one for one in saved if _is_listed(server, one.domain)})

    def add_namespace(self, domain: str, namespace: str) -> None:
        """A namespace that has something in it is listed. The template reads it just the same."""
        for server in self._listed:
            if _is_listed(server, domain):
                self._list_namespace(server, domain, namespace)

    def _list_namespace(self, server: Server, domain: str, namespace: str) -> None:
        uri = f"{self._access.prefix}://{domain}/{namespace}"
        if uri in self._listed[server]:
            return
        self._listed[server][uri] = None

        async def read(ctx: Context) -> Any:
            return await self._read(ctx, domain, namespace)

        described = f"The {namespace} of the {domain}" if domain != "user" else f"The user's {namespace}"
        listing = Resource(
            self._access.speaking(read, f"reading {uri}", resource=True),
            uri,
            name=f"{domain} {namespace}",
            description=described,
            mime_type="application/json",
        )
        listing.owner = "memory"
        try:
            server.add(listing)
        except UsageError:
            pass  # another service has this URI; it can still be read through the template

    # Saved prompts

    def _list_prompts(self, server: Server, saved: dict[str, SavedPrompt]) -> None:
        listed = self._listed[server]
        for name, one in list(listed.items()):
            if one is not None and saved.get(name) != one.template:
                del listed[name]
                # Not by its name, which a tool or a service may have as well.
                for component in one.components:
                    server.registry.remove(component)
        for name, template in saved.items():
            if name in listed or name in server.prompts:
                continue
            prompt = self._live(template)
            server.add(prompt)
            # A choice of words completes itself.
            completes: list[Component] = [
                Completes(name, variable, CallerCompleter(self._access.complete_topic))
                for variable, about in template.variables.items()
                if not about.choices
            ]
            server.add_components(completes)
            listed[name] = ListedPrompt(template, [*completes, prompt])

    def lists_prompt(self, server: Server, template: SavedPrompt) -> bool:
        """Return whether the server lists this saved prompt, and not another one of its name."""
        listed = self._listed.get(server, {}).get(template.name)
        return listed is not None and listed.template == template

    def is_taken(self, name: str) -> bool:
        """Whether a server has a prompt of that name that was not saved listed."""
        return any(name in server.prompts and name not in listed for server, listed in self._listed.items())

    def _live(self, template: SavedPrompt) -> Prompt:
        """A saved prompt as a prompt of the protocol: its variables are the arguments."""

        async def fill(**given: str | None) -> str:
            return saved_prompts.filled(template, {name: value for name, value in given.items() if value is not None})

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
        said = template.description or f"The saved prompt {template.name}"
        found = Prompt(fill, name=template.name, description=said)
        found.owner = "memory"
        return found


def _is_listed(server: Server, domain: str) -> bool:
    """Return whether a domain is part of the lists, which are the same for all callers: where clients log in, those of
    the user domain differ. Its memories and prompts are still read by their URIs, and by the tools."""
    return domain != "user" or server.auth is None
