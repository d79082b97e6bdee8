"""Tools, resources and prompts whose function is imported and inspected on first use.

Inspecting a function builds schemas and decoders, which takes a millisecond, and importing its dependencies may take
longer, so a service with dozens of tools starts without it. Errors in a function surface only on first use: use these
for services whose tests inspect all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from portico._lazy import LazyModule
from portico.protocol.errors import UsageError
from portico.protocol.tools import Tool as Definition, ToolAnnotations
from portico.server.components.prompts import Prompt
from portico.server.components.resources import Resource
from portico.server.components.tools import Tool, parse_tool_annotations, validate_tool_name
from portico.server.components.validation import validate_uri

if TYPE_CHECKING:
    from portico.protocol import uri_template
else:
    uri_template = LazyModule("portico.protocol.uri_template")

FunctionLoader = Callable[[], Callable[..., Any]]
"Returns the function."


class _ReadLate:
    """Component that loads its function on the first access to an attribute that needs it.

    It then becomes an ordinary tool, resource or prompt, so later calls have no overhead.
    """

    _becomes: type
    _load: FunctionLoader
    # Scopes that a principal with scopes must have.
    _service_scopes: frozenset[str] = frozenset()

    def __getattr__(self, name: str) -> Any:
        # Special methods that Python looks up itself must not trigger the load.
        if name.startswith("__"):
            raise AttributeError(name)
        self._read()
        return getattr(self, name)

    def _read(self) -> None:
        component = self._build(self._load())
        component.runner.service_scopes = self._service_scopes
        # Attributes set before loading, such as another name, take precedence.
        vars(self).update({**vars(component), **vars(self)})
        # Catalogs hold references to this object, so it changes its class in place instead of being
        # replaced.
        self.__class__ = self._becomes

    def _build(self, fn: Callable[..., Any]) -> Any:
        raise NotImplementedError

    def require_scopes(self, scopes: frozenset[str]) -> None:
        self._service_scopes = scopes


class LazyTool(_ReadLate, Tool):
    """A tool that is loaded on first use."""

    _becomes = Tool

    def __init__(
        self,
        load: FunctionLoader,
        *,
        name: str,
        aliases: Collection[str] = (),
        annotations: ToolAnnotations | Mapping[str, Any] | None = None,
        version: str | None = None,
    ) -> None:
        self.name = self.local_name = validate_tool_name(name)
        self.aliases = tuple(validate_tool_name(alias) for alias in aliases)
        self.version = version
        self.task, self.auth = None, None
        self.scopes = frozenset()
        # The HTTP transport needs the header parameters of every tool before its first call, so a
        # lazy tool must not have any: see `_made`.
        self.header_params = ()
        self._load = load
        self._hints = parse_tool_annotations(annotations)
        # Changes of the definition are recorded and applied after loading; applying them now would
        # load the function.
        self._changes: tuple[Callable[[Definition], Definition], ...] = ()

    @property
    def annotations(self) -> ToolAnnotations | None:
        return self._hints

    def update_definition(self, change: Callable[[Definition], Definition]) -> None:
        self._changes += (change,)

    def _build(self, fn: Callable[..., Any]) -> Tool:
        tool = Tool(fn, name=self.local_name, annotations=self._hints, version=self.version)
        if tool.header_params:
            raise UsageError(f"tool {self.name!r}: a lazy tool must not have arguments that are mirrored in headers")
        for change in self._changes:
            tool.update_definition(change)
        return tool


class LazyResource(_ReadLate, Resource):
    """A resource, or with variables in its URI a resource template, that is loaded on first use."""

    _becomes = Resource

    def __init__(
        self, load: FunctionLoader, uri: str, *, name: str, mime_type: str | None = None, description: str | None = None
    ) -> None:
        self.uri = validate_uri(uri)
        self.name, self.mime_type, self._description = name, mime_type, description
        self.version, self.auth, self.security, self.has_own_security = None, None, None, False
        self.template = uri_template.UriTemplate(uri) if "{" in uri else None
        self._load = load

    def _build(self, fn: Callable[..., Any]) -> Resource:
        return Resource(fn, self.uri, name=self.name, mime_type=self.mime_type, description=self._description)


class LazyPrompt(_ReadLate, Prompt):
    """A prompt that is loaded on first use."""

    _becomes = Prompt

    def __init__(self, load: FunctionLoader, *, name: str) -> None:
        self.name, self.version, self.auth = name, None, None
        self._load = load

    def _build(self, fn: Callable[..., Any]) -> Prompt:
        return Prompt(fn, name=self.name)
