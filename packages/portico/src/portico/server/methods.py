"""Handlers of the protocol methods, answering from a server's registry.

Components that the server does not own are requested from `server.provider`: its mounts, or the upstreams of a gateway.
`tools/call` is handled in `server.py`, so that its path crosses one file less.
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
from portico.protocol.subscriptions import SubscriptionsListenParams
from portico.protocol.versions import LATEST_PROTOCOL_VERSION, MODERN_VERSIONS
from portico.rpc.call import Call
from portico.server.registry.subscriptions import accepted_filter

if TYPE_CHECKING:
    from portico.server.components import completion
    from portico.server.components.prompts import Prompt
    from portico.server.components.resources import Resource
    from portico.server.registry.catalog import Catalog
    from portico.server.registry.service import MethodHandler
    from portico.server.server import Server
else:
    completion = LazyModule("portico.server.components.completion")


class ServerMethods:
    """Handlers of the protocol methods.

    `cache_hints` are the default cache hints of results; `hints_by_method` overrides them for single methods.
    """

    def __init__(
        self, server: Server, cache_hints: dict[str, Any], hints_by_method: Mapping[str, dict[str, Any]]
    ) -> None:
        self._server = server
        self.cache_hints = cache_hints
        self._hints_by_method = hints_by_method
        for catalog in server.catalogs.values():
            catalog.cache_hints = self._hints(catalog.method)
        # Handlers of the list methods, by method.
        self.lists: dict[str, MethodHandler] = {
            method: partial(self._list, catalog) for method, catalog in server.catalogs.items()
        }

    def _hints(self, method: str) -> dict[str, Any]:
        return self._hints_by_method.get(method, self.cache_hints)

    def build_handlers(self, call_tool: MethodHandler) -> dict[str, MethodHandler]:
        """Return the handlers by method. Methods whose capability is not advertised are left out."""
        server, lists = self._server, self.lists
        features: dict[str, dict[str, MethodHandler]] = {
            "tools": {"tools/list": lists["tools/list"], "tools/call": call_tool},
            "prompts": {"prompts/list": lists["prompts/list"], "prompts/get": self._get_prompt},
            "resources": {
                "resources/list": lists["resources/list"],
                "resources/templates/list": lists["resources/templates/list"],
                "resources/read": self.read_resource,
            },
            "completions": {"completion/complete": self._complete},
        }
        answers: dict[str, MethodHandler] = {"server/discover": self.discover, "subscriptions/listen": self._listen}
        for feature, methods in features.items():
            if getattr(server.capabilities, feature) is not None:
                answers |= methods
        return answers

    def discover(self, call: Call) -> DiscoverResult:
        return DiscoverResult(
            supported_versions=list(MODERN_VERSIONS),
            capabilities=self._server.capabilities,
            instructions=self._server.instructions,
            **self._hints("server/discover"),
        )

    def _list(self, catalog: Catalog[Any], call: Call) -> Any:
        cursor, provider = call.decode_params().cursor, self._server.provider
        return (
            provider.get_page(catalog, call, cursor)
            if provider
            else catalog.page(call.protocol_version or LATEST_PROTOCOL_VERSION, cursor)
        )

    async def _get_prompt(self, call: Call) -> Any:
        params: GetPromptParams = call.decode_params()
        server = self._server
        prompt = server.prompts.get(params.name)
        if prompt is not None:
            return await prompt.get(call, params, server.runtime)
        return await server.provider.call(call, "prompt", params.name, server.prompts)

    async def read_resource(self, call: Call) -> Any:
        params: ReadResourceParams = call.decode_params()
        server = self._server
        resource, values = server.registry.resource(params.uri)
        if resource is not None:
            result = await resource.read(call, params, server.runtime, values)
        else:
            result = await server.provider.read(call, params.uri)
        if isinstance(result, ReadResourceResult) and result.ttl_ms is UNSET:
            hints = self._hints("resources/read")
            result.ttl_ms, result.cache_scope = hints["ttl_ms"], hints["cache_scope"]
            if params.request_state is not UNSET or params.input_responses is not jsonrpc.EMPTY_RAW:
                # The result depends on input responses, which caches do not know (server/utilities/caching).
                result.ttl_ms, result.cache_scope = 0, "private"
        return result

    async def _complete(self, call: Call) -> Any:
        params: CompleteParams = call.decode_params()
        server, argument = self._server, params.argument.name
        component: Prompt | Resource | None
        if isinstance(params.ref, PromptReference):
            component = server.prompts.get(params.ref.name)
        else:
            component = server.templates.get(params.ref.uri) or server.resources.get(params.ref.uri)
        if component is None:
            return await server.provider.complete(call, params)
        completer = server.registry.catch_all_completer or server.registry.completer(component, argument)
        if completer is not None:
            return await completer.complete(call, params, server.runtime)
        schema = component.runner.signature.input_schema
        if argument not in schema.get("properties", {}):
            raise InvalidParams(f"Nothing to complete: {component.name!r} has no argument {argument[:100]!r}")
        return completion.complete_from_schema(schema, argument, params.argument.value)

    # Change notifications

    def _listen(self, call: Call) -> Any:
        params: SubscriptionsListenParams = call.decode_params()
        server = self._server
        accepted = accepted_filter(params.notifications, server.capabilities, partial(self._tells_of, call))
        # Subscribe upstream before listening, and undo it if the listener is rejected: no change may fall between.
        unhear = partial(server.provider.unsubscribe, server.provider.subscribe(accepted, call))
        try:
            return server.subscriptions.listen(call, accepted, unhear, self._seen_by(call))
        except InternalError:
            unhear()
            raise

    def _tells_of(self, call: Call, uri: str) -> bool:
        """Return whether the server can send updates for this resource.

        Middleware or a wrapping service may provide resources that the registry does not list, so every URI is accepted
        then.
        """
        server = self._server
        if not server.reads_resources_directly and call.facet is None and not server.has_access_policy:
            return True
        return server.ownership.may_notify(call, uri)

    def _seen_by(self, call: Call) -> Callable[[str], bool] | None:
        """Return a predicate for the resources that the caller may be notified of; None: all of them."""
        server = self._server
        some = call.facet is not None or server.has_access_policy or server.provider.hides_resources
        return server.ownership.visible_resources(call) if some else None
