"""Views: parts of the upstreams' components, each at a separate path. Names are the same in all views."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from portico.protocol.completion import PromptReference
from portico.protocol.errors import ResourceNotFound
from portico.protocol.lifecycle import DiscoverResult
from portico.protocol.meta import Implementation
from portico.rpc.call import Call, HandlerWrapper
from portico.server.policy.interfaces import Kind
from portico.server.registry.service import MethodHandler
from portico_gateway.gateway.view_settings import ViewSettings

if TYPE_CHECKING:
    from portico_gateway.gateway.gateway import Gateway


_NAMED: dict[str, Kind] = {
    "tools/call": "tool",
    "prompts/get": "prompt",
    "resources/read": "resource",
    "completion/complete": "template",
}


class GatewayView(HandlerWrapper):
    """Handler for the part of a gateway that a view includes, behind the gateway's own middleware and policy."""

    def __init__(self, gateway: Gateway, settings: ViewSettings) -> None:
        super().__init__(gateway)
        self.settings = settings
        self.name = settings.name
        self.includes = settings.includes
        self._gateway = gateway

    def start(self, call: Call) -> Any:
        seen = replace(call, facet=self)
        if call.method == "server/discover":
            return self._discover(seen)
        # Calls are checked as well as lists: a client may know a name from another view.
        hidden = self._hidden_component(call)
        return self._gateway.start(seen) if hidden is None else self._raise_not_found(seen, *hidden)

    def with_middleware(self, answer: MethodHandler, call: Call) -> Any:
        return self._gateway.with_middleware(answer, replace(call, facet=self))

    async def handle_without_policy(self, call: Call) -> Any:
        return await self._gateway.handle_without_policy(replace(call, facet=self))

    @property
    def gateway(self) -> Gateway:
        """Return the gateway of this view."""
        return self._gateway

    @property
    def info(self) -> Implementation:
        info, settings = self._gateway.info, self.settings
        return replace(info, title=settings.title or info.title, description=settings.description or info.description)

    @property
    def policy(self) -> Any:
        return self._gateway.policy

    def cached_list(self, method: str) -> Sequence[Any] | None:
        return None

    async def _discover(self, call: Call) -> Any:
        result = await self._gateway(call)
        if isinstance(result, DiscoverResult) and self.settings.instructions is not None:
            result.instructions = self.settings.instructions
        return result

    def _hidden_component(self, call: Call) -> tuple[Kind, str] | None:
        """Return the kind and name of a local component that is requested but not included in the view, or None.

        Local components are found without the upstreams, so they are checked here.
        """
        kind = _NAMED.get(call.method)
        if kind is None:
            return None
        params = call.decode_params()
        if kind == "template":
            kind = "prompt" if isinstance(params.ref, PromptReference) else "template"
            name = params.ref.name if isinstance(params.ref, PromptReference) else params.ref.uri
        else:
            name = params.uri if kind == "resource" else params.name
        owned = self._gateway.ownership.local_qualified_name(kind, name)
        return None if owned is None or self.includes(*owned) else (kind, name)

    async def _raise_not_found(self, call: Call, kind: Kind, name: str) -> Any:
        """Raise the same error as for a component that does not exist."""
        provider = self._gateway.provider
        if call.method == "completion/complete":
            raise provider.nothing_to_complete(name)
        if kind == "resource":
            raise ResourceNotFound(name)
        raise await provider.not_found_error(call, kind, name, self._gateway.catalogs[f"{kind}s/list"])
