"""Decorators for registration, and services as bundles of components."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast, overload

from msgspec import Struct

from portico._lazy import LazyModule
from portico._options import validate_options
from portico.protocol.errors import UsageError
from portico.protocol.methods import METHODS
from portico.rpc.call import Call
from portico.server.components.prompts import Prompt, PromptOptions
from portico.server.components.resources import Resource, ResourceOptions
from portico.server.components.tools import Tool, ToolOptions
from portico.server.components.validation import to_mapping, validate_extension_ids

if TYPE_CHECKING:
    from portico.server.components import completion as completing
    from portico.server.components.completion import Completer
else:
    completing = LazyModule("portico.server.components.completion")

F = TypeVar("F", bound=Callable[..., Any])

_MARKS = "__portico__"

MethodHandler = Callable[[Call], Any]
"Answers a method with its result, or with a coroutine that returns it."


class CompletionBinding(Struct):
    """A completer and the argument that it completes."""

    target: str
    argument: str
    completer: Completer


Component = Tool | Resource | Prompt | CompletionBinding


class Registrar:
    """Base class for objects with registration decorators: a Server, or a Service."""

    def _register(self, component: Component) -> None:
        raise NotImplementedError

    def _decorate(self, make: Callable[[Callable[..., Any]], Component]) -> Callable[[F], F]:
        def register(fn: F) -> F:
            self._register(make(fn))
            return fn

        return register

    def _decorate_or_register(
        self, make: Callable[..., Component], label: str, component_class: type, fn: Any, options: dict[str, Any]
    ) -> Any:
        """Register a function by a decorator with or without parentheses, or with the name as the only positional
        argument.
        """
        # Annotations and icons of FastMCP and the official SDK are pydantic models.
        options = {name: to_mapping(value) for name, value in options.items()}
        validate_options(label, options, component_class)
        if fn is None or isinstance(fn, str):
            named = options if fn is None else {"name": fn, **options}
            return self._decorate(lambda function: make(function, **named))
        if options:
            raise UsageError("pass the function or options, not both: @server.tool(title=…) above the function")
        return self._decorate(make)(fn)

    @overload
    def tool(self, fn: F, /) -> F: ...
    @overload
    def tool(self, name: str | None = None, /, **options: Unpack[ToolOptions]) -> Callable[[F], F]: ...
    def tool(self, fn: Any = None, /, **options: Any) -> Any:
        """Register a function as a tool: `@server.tool`, `@server.tool("name")` or `@server.tool(title=…, timeout=…)`.

        * **name** – name for clients; by default the function's name.
        * **title** – display name for users.
        * **description** – text for the model; by default the first part of the docstring.
        * **version** – version of this tool, listed in its `_meta`.
        * **annotations** – hints for clients, such as `{"readOnlyHint": True}`.
        * **icons** – icons for users.
        * **meta** – members of its `_meta`.
        * **tags** – keywords, listed in its `_meta`.
        * **timeout** – seconds that a call may take; None for no limit.
        * **run_in_thread** – False: run a fast `def` on the event loop instead of in a thread.
        * **aliases** – other names that it can be called by, which are not listed.
        * **scopes** – scopes that a principal needs to call it. Not checked on stdio, which has no principal.
        * **auth** – a function of the Call, `async` or not, that returns True or raises; or several.
          `require_scopes(…)` returns one.
        * **input_schema** – JSON Schema of the arguments, instead of the one derived from the parameters.
        * **output_schema** – JSON Schema of the result, instead of the one derived from the return type.
        * **structured_output** – False: no output schema and no structured content; True: both, also for strings.
        * **task** – whether a call may become a task: "never" (or False), "optional" (or True), "required", or a
          TaskConfig.
        * **ui** – a page that hosts show next to the result: an AppPage, the path of an HTML file, HTML, or the `ui://`
          URI of a resource.
        * **visibility** – who sees the tool: ["model"], ["app"] (the page only), or both.
        """
        return self._decorate_or_register(Tool, "a tool", ToolOptions, fn, options)

    @overload
    def prompt(self, fn: F, /) -> F: ...
    @overload
    def prompt(self, name: str | None = None, /, **options: Unpack[PromptOptions]) -> Callable[[F], F]: ...
    def prompt(self, fn: Any = None, /, **options: Any) -> Any:
        """Register a function as a prompt: `@server.prompt`, `@server.prompt("name")` or `@server.prompt(title=…)`.

        * **name** – name for clients; by default the function's name.
        * **title** – display name for users.
        * **description** – its purpose; by default the first part of the docstring.
        * **version** – version of this prompt, listed in its `_meta`; of several versions the highest is served.
        * **icons** – icons for users.
        * **meta** – members of its `_meta`.
        * **tags** – keywords, listed in its `_meta`.
        * **auth** – authorization check, as for tools.
        * **run_in_thread** – False: run a fast `def` on the event loop instead of in a thread.
        """
        return self._decorate_or_register(Prompt, "a prompt", PromptOptions, fn, options)

    def resource(self, uri: str, **options: Unpack[ResourceOptions]) -> Callable[[F], F]:
        """Register a function as a resource, or with variables in the URI as a template: `@server.resource("a://{b}")`.

        * **uri** – URI of the resource; each variable in it is a parameter of the function.
        * **name** – name for clients; by default the function's name.
        * **title** – display name for users.
        * **description** – its contents; by default the first part of the docstring.
        * **version** – version of this resource, listed in its `_meta`; of several versions the highest is served.
        * **mime_type** – media type of the return value; by default `text/plain` for strings,
          `application/octet-stream` for bytes, `application/json` for anything else, and that of an app page for
          `ui://` URIs.
        * **size** – size in bytes, if known.
        * **annotations** – audience, priority and time of the last change.
        * **icons** – icons for users.
        * **meta** – members of its `_meta`.
        * **tags** – keywords, listed in its `_meta`.
        * **run_in_thread** – False: run a fast `def` on the event loop instead of in a thread.
        * **auth** – authorization check, as for tools.
        * **security** – which values of its variables to reject, a `ResourceSecurity`; None accepts all. The default is
          the server's `resource_security`.
        """
        if not isinstance(uri, str):
            raise UsageError('a resource requires its URI: @server.resource("scheme://path")')
        validate_options("a resource", options, ResourceOptions)
        return self._decorate(lambda fn: Resource(fn, uri, **options))

    @overload
    def completion(self) -> Callable[[F], F]: ...
    @overload
    def completion(self, target: str, argument: str) -> Callable[[F], F]: ...
    @overload
    def completion(self, target: F) -> F: ...
    def completion(self, target: Any = None, argument: str | None = None) -> Any:
        """Register a completer for an argument of a prompt (by its name) or of a template (by its URI or name).

        Without arguments, the function completes everything: `complete(ref, argument, context)`.
        """
        if callable(target):
            return self.completion()(target)
        if target is None or argument is None:
            if target is not argument:
                raise UsageError(
                    "a completion requires both a target and an argument: @server.completion(target, argument)"
                )
            return self._decorate(lambda fn: CompletionBinding("", "", completing.CatchAllCompleter(fn)))
        return self._decorate(lambda fn: CompletionBinding(target, argument, completing.Completer(fn)))


def component_factories(function: Any) -> list[Callable[[Any], Component]]:
    """Return the component factories that the decorators of this module have attached to a function."""
    result = getattr(function, _MARKS, ())
    return list(result) if callable(function) and isinstance(result, list) else []


class _MethodMarkers(Registrar):
    """Decorators for methods: they attach a mark that is read when the service is added."""

    def _decorate(self, make: Callable[[Callable[..., Any]], Component]) -> Callable[[F], F]:
        def mark(fn: F) -> F:
            # A list: one method may be both a tool and a prompt.
            marks: list[Callable[[Callable[..., Any]], Component]] = getattr(fn, _MARKS, [])
            marks.append(make)
            setattr(fn, _MARKS, marks)
            return fn

        return mark


_marks = _MethodMarkers()
tool = _marks.tool
resource = _marks.resource
prompt = _marks.prompt
completion = _marks.completion


class Service(Registrar):
    """A bundle of components that is added to and removed from a server as a whole.

    Either a subclass whose methods have the decorators of this module, or an instance with which functions are
    registered: `notes = Service("notes")`, then `@notes.tool`.
    """

    name: str = ""
    # Alias schemes of its resources, and the listed scheme of each.
    scheme_aliases: Mapping[str, str] = {}
    # Whether a principal with scopes needs `NAME:read` or `NAME:write` for the service's components. Principals without
    # scopes, on stdio or with a server's single token, are not restricted.
    requires_scopes: bool = False
    # Whether the server added it itself: it is not in `Server.services`.
    internal: bool = False
    # Whether it wraps all other services and the middleware, whenever they are added.
    outermost: bool = False

    def __init__(self, name: str | None = None) -> None:
        self.name = name or self.name or type(self).__name__.lower()
        self._offered: list[Component] = []

    def _register(self, component: Component) -> None:
        self._offered.append(component)

    def lifespan(self) -> AbstractAsyncContextManager[Any]:
        """Return an async context manager that is entered when the server starts and left when it stops."""
        return nullcontext()

    def on_added(self, server: Any) -> None:
        """Handle being added to a server. Called with the server."""

    def extensions(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the protocol extensions of this service, with their settings."""
        return {}

    def methods(self) -> Mapping[str, Callable[[Call], Awaitable[Any]]]:
        """Return the handlers of additional methods. Each must be declared with `portico.extend.add_method`."""
        return {}

    def wrap_method(self, method: str, handler: MethodHandler) -> MethodHandler:
        """Return the handler of a method, wrapped by this service. Returns it unchanged by default."""
        return handler

    def scoped_components(self) -> list[Component]:
        """Return all components with the scope that each requires: `write` for tools that are not read-only."""
        offered = list(self.components())
        for item in offered:
            if self.requires_scopes and not isinstance(item, CompletionBinding):
                hints = item.annotations if isinstance(item, Tool) else None
                # A tool without the hint counts as writing: the stricter scope is the safe default.
                reads = not isinstance(item, Tool) or (hints is not None and hints.read_only_hint is True)
                item.require_scopes(frozenset({f"{self.name}:{'read' if reads else 'write'}"}))
        return offered

    def components(self) -> Iterator[Component]:
        """Yield all components: decorated methods in the order of their definition, then the others."""
        yield from collect_components(self)
        # A subclass may not have called our __init__.
        yield from cast("list[Component]", self.__dict__.get("_offered", ()))


class ServiceRegistry:
    """The services of one server with their components, methods and wrappers."""

    def __init__(self) -> None:
        self.services: list[Service] = []
        # The service that answers a method, instead of the server if both do.
        self.by_method: dict[str, Service] = {}
        # Whether the server has middleware, which the outermost services then wrap instead of the handlers.
        self.has_middleware = False
        # By the name of the service, or of the class with the decorated methods.
        self._components: dict[str, list[Component]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._components

    def add(self, name: str, components: list[Component]) -> None:
        self._components[name] = [*self._components.get(name, ()), *components]

    def add_service(self, service: Service) -> None:
        self.services = sorted([*self.services, service], key=lambda item: item.outermost)

    def remove(self, name: str) -> tuple[list[Component], list[Service]]:
        """Remove a service, and return its components and the removed services."""
        removed = [service for service in self.services if service.name == name]
        self.services = [service for service in self.services if service not in removed]
        return self._components.pop(name), removed

    def method_handlers(self) -> dict[str, MethodHandler]:
        """Return the handlers of the services' methods."""
        # Of two services that answer a method the later one wins, as with wrappers.
        self.by_method = {method: service for service in self.services for method in service.methods()}
        return {method: service.methods()[method] for method, service in self.by_method.items()}

    def extensions(self) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for service in self.services:
            validate_extension_ids(service.extensions())
            result |= {name: dict(settings) for name, settings in service.extensions().items()}
        return result

    def wrap_handlers(self, handlers: Mapping[str, MethodHandler]) -> dict[str, MethodHandler]:
        """Return the handlers wrapped by the services, the last one outermost."""
        result = dict(handlers)
        for service in self.services:
            if not (service.outermost and self.has_middleware):
                result = {method: service.wrap_method(method, answer) for method, answer in result.items()}
        return result

    def wrap_middleware(self, handler: Callable[[Call], Any]) -> Callable[[Call], Any]:
        """Return the handler of all methods, which ends with the middleware, wrapped by the outermost services."""
        wrapped: dict[str, Callable[[Call], Any]] = dict.fromkeys(METHODS, handler)
        for service in self.services:
            if service.outermost:
                wrapped = {method: service.wrap_method(method, answer) for method, answer in wrapped.items()}
        return lambda call: wrapped.get(call.method, handler)(call)


def collect_components(instance: Any) -> Iterator[Component]:
    """Yield the components of the decorated methods of any object."""
    seen: set[str] = set()
    # Base classes first, so that a subclass keeps the order of the methods that it overrides.
    for cls in reversed(type(instance).__mro__):
        for name in vars(cls):
            method = getattr(type(instance), name, None)
            marks = getattr(method, _MARKS, ())
            if marks and name not in seen:
                seen.add(name)
                bound = getattr(instance, name)
                yield from (make(bound) for make in marks)
