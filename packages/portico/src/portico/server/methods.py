"""What a server answers to each method of the protocol, out of its registry.

What it does not have itself it asks of its mounts, or in a gateway of its upstreams: `server.others`. A call of a tool
is answered in `server.py`, so that it crosses one file less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from portico._lazy import LazyModule
from portico.protocol import jsonrpc
from portico.protocol.completion import CompleteParams, PromptReference
from portico.protocol.errors import InternalError, InvalidParams
from portico.protocol.lifecycle import DiscoverResult
from portico.protocol.prompts import GetPromptParams
from portico.protocol.resources import ReadResourceParams, ReadResourceResult
from portico.protocol.subscriptions import ListenParams
from portico.protocol.versions import LATEST, MODERN_REVISIONS
from portico.rpc.call import Call
from portico.server.registry.subscriptions import honoured

if TYPE_CHECKING:
    from portico.server.components import completion
    from portico.server.components.prompts import Prompt
    from portico.server.components.resources import Resource
    from portico.server.registry.catalog import Catalog
    from portico.server.registry.service import Answer
    from portico.server.server import Server
else:
    completion = LazyModule("portico.server.components.completion")


class ServerMethods:
    """`hints` says how long clients may keep an answer, and `hints_by_method` where a method has others."""

    def __init__(self, server: Server, hints: dict[str, Any], hints_by_method: Mapping[str, dict[str, Any]]) -> None:
        self._server = server
        self.hints = hints
        self._hints_by_method = hints_by_method
        for catalog in server.catalogs.values():
            catalog.hints = self._hints(catalog.method)
        # What answers each list.
        self.lists: dict[str, Answer] = {
            method: partial(self._list, catalog) for method, catalog in server.catalogs.items()
        }

    def _hints(self, method: str) -> dict[str, Any]:
        return self._hints_by_method.get(method, self.hints)

    def table(self, call_tool: Answer) -> dict[str, Answer]:
        """The function that answers each method. Without its capability a method is not there."""
        server, lists = self._server, self.lists
        features: dict[str, dict[str, Answer]] = {
            "tools": {"tools/list": lists["tools/list"], "tools/call": call_tool},
            "prompts": {"prompts/list": lists["prompts/list"], "prompts/get": self._get_prompt},
            "resources": {
                "resources/list": lists["resources/list"],
                "resources/templates/list": lists["resources/templates/list"],
                "resources/read": self.read_resource,
            },
            "completions": {"completion/complete": self._complete},
        }
        answers: dict[str, Answer] = {"server/discover": self.discover, "subscriptions/listen": self._listen}
        for feature, methods in features.items():
            if getattr(server.capabilities, feature) is not None:
                answers |= methods
        return answers

    def discover(self, call: Call) -> DiscoverResult:
        return DiscoverResult(
            supported_versions=list(MODERN_REVISIONS),
            capabilities=self._server.capabilities,
            instructions=self._server.instructions,
            **self._hints("server/discover"),
        )

    def _list(self, catalog: Catalog[Any], call: Call) -> Any:
        cursor, others = call.typed().cursor, self._server.others
        return others.page(catalog, call, cursor) if others else catalog.page(call.revision or LATEST, cursor)

    async def _get_prompt(self, call: Call) -> Any:
        params: GetPromptParams = call.typed()
        server = self._server
        prompt = server.prompts.get(params.name)
        if prompt is not None:
            return await prompt.get(call, params, server.runtime)
        return await server.others.call(call, "prompt", params.name, server.prompts)

    async def read_resource(self, call: Call) -> Any:
        params: ReadResourceParams = call.typed()
        server = self._server
        resource, values = server.registry.resource(params.uri)
        if resource is not None:
            result = await resource.read(call, params, server.runtime, values)
        else:
            result = await server.others.read(call, params.uri)
        if isinstance(result, ReadResourceResult) and result.ttl_ms is UNSET:
            hints = self._hints("resources/read")
            result.ttl_ms, result.cache_scope = hints["ttl_ms"], hints["cache_scope"]
            if params.request_state is not UNSET or params.input_responses is not jsonrpc.NOTHING:
                # It depends on answers, which no cache knows of (server/utilities/caching).
                result.ttl_ms, result.cache_scope = 0, "private"
        return result

    async def _complete(self, call: Call) -> Any:
        params: CompleteParams = call.typed()
        server, argument = self._server, params.argument.name
        component: Prompt | Resource | None
        if isinstance(params.ref, PromptReference):
            component = server.prompts.get(params.ref.name)
        else:
            component = server.templates.get(params.ref.uri) or server.resources.get(params.ref.uri)
        if component is None:
            return await server.others.complete(call, params)
        completer = server.registry.completes_all or server.registry.completer(component, argument)
        if completer is not None:
            return await completer.complete(call, params, server.runtime)
        schema = component.body.signature.input_schema
        if argument not in schema.get("properties", {}):
            raise InvalidParams(f"Nothing to complete: {component.name!r} has no argument {argument[:100]!r}")
        return completion.from_schema(schema, argument, params.argument.value)

    # Telling of changes

    def _listen(self, call: Call) -> Any:
        params: ListenParams = call.typed()
        server = self._server
        wanted = honoured(params.notifications, server.capabilities, partial(self._tells_of, call))
        unhear = partial(server.others.unhear, server.others.hear(wanted, call))
        try:
            return server.subscriptions.listen(call, wanted, unhear, self._seen_by(call))
        except InternalError:
            unhear()
            raise

    def _tells_of(self, call: Call, uri: str) -> bool:
        """Whether something can be told of this resource. A middleware may have it, and so may a service that is put
        around the answers."""
        server = self._server
        if not server.reads_by_itself and call.facet is None and not server.is_guarded:
            return True
        return server.ownership.tells_of(call, uri)

    def _seen_by(self, call: Call) -> Callable[[str], bool] | None:
        """Whether the sender of a call may be told of a resource; None: of all."""
        server = self._server
        some = call.facet is not None or server.is_guarded or server.mounts
        return server.ownership.seen_by(call) if some else None
