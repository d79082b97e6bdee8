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
from portico.rpc.call import Call
from portico.wire.completion import PromptReference
from portico.wire.discover import DiscoverResult
from portico.wire.errors import InvalidParams, ResourceNotFound, Unknown, UsageError
from portico.wire.meta import Implementation, ServerCapabilities
from portico.wire.mirrors import Mirror

if TYPE_CHECKING:
    from portico.gateway.gateway import Gateway


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
        """Whether something of an upstream is in it, by the upstream's own name of it."""
        whole = f"{alias}.{name}"
        wanted = not self.upstreams or any(fnmatchcase(alias, one) for one in self.upstreams)
        chosen = not self.include or any(fnmatchcase(whole, one) for one in self.include)
        return wanted and chosen and not any(fnmatchcase(whole, one) for one in self.exclude)


def view_of(name: str, table: Mapping[str, Any]) -> ViewSettings:
    """The settings in a table. Raises UsageError."""
    check_options(f"view.{name}", table, ViewOptions)
    given: dict[str, Any] = {
        key: tuple(said) if key in ("upstreams", "include", "exclude") else said for key, said in table.items()
    }
    return ViewSettings(name=name, **{"path": f"/mcp/{name}", **given})


class GatewayView:
    """A Handler: the gateway, as far as its settings show it. Whatever is put around the gateway is around this too."""

    def __init__(self, gateway: Gateway, settings: ViewSettings) -> None:
        self.settings = settings
        self.shows = settings.shows
        self._gateway = gateway

    async def __call__(self, call: Call) -> Any:
        result = self.start(call)
        return await result if type(result) is CoroutineType else result

    def start(self, call: Call) -> Any:
        self._check(call)
        seen = replace(call, face=self)
        return self._discover(seen) if call.method == "server/discover" else self._gateway.start(seen)

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
    def mirrored(self) -> Mapping[str, Sequence[Mirror]]:
        return self._gateway.mirrored

    async def _discover(self, call: Call) -> Any:
        said = await self._gateway(call)
        if isinstance(said, DiscoverResult) and self.settings.instructions is not None:
            said.instructions = self.settings.instructions
        return said

    def _check(self, call: Call) -> None:
        """What the gateway has itself is found without asking its upstreams, so this is where it is left out."""
        gateway = self._gateway
        own = gateway.info.name
        if call.method in ("tools/call", "prompts/get"):
            kind, name = call.method.split("/")[0][:-1], call.typed().name
            if name in (gateway.tools if kind == "tool" else gateway.prompts) and not self.shows(own, name):
                raise Unknown(kind, name, [])
        elif call.method == "resources/read":
            uri = call.typed().uri
            if gateway.registry.resource(uri)[0] is not None and not self.shows(own, uri):
                raise ResourceNotFound(uri)
        elif call.method == "completion/complete":
            ref = call.typed().ref
            name = ref.name if isinstance(ref, PromptReference) else ref.uri
            known = name in gateway.prompts or name in gateway.templates or name in gateway.resources
            if known and not self.shows(own, name):
                raise InvalidParams("Nothing to complete: there is no such prompt or template")


def checked_views(views: Mapping[str, ViewSettings]) -> dict[str, ViewSettings]:
    """The same views, each at a path of its own."""
    paths: dict[str, str] = {}
    for name, view in views.items():
        if name != paths.setdefault(view.path, name):
            raise UsageError(f"the views {paths[view.path]!r} and {name!r} have the same path {view.path}")
    return dict(views)
