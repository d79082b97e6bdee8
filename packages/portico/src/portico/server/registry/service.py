"""Registering: the decorators, and services as bundles of what they register."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast, overload

from msgspec import Struct

from portico._lazy import LazyModule
from portico._options import check_options
from portico.protocol.errors import UsageError
from portico.rpc.call import Call
from portico.server.components.prompts import Prompt, PromptOptions
from portico.server.components.resources import Resource, ResourceOptions
from portico.server.components.tools import Tool, ToolOptions
from portico.server.components.validation import as_table, checked_extensions

if TYPE_CHECKING:
    from portico.server.components import completion as completing
    from portico.server.components.completion import Completer
else:
    completing = LazyModule("portico.server.components.completion")

F = TypeVar("F", bound=Callable[..., Any])

_MARKS = "__portico__"

Answer = Callable[[Call], Any]
"""Answers a method: with the result, or with a coroutine that comes to it."""


class Completes(Struct):
    """A completion, and which argument of what it is for."""

    of: str
    argument: str
    completer: Completer


Component = Tool | Resource | Prompt | Completes


class Registrar:
    """Whatever things are registered with: a Server, or a Service that is added to one."""

    def _register(self, component: Component) -> None:
        raise NotImplementedError

    def _decorate(self, make: Callable[[Callable[..., Any]], Component]) -> Callable[[F], F]:
        def register(fn: F) -> F:
            self._register(make(fn))
            return fn

        return register

    def _offer(self, make: Callable[..., Component], what: str, known: type, fn: Any, options: dict[str, Any]) -> Any:
        """With and without parentheses, and with the name as the only positional argument."""
        options = {name: as_table(value) for name, value in options.items()}
        check_options(what, options, known)
        if fn is None or isinstance(fn, str):
            named = options if fn is None else {"name": fn, **options}
            return self._decorate(lambda function: make(function, **named))
        if options:
            raise UsageError("name the function or the options, not both: @server.tool(title=…) above the function")
        return self._decorate(make)(fn)

    @overload
    def tool(self, fn: F, /) -> F: ...
    @overload
    def tool(self, name: str | None = None, /, **options: Unpack[ToolOptions]) -> Callable[[F], F]: ...
    def tool(self, fn: Any = None, /, **options: Any) -> Any:
        """Offer a function as a tool: `@server.tool`, `@server.tool("name")` or `@server.tool(title=…, timeout=…)`.

        * **name** – what clients call it; the function's name otherwise.
        * **title** – what people see.
        * **description** – what the model reads; the first part of the docstring otherwise.
        * **version** – of this tool, shown in its `_meta`.
        * **annotations** – hints for clients, such as `{"readOnlyHint": True}`.
        * **icons** – pictures for people.
        * **meta** – members of its `_meta`.
        * **tags** – words to find it by, shown in its `_meta`.
        * **timeout** – how many seconds a call may take; None for no limit.
        * **inline** – a `def` that is quick enough to run on the loop; otherwise it runs in a thread.
        * **run_in_thread** – the same the other way round, as FastMCP has it.
        * **aliases** – other names that it answers to, which are not listed.
        * **scopes** – what a principal must be allowed to call it. On stdio there is none to ask.
        * **auth** – a function of the Call, or an async one, that says whether it is answered: True, or an exception.
          Or several; `require_scopes(…)` makes one.
        * **input_schema** – the JSON Schema of the arguments, in place of the one made from the parameters.
        * **output_schema** – the JSON Schema of the result, in place of the one made from the return type.
        * **structured_output** – False: no output schema and no structured content; True: both, also for a text.
        * **task** – whether a call may become a task: "never" (or False), "optional" (or True),
          "required", or a TaskConfig.
        * **ui** – a page that hosts show beside the result: an AppPage, the path of an HTML file, HTML, or the `ui://`
          address of a resource.
        * **visibility** – who is shown the tool: ["model"], ["app"] (the page alone), or both.
        """
        return self._offer(Tool, "a tool", ToolOptions, fn, options)

    @overload
    def prompt(self, fn: F, /) -> F: ...
    @overload
    def prompt(self, name: str | None = None, /, **options: Unpack[PromptOptions]) -> Callable[[F], F]: ...
    def prompt(self, fn: Any = None, /, **options: Any) -> Any:
        """Offer a function as a prompt: `@server.prompt`, `@server.prompt("name")` or `@server.prompt(title=…)`.

        * **name** – what clients call it; the function's name otherwise.
        * **title** – what people see.
        * **description** – what it is for; the first part of the docstring otherwise.
        * **version** – of this prompt, shown in its `_meta`; of several the highest is there.
        * **icons** – pictures for people.
        * **meta** – members of its `_meta`.
        * **tags** – words to find it by, shown in its `_meta`.
        * **auth** – a function that says whether it is given, as with tools.
        * **inline** – a `def` that is quick enough to run on the loop; otherwise it runs in a thread.
        """
        return self._offer(Prompt, "a prompt", PromptOptions, fn, options)

    def resource(self, uri: str, **options: Unpack[ResourceOptions]) -> Callable[[F], F]:
        """Offer a function as a resource, or with variables in the URI as a template: `@server.resource("a://{b}")`.

        * **uri** – where it is; each variable in it is a parameter of the function.
        * **name** – what it is called; the function's name otherwise.
        * **title** – what people see.
        * **description** – what is there; the first part of the docstring otherwise.
        * **version** – of this resource, shown in its `_meta`; of several the highest is there.
        * **mime_type** – of what the function returns; otherwise a text is `text/plain`, bytes are
          `application/octet-stream`, anything else is `application/json`, and what is at `ui://` is a page of an app.
        * **size** – in bytes, where it is known.
        * **annotations** – for whom it is, how important it is, and when it last changed.
        * **icons** – pictures for people.
        * **meta** – members of its `_meta`.
        * **tags** – words to find it by, shown in its `_meta`.
        * **inline** – a `def` that is quick enough to run on the loop; otherwise it runs in a thread.
        * **auth** – a function that says whether it is read, as with tools.
        * **security** – which values of its variables never reach the function, a `ResourceSecurity`; None: all do.
          Without a word about it, as `resource_security` of the server says.
        """
        if not isinstance(uri, str):
            raise UsageError('a resource needs its URI: @server.resource("scheme://path")')
        check_options("a resource", options, ResourceOptions)
        return self._decorate(lambda fn: Resource(fn, uri, **options))

    @overload
    def completion(self) -> Callable[[F], F]: ...
    @overload
    def completion(self, of: str, argument: str) -> Callable[[F], F]: ...
    @overload
    def completion(self, of: F) -> F: ...
    def completion(self, of: Any = None, argument: str | None = None) -> Any:
        """Complete an argument of a prompt (by its name) or of a template (by its URI or name).

        Without them the function is for all: `complete(ref, argument, context)`.
        """
        if callable(of):
            return self.completion()(of)
        if of is None or argument is None:
            if of is not argument:
                raise UsageError("a completion is for an argument of something: @server.completion(of, argument)")
            return self._decorate(lambda fn: Completes("", "", completing.CompleterOfAll(fn)))
        return self._decorate(lambda fn: Completes(of, argument, completing.Completer(fn)))


def marks_of(function: Any) -> list[Callable[[Any], Component]]:
    """What the decorators of this module have left on a function: each makes a component of it."""
    found = getattr(function, _MARKS, ())
    return list(found) if callable(function) and isinstance(found, list) else []


class _Marks(Registrar):
    """The decorators for methods: they leave a mark that is read when the service is added."""

    def _decorate(self, make: Callable[[Callable[..., Any]], Component]) -> Callable[[F], F]:
        def mark(fn: F) -> F:
            marks: list[Callable[[Callable[..., Any]], Component]] = getattr(fn, _MARKS, [])
            marks.append(make)
            setattr(fn, _MARKS, marks)
            return fn

        return mark


_marks = _Marks()
tool = _marks.tool
resource = _marks.resource
prompt = _marks.prompt
completion = _marks.completion


class Service(Registrar):
    """A bundle that is added to a server, and removed from it, as one.

    Either a subclass whose methods carry the decorators of this module, or an instance that functions are
    registered with: `notes = Service("notes")`, then `@notes.tool`.
    """

    name: str = ""
    # Other schemes that its resources are known by, and the listed one that each of them stands for.
    schemes: Mapping[str, str] = {}
    # Whether a principal that has scopes needs one of `NAME:read` and `NAME:write` for what the service offers. Who has
    # none by nature, on stdio or with the one token of a server, is asked for nothing.
    scoped: bool = False

    def __init__(self, name: str | None = None) -> None:
        self.name = name or self.name or type(self).__name__.lower()
        self._offered: list[Component] = []

    def _register(self, component: Component) -> None:
        self._offered.append(component)

    def lifespan(self) -> AbstractAsyncContextManager[Any]:
        """Entered when the server starts, left when it stops. For connections and the like."""
        return nullcontext()

    def added(self, server: Any) -> None:
        """Called with the server that this service is part of now."""

    def extensions(self) -> Mapping[str, Mapping[str, Any]]:
        """The protocol extensions that come with this service, and their settings."""
        return {}

    def methods(self) -> Mapping[str, Callable[[Call], Awaitable[Any]]]:
        """The methods that come with them. Each needs a row in the table: `portico.extend.add_method`."""
        return {}

    def around(self, method: str, answer: Answer) -> Answer:
        """The answer to a method, with what this service puts around it: by default nothing."""
        return answer

    def guarded(self) -> list[Component]:
        """Everything this service offers, with the scope that each needs: `write` of tools that do not only read."""
        offered = list(self.offers())
        for one in offered:
            if self.scoped and not isinstance(one, Completes):
                hints = one.hints if isinstance(one, Tool) else None
                reads = not isinstance(one, Tool) or (hints is not None and hints.read_only_hint is True)
                one.require(frozenset({f"{self.name}:{'read' if reads else 'write'}"}))
        return offered

    def offers(self) -> Iterator[Component]:
        """Everything this service offers: its marked methods in the order they were written, then the rest."""
        yield from marked(self)
        # A subclass may never have called our __init__.
        yield from cast("list[Component]", self.__dict__.get("_offered", ()))


class Bundles:
    """The services of one server: what each has registered, what they answer, and what they put around answers."""

    def __init__(self) -> None:
        self.services: list[Service] = []
        # Which of them answers a method, in place of its server if that has it too.
        self.by_method: dict[str, Service] = {}
        # By the name of the service, or of the class whose marked methods they are.
        self._components: dict[str, list[Component]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._components

    def add(self, name: str, components: list[Component]) -> None:
        self._components[name] = [*self._components.get(name, ()), *components]

    def remove(self, name: str) -> tuple[list[Component], list[Service]]:
        """What is gone by that."""
        gone = [one for one in self.services if one.name == name]
        self.services = [one for one in self.services if one not in gone]
        return self._components.pop(name), gone

    def answers(self) -> dict[str, Answer]:
        """What the services answer now."""
        self.by_method = {method: service for service in self.services for method in service.methods()}
        return {method: service.methods()[method] for method, service in self.by_method.items()}

    def extensions(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for service in self.services:
            checked_extensions(service.extensions())
            found |= {name: dict(settings) for name, settings in service.extensions().items()}
        return found

    def around(self, answers: Mapping[str, Answer]) -> dict[str, Answer]:
        """The answer to each method with what the services put around it, the last one outermost."""
        found = dict(answers)
        for service in self.services:
            found = {method: service.around(method, answer) for method, answer in found.items()}
        return found


def marked(instance: Any) -> Iterator[Component]:
    """What the marked methods of any object offer."""
    seen: set[str] = set()
    for cls in reversed(type(instance).__mro__):
        for name in vars(cls):
            method = getattr(type(instance), name, None)
            marks = getattr(method, _MARKS, ())
            if marks and name not in seen:
                seen.add(name)
                bound = getattr(instance, name)
                yield from (make(bound) for make in marks)
