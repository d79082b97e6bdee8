"""Components that change at run time: resources of non-empty namespaces, and saved prompts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from inspect import Parameter, Signature
from typing import Annotated, Any, Literal

from msgspec import Struct

from portico import Context, Prompt, Resource, Server, UsageError
from portico.extend import CallerCompleter, CompletionBinding, Component
from portico_services.memory.extras import saved_prompts
from portico_services.memory.extras.saved_prompts import SavedPrompt
from portico_services.memory.store import statistics
from portico_services.memory.store.memory_store import MemoryStore
from portico_services.memory.tools.context import MemoryToolContext


class ListedPrompt(Struct, frozen=True):
    """A saved prompt and the components added to a server for it."""

    template: SavedPrompt
    components: list[Component]


class DynamicComponents:
    """Keeps the dynamic components of the servers up to date. `read` returns the memories of a namespace."""

    def __init__(self, access: MemoryToolContext, read: Callable[[Context, str, str], Awaitable[Any]]) -> None:
        self._access = access
        self._read = read
        # By server: saved prompts by name, and namespaces by URI.
        self._listed: dict[Server, dict[str, ListedPrompt | None]] = {}
        # A refresh reads and then applies; a concurrent one could apply an older state last.
        self._refreshing = asyncio.Lock()

    def add_server(self, server: Server) -> None:
        self._listed.setdefault(server, {})

    async def refresh(self, memories: MemoryStore) -> None:
        """Update the lists of all servers. `memories` is the store of the service, not of a single caller."""
        if not self._listed:
            return
        await self.refresh_prompts(memories)
        for domain, namespace in await memories.read(lambda tx: statistics.list_scopes(tx, memories.owner)):
            self.add_namespace(domain, namespace)

    async def refresh_prompts(self, memories: MemoryStore) -> None:
        """List exactly the saved prompts that the store contains."""
        async with self._refreshing:
            saved = await memories.read(
                lambda tx: saved_prompts.list_visible(tx, memories.project_scopes, memories.owner)
            )
            for server in self._listed:
                self._list_prompts(server, {item.name: item for item in saved if _is_listed(server, item.domain)})

    def add_namespace(self, domain: str, namespace: str) -> None:
        """List a namespace that contains memories. The resource template can read it in any case."""
        for server in self._listed:
            if _is_listed(server, domain):
                self._list_namespace(server, domain, namespace)

    def _list_namespace(self, server: Server, domain: str, namespace: str) -> None:
        uri = f"{self._access.prefix}://{domain}/{namespace}"
        if uri in self._listed[server]:
            return
        # Marked before the resource is added, so that a URI which another service owns is not tried again.
        self._listed[server][uri] = None

        async def read(ctx: Context) -> Any:
            return await self._read(ctx, domain, namespace)

        described = f"The {namespace} of the {domain}" if domain != "user" else f"The user's {namespace}"
        listing = Resource(
            self._access.wrap(read, f"reading {uri}", resource=True),
            uri,
            name=f"{domain} {namespace}",
            description=described,
            mime_type="application/json",
        )
        listing.owner = "memory"
        try:
            server.add(listing)
        except UsageError:
            pass  # another service has this URI; the template can still read it

    # Saved prompts.

    def _list_prompts(self, server: Server, saved: dict[str, SavedPrompt]) -> None:
        listed = self._listed[server]
        for name, listed_prompt in list(listed.items()):
            if listed_prompt is not None and saved.get(name) != listed_prompt.template:
                del listed[name]
                # Remove the component itself, since a tool or another service may have the same name.
                for component in listed_prompt.components:
                    server.registry.remove(component)
        for name, template in saved.items():
            if name in listed or name in server.prompts:
                continue
            prompt = self._prompt_from_template(template)
            server.add(prompt)
            # Arguments with choices are completed from these choices.
            completes: list[Component] = [
                CompletionBinding(name, variable, CallerCompleter(self._access.complete_topic))
                for variable, about in template.variables.items()
                if not about.choices
            ]
            server.add_components(completes)
            listed[name] = ListedPrompt(template, [*completes, prompt])

    def lists_prompt(self, server: Server, template: SavedPrompt) -> bool:
        """Return whether the server lists this saved prompt, and not another one with the same name."""
        listed = self._listed.get(server, {}).get(template.name)
        return listed is not None and listed.template == template

    # Otherwise a saved prompt could replace a prompt of the server, and its author would speak in the server’s name.
    def is_name_taken(self, name: str) -> bool:
        """Return whether a server has a prompt with that name that is not a saved one."""
        return any(name in server.prompts and name not in listed for server, listed in self._listed.items())

    def _prompt_from_template(self, template: SavedPrompt) -> Prompt:
        """Return the MCP prompt of a saved prompt. Its variables become the arguments."""

        async def fill(**values: str | None) -> str:
            return saved_prompts.render(template, {name: value for name, value in values.items() if value is not None})

        parameters = []
        for name, parameter in template.variables.items():
            kind: Any = Literal[tuple(parameter.choices)] if parameter.choices else str
            hint: Any = Annotated[kind, parameter.description or name]
            if parameter.default is not None:
                hint = Annotated[kind | None, parameter.description or name]
            default = Parameter.empty if parameter.default is None else None
            parameters.append(Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=hint))
        fill.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        fill.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        description = template.description or f"The saved prompt {template.name}"
        prompt = Prompt(fill, name=template.name, description=description)
        prompt.owner = "memory"
        return prompt


def _is_listed(server: Server, domain: str) -> bool:
    """Return whether a domain is part of the lists.

    The lists are the same for all callers, but with authentication the user domain differs between callers. Its
    memories and prompts can still be read by URI and through the tools.
    """
    return domain != "user" or server.auth is None
