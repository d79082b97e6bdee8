"""A view: a part of what the upstreams have, under a path of its own. Names are the same in all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from fnmatch import fnmatchcase
from types import CoroutineType
from typing import TYPE_CHECKING, Any, TypedDict

from msgspec import Struct
from msgspec.structs import replace

from portico._options import check_options
from portico.protocol.completion import PromptReference
from portico.protocol.errors import ResourceNotFound, UsageError
from portico.protocol.header_params import Mirror
from portico.protocol.lifecycle import DiscoverResult
from portico.protocol.meta import Implementation, ServerCapabilities
from portico.rpc.call import Call
from portico.server.policy.interfaces import Kind
from portico.server.registry.service import Answer
from portico_gateway.gateway.name_filter import name_filter

if TYPE_CHECKING:
    from portico_gateway.gateway.gateway import Gateway


class ViewOptions(TypedDict, total=False):
    """What can be said of a view: the keywords of `gateway.add_view`, and of `[view.NAME]`."""

    path: str
    upstreams: Sequence[str]
    include: Sequence[str]
    exclude: Sequence[str]
    title: str
    description: str
    instructions: str


class ViewSettings(Struct, frozen=True, kw_only=True):
    """Patterns: of upstreams by their aliases, and of what they have by `alias.name`."""

    name: str
    path: str
    upstreams: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    title: str | None = None
    description: str | None = None
    instructions: str | None = None

    def shows(self, alias: str, name: str) -> bool:
        """Return whether a tool, prompt or URI of an upstream is in the view, by the upstream's own name of it."""
        wanted = not self.upstreams or any(fnmatchcase(alias, one) for one in self.upstreams)
        return wanted and name_filter(self.include, self.exclude).shows(name, alias)


def view_of(name: str, table: Mapping[str, Any]) -> ViewSettings:
    """The settings in a table. Raises UsageError."""
    check_options(f"view.{name}", table, ViewOptions)
    given: dict[str, Any] = {
        key: tuple(said) if key in ("upstreams", "include", "exclude") else said for key, said in table.items()
    }
    return ViewSettings(name=name, **{"path": f"/mcp/{name}", **given})


_NAMED: dict[str, Kind] = {
    "tools/call": "tool",
    "prompts/get": "prompt",
    "resources/read": "resource",
    "completion/complete": "template",
}


class GatewayView:
    """A Handler: the gateway, as far as its settings show it. Whatever is put around the gateway is around this too."""

    def __init__(self, gateway: Gateway, settings: ViewSettings) -> None:
        self.settings = settings
        self.name = settings.name
        self.shows = settings.shows
        self.needs, self.canonical, self.owner_of = gateway.needs, gateway.canonical, gateway.owner_of
        self.needs_task, self.hints = gateway.needs_task, gateway.hints
        self._gateway = gateway

    async def __call__(self, call: Call) -> Any:
        result = self.start(call)
        return await result if type(result) is CoroutineType else result

    def start(self, call: Call) -> Any:
        seen = replace(call, facet=self)
        if call.method == "server/discover":
            return self._discover(seen)
        hidden = self._hidden(call)
        return self._gateway.start(seen) if hidden is None else self._deny(seen, *hidden)

    def answer_with(self, answer: Answer, call: Call) -> Any:
        return self._gateway.answer_with(answer, replace(call, facet=self))

    async def answer_unprotected(self, call: Call) -> Any:
        return await self._gateway.answer_unprotected(replace(call, facet=self))

    @property
    def whole(self) -> Gateway:
        """The gateway that it is a part of."""
        return self._gateway

    def lifespan(self) -> AbstractAsyncContextManager[Any]:
        return self._gateway.lifespan()

    @property
    def info(self) -> Implementation:
        info, said = self._gateway.info, self.settings
        return replace(info, title=said.title or info.title, description=said.description or info.description)

    @property
    def capabilities(self) -> ServerCapabilities:
        return self._gateway.capabilities

    @property
    def protection(self) -> Any:
        return self._gateway.protection

    def hides(self, call: Call, kind: Kind, name: str) -> bool:
        return self._gateway.hides(call, kind, name)

    @property
    def mirrored(self) -> Mapping[str, Sequence[Mirror]]:
        return self._gateway.mirrored

    async def _discover(self, call: Call) -> Any:
        said = await self._gateway(call)
        if isinstance(said, DiscoverResult) and self.settings.instructions is not None:
            said.instructions = self.settings.instructions
        return said

    def _hidden(self, call: Call) -> tuple[Kind, str] | None:
        """What the gateway has itself is found without asking its upstreams: what of it is asked for, and not shown."""
        kind = _NAMED.get(call.method)
        if kind is None:
            return None
        params = call.typed()
        if kind == "template":
            kind = "prompt" if isinstance(params.ref, PromptReference) else "template"
            name = params.ref.name if isinstance(params.ref, PromptReference) else params.ref.uri
        else:
            name = params.uri if kind == "resource" else params.name
        owned = self._gateway.own(kind, name)
        return None if owned is None or self.shows(*owned) else (kind, name)

    async def _deny(self, call: Call, kind: Kind, name: str) -> Any:
        """As if it were not there."""
        others = self._gateway.others
        if call.method == "completion/complete":
            raise others.nothing_to_complete(name)
        if kind == "resource":
            raise ResourceNotFound(name)
        raise await others.unknown(call, kind, name, self._gateway.catalogs[f"{kind}s/list"])


def checked_views(views: Mapping[str, ViewSettings]) -> dict[str, ViewSettings]:
    """The same views, each at a path of its own."""
    paths: dict[str, str] = {}
    for name, view in views.items():
        if name != paths.setdefault(view.path, name):
            raise UsageError(f"the views {paths[view.path]!r} and {name!r} have the same path {view.path}")
    return dict(views)
