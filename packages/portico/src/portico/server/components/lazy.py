"""Tools, resources and prompts whose function is loaded and read when it is first asked for.

To read a function is to make schemas and decoders of its types. That takes a millisecond, and to load what the function
needs may take more, so a service with dozens of them starts without. What is wrong with a function is found out when it
is read: these are for services whose tests read all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from portico._lazy import LazyModule
from portico.protocol.errors import UsageError
from portico.protocol.tools import Tool as Definition
from portico.protocol.tools import ToolAnnotations
from portico.server.components.prompts import Prompt
from portico.server.components.resources import Resource
from portico.server.components.tools import Tool, annotations_of, checked_name
from portico.server.components.validation import checked_uri

if TYPE_CHECKING:
    from portico.protocol import uri_template
else:
    uri_template = LazyModule("portico.protocol.uri_template")

Load = Callable[[], Callable[..., Any]]
"""Gives the function."""


class _ReadLate:
    """What is known without the function is there from the start. With the first question for anything else it is read,
    and becomes an ordinary tool, resource or prompt: later calls take no longer."""

    _becomes: type
    _load: Load
    # What a principal must be allowed that has scopes at all.
    _service_scopes: frozenset[str] = frozenset()

    def __getattr__(self, name: str) -> Any:
        # Only of what Python itself looks for it is known that it is not there.
        if name.startswith("__"):
            raise AttributeError(name)
        self._read()
        return getattr(self, name)

    def _read(self) -> None:
        made = self._made(self._load())
        made.body.service_scopes = self._service_scopes
        # What was said meanwhile stands, such as another name.
        vars(self).update({**vars(made), **vars(self)})
        self.__class__ = self._becomes

    def _made(self, fn: Callable[..., Any]) -> Any:
        raise NotImplementedError

    def require(self, scopes: frozenset[str]) -> None:
        self._service_scopes = scopes


class LateTool(_ReadLate, Tool):
    """A tool by its name."""

    _becomes = Tool

    def __init__(
        self,
        load: Load,
        *,
        name: str,
        aliases: Collection[str] = (),
        annotations: ToolAnnotations | Mapping[str, Any] | None = None,
        version: str | None = None,
    ) -> None:
        self.name = self.inward = checked_name(name)
        self.aliases = tuple(checked_name(alias) for alias in aliases)
        self.version = version
        self.task, self.auth = None, None
        self.scopes = frozenset()
        self.mirrors = ()
        self._load = load
        self._hints = annotations_of(annotations)
        self._changes: tuple[Callable[[Definition], Definition], ...] = ()

    @property
    def hints(self) -> ToolAnnotations | None:
        return self._hints

    def redefine(self, change: Callable[[Definition], Definition]) -> None:
        self._changes += (change,)

    def _made(self, fn: Callable[..., Any]) -> Tool:
        made = Tool(fn, name=self.inward, annotations=self._hints, version=self.version)
        if made.mirrors:
            raise UsageError(f"tool {self.name!r}: a late one has no arguments that are mirrored in headers")
        for change in self._changes:
            made.redefine(change)
        return made


class LateResource(_ReadLate, Resource):
    """A resource, or with variables in its URI a family, by its URI."""

    _becomes = Resource

    def __init__(
        self, load: Load, uri: str, *, name: str, mime_type: str | None = None, description: str | None = None
    ) -> None:
        self.uri = checked_uri(uri)
        self.name, self.mime_type, self._description = name, mime_type, description
        self.version, self.auth, self.security, self.says_security = None, None, None, False
        self.template = uri_template.Template(uri) if "{" in uri else None
        self._load = load

    def _made(self, fn: Callable[..., Any]) -> Resource:
        return Resource(fn, self.uri, name=self.name, mime_type=self.mime_type, description=self._description)


class LatePrompt(_ReadLate, Prompt):
    """A prompt by its name."""

    _becomes = Prompt

    def __init__(self, load: Load, *, name: str) -> None:
        self.name, self.version, self.auth = name, None, None
        self._load = load

    def _made(self, fn: Callable[..., Any]) -> Prompt:
        return Prompt(fn, name=self.name)
