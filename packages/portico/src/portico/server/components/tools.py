"""Tools: a function, its signature, and how it is run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from inspect import iscoroutinefunction
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from msgspec import Raw, Struct

from portico._lazy import LazyModule
from portico._options import check_options
from portico.jsonschema.generation import schema
from portico.jsonschema.type_hints import strip_annotations
from portico.protocol import translation
from portico.protocol.content import BLOCKS
from portico.protocol.errors import InsufficientScope, InvalidParams, MissingCapability, ToolError, UsageError
from portico.protocol.header_params import Mirror, mirrors
from portico.protocol.tools import CallToolParams, CallToolResult, ToolAnnotations
from portico.protocol.tools import Tool as Definition
from portico.protocol.versions import MODERN, V2025_11_25
from portico.rpc.call import Call
from portico.server.components.results import MEDIA, ToolResult, to_result
from portico.server.components.runner import Body, unwrap_group
from portico.server.components.runtime import ArgumentErrors, Runtime
from portico.server.components.signature import ArgumentError, Verify, verifier
from portico.server.components.validation import checked_icons, described_meta, given_name

if TYPE_CHECKING:
    from portico.rpc import client_requests
    from portico.server import apps
    from portico.server.components import auth_checks, schema_signature
    from portico.server.policy.interfaces import Owned
    from portico.server.transforms import transformed_tool
else:
    client_requests = LazyModule("portico.rpc.client_requests")
    apps = LazyModule("portico.server.apps")
    schema_signature = LazyModule("portico.server.components.schema_signature")
    auth_checks = LazyModule("portico.server.components.auth_checks")
    transformed_tool = LazyModule("portico.server.transforms.transformed_tool")

# tools, Tool Names (2025-11-25): what a name may be made of.
_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")

_WITHOUT_OUTPUT = (*BLOCKS, *MEDIA, ToolResult, CallToolResult)

Mode = Literal["never", "optional", "required"]

DAY = 24 * 3600.0


class TaskConfig(Struct, frozen=True, kw_only=True):
    """`@server.tool(task=TaskConfig(mode="optional", retries=3))`; a mode alone is short for it.

    `retries`: how often a body that failed unexpectedly is run again, `backoff` seconds later, then twice that, and so
    on. `priority`: higher is sooner. `concurrency`: how many of this tool run at once, in all processes together.
    `ttl`: seconds for which a task is kept; None for ever. `poll_interval`: how often clients should ask, in seconds.
    `detached`: the body begins as an ordinary call, and becomes a task where it says `await ctx.detach()`.
    """

    mode: Mode = "optional"
    retries: int = 0
    backoff: float = 1.0
    priority: int = 0
    concurrency: int | None = None
    ttl: float | None = DAY
    poll_interval: float = 0.5
    detached: bool = False


class ToolOptions(TypedDict, total=False):
    """The keywords of `@server.tool`, which says what each of them means."""

    name: str | None
    title: str | None
    description: str | None
    version: str | None
    annotations: ToolAnnotations | Mapping[str, Any] | None
    icons: Sequence[Any] | None
    tags: Collection[str]
    meta: Mapping[str, Any] | None
    timeout: float | None
    inline: bool
    aliases: Collection[str]
    scopes: Collection[str]
    auth: Any
    input_schema: dict[str, Any] | None
    output_schema: dict[str, Any] | None
    structured_output: bool | None
    task: Mode | TaskConfig | bool
    ui: Any
    visibility: Collection[str] | None
    run_in_thread: bool


class Tool:
    """One tool of a server: a function, and the options of `@server.tool`."""

    # How wrong arguments are told, where that is not as the server has it.
    argument_errors: ArgumentErrors | None = None
    # Whether texts for numbers and booleans are refused, where the server would repair them.
    strict_arguments = False
    # What a host shows beside its result, if it came with the tool.
    page: Any = None
    # Whether something is said of that at all.
    is_app = False
    # The service that it came with; empty for one of the server's own. And what its server makes of it: that is asked
    # for with every call.
    owner = ""
    owned: Owned | None = None

    def __init__(self, fn: Callable[..., Any], **options: Unpack[ToolOptions]) -> None:
        check_options("a tool", options, ToolOptions)
        self.fn = fn
        self.name = checked_name(given_name(options.get("name"), fn, "a tool"))
        # What it was called when it was written, whatever name it is listed under.
        self.inward = self.name
        self.task = config_of(options.get("task", "never"), self.name)
        self.version = options.get("version")
        self.aliases = tuple(checked_name(alias) for alias in options.get("aliases", ()))
        self.scopes = frozenset(options.get("scopes", ()))
        # Whether a Call may be answered: says so, or raises.
        self.auth = options.get("auth")
        self.body = Body(
            fn,
            self.name,
            inline=options.get("inline", not options.get("run_in_thread", True) and not iscoroutinefunction(fn)),
            timeout=options.get("timeout"),
            without_output=_WITHOUT_OUTPUT,
            input_schema=options.get("input_schema"),
        )
        signature = self.body.signature
        description = options.get("description")
        self.definition = Definition(
            name=self.name,
            title=options.get("title"),
            description=description if description is not None else signature.summary or None,
            input_schema=signature.input_schema,
            output_schema=_output_schema(options, signature),
            annotations=annotations_of(options.get("annotations")),
            icons=checked_icons(options.get("icons")),
            execution=None if self.task is None else {"taskSupport": self.task.mode},
            meta=described_meta(options) or None,
        )
        if options.get("ui") is not None or options.get("visibility") is not None:
            self._put_page(options.get("ui"), options.get("visibility"))
        self.is_app = "ui" in (self.definition.meta or ())
        self.mirrors = _mirrors(self.name, self.definition.input_schema)
        promised = self.definition.output_schema
        self._wrapped = promised is not None and promised.get("type") != "object"
        self._verify: Verify | None = None
        if promised is not None:
            by_author = options.get("output_schema") is not None
            by_type = None if by_author else verifier(signature.returns, self.name)
            self._verify = by_type or _verifier(promised, self.name, at_once=by_author)
        self._uri = f"tool://{self.name}/result"
        # Whether its author has left it open what becomes of a text.
        self._open = options.get("structured_output") is None and promised is None

    def _put_page(self, ui: Any, visibility: Collection[str] | None) -> None:
        said, self.page = apps.page_of(self.name, ui, visibility)
        meta = dict(self.definition.meta or {})
        self.definition.meta = {**meta, "ui": {**meta.get("ui", {}), **said}}

    def structure_text(self) -> None:
        """Send a text as structured content too, unless the author has said something about that."""
        returns = self.body.signature.returns
        if self._open and returns is str:
            self.definition.output_schema = promised = schema(returns, output=True)
            self._wrapped, self._open = True, False
            self._verify = verifier(returns, self.name) or _verifier(promised, self.name, at_once=False)

    @classmethod
    def from_tool(cls, tool: Tool | Callable[..., Any], **options: Any) -> Tool:
        """Another tool in another shape: `name`, `title`, `description`, `tags`, `annotations`, `meta`, `version`;
        `transform_args`, an ArgTransform for each argument that changes; `transform_fn`, a function put around it,
        which calls it with `forward(…)`."""
        return transformed_tool.from_tool(tool, **options)

    @classmethod
    def from_function(cls, fn: Callable[..., Any], **options: Unpack[ToolOptions]) -> Tool:
        """FastMCP's word for `Tool(fn, …)`."""
        return cls(fn, **options)

    def start(self, call: Call, params: CallToolParams, runtime: Runtime, *, allowed: bool = False) -> Any:
        """The result of running the body with these arguments, or a coroutine that comes to it.

        `allowed`: the author's own function has been asked already.
        """
        if self.scopes:
            self._authorize(call)
        if self.auth is not None and not allowed:
            return self._start_allowed(self.auth, call, params, runtime)
        try:
            strict = runtime.strict_arguments or self.strict_arguments
            value = self.body.start(call, runtime, params, params.name, params.arguments, strict=strict)
        except ArgumentError as mistake:
            raise self._mistaken(mistake, call, runtime) from None
        return self._finish(call, runtime, value) if type(value) is CoroutineType else self._result(call, value)

    async def _start_allowed(
        self, allow: Callable[[Call], Any], call: Call, params: CallToolParams, runtime: Runtime
    ) -> Any:
        await self._allow(allow, call)
        result = Tool.start(self, call, params, runtime, allowed=True)
        return await result if type(result) is CoroutineType else result

    async def _finish(self, call: Call, runtime: Runtime, coroutine: CoroutineType[Any, Any, Any]) -> Any:
        try:
            value = await coroutine
        except ArgumentError as mistake:
            raise self._mistaken(mistake, call, runtime) from None
        except MissingCapability as missing:
            raise client_requests.incapable(missing, call) from None
        except BaseExceptionGroup as group:
            raise unwrap_group(group) or group from None
        return self._result(call, value)

    def _result(self, call: Call, value: Any) -> Any:
        result = to_result(value, self._uri, self._verify)
        if self._wrapped and (call.revision or MODERN) < MODERN and isinstance(result, CallToolResult):
            _wrap(result)
        return result

    async def call(self, call: Call, params: CallToolParams, runtime: Runtime) -> Any:
        """The same for a caller that can wait."""
        result = self.start(call, params, runtime)
        return await result if type(result) is CoroutineType else result

    async def check(self, call: Call, params: CallToolParams, runtime: Runtime) -> None:
        """Raise what a call with these arguments would be refused with, before it becomes a task."""
        if self.scopes:
            self._authorize(call)
        if self.auth is not None:
            await self._allow(self.auth, call)
        self.body.authorize(call)
        try:
            strict = runtime.strict_arguments or self.strict_arguments
            self.body.signature.bind(params.arguments, None, strict=strict)
        except ArgumentError as mistake:
            raise self._mistaken(mistake, call, runtime) from None

    def _mistaken(self, mistake: ArgumentError, call: Call, runtime: Runtime) -> Exception:
        """Wrong arguments: for the model to read from 2025-11-25 on, an error of the protocol before (SEP-1303)."""
        habit = self.argument_errors or runtime.argument_errors
        problems = {"problems": mistake.problems}
        if habit == "result" or (habit == "auto" and (call.revision or MODERN) >= V2025_11_25):
            return ToolError(str(mistake), kind="ValidationError", details=problems)
        return InvalidParams(str(mistake), problems)

    async def _allow(self, allow: Any, call: Call) -> None:
        """Ask the author's own function, or functions. Raises ToolError, or what one of them raises."""
        await auth_checks.allow(allow, call, self)

    @property
    def hints(self) -> ToolAnnotations | None:
        """What it says of itself."""
        return self.definition.annotations

    def redefine(self, change: Callable[[Definition], Definition]) -> None:
        """Have it listed as what `change` makes of its definition."""
        self.definition = change(self.definition)

    def require(self, scopes: frozenset[str]) -> None:
        """What its service asks of a principal that has scopes."""
        self.body.service_scopes = scopes

    @property
    def needs(self) -> frozenset[str]:
        """Everything that a principal with scopes has to have: what its author says, and what its service says."""
        return self.scopes | self.body.service_scopes

    def _authorize(self, call: Call) -> None:
        """A client on stdio is the user of this machine and may do all; a principal has scopes, and who comes over HTTP
        without being one has none. Raises InsufficientScope."""
        if call.principal is not None:
            missing = call.principal.lacks(self.needs)
        else:
            missing = self.scopes if call.anonymous else frozenset()
        if missing:
            raise InsufficientScope(f"The tool {self.name!r}", self.needs, missing)


def config_of(task: Mode | TaskConfig | bool, name: str) -> TaskConfig | None:
    """Return the settings of a tool that may run as a task, or None. True is short for "optional"."""
    if isinstance(task, bool):
        task = "optional" if task else "never"
    config = task if isinstance(task, TaskConfig) else TaskConfig(mode=task)
    if config.mode not in ("never", "optional", "required"):
        raise UsageError(f"tool {name!r}: task is 'never', 'optional' or 'required', not {config.mode!r}")
    if config.retries < 0 or config.backoff < 0 or (config.concurrency is not None and config.concurrency < 1):
        raise UsageError(f"tool {name!r}: retries and backoff are not negative, and concurrency is at least 1")
    if (config.ttl is not None and config.ttl <= 0) or config.poll_interval <= 0:
        raise UsageError(f"tool {name!r}: ttl and poll_interval are more than 0")
    return None if config.mode == "never" else config


def _output_schema(options: ToolOptions, signature: Any) -> dict[str, Any] | None:
    wanted = options.get("structured_output")
    said = options.get("output_schema")
    if wanted is False:
        if said is not None:
            raise UsageError("a tool with an output_schema has structured output")
        return None
    # A class whose values say how a call ended takes the author's schema for that of the data in them.
    around = getattr(strip_annotations(signature.returns)[0], "__tool_output_schema__", None)
    if said is not None and around is not None:
        said = around(said)
    found: dict[str, Any] | None = said or signature.output_schema
    if found is None and wanted:
        return schema(signature.returns, output=True)
    return found


def _verifier(schema: dict[str, Any], name: str, *, at_once: bool) -> Verify:
    """For results whose type cannot vouch for them, which few have."""
    return schema_signature.SchemaVerifier(schema, name, at_once=at_once)


def _wrap(result: CallToolResult) -> None:
    """The schema that older revisions were shown is an object, whatever this one value happens to be."""
    if type(result.structured_content) is Raw:
        result.structured_content = translation.wrapped(result.structured_content)


def _mirrors(name: str, schema: dict[str, Any]) -> tuple[Mirror, ...]:
    try:
        return mirrors(schema)
    except ValueError as mistake:
        raise UsageError(f"tool {name!r}: {mistake}") from None


def checked_name(name: str) -> str:
    if not 1 <= len(name) <= 128 or not _NAME.issuperset(name):
        raise UsageError(f"{name!r} is not a valid name: use 1 to 128 of the characters A-Z a-z 0-9 _ . -")
    return name


def annotations_of(given: ToolAnnotations | Mapping[str, Any] | None) -> ToolAnnotations | None:
    if given is None or isinstance(given, ToolAnnotations):
        return given
    known = {field: field for field in ToolAnnotations.__struct_fields__}
    known |= dict(zip(ToolAnnotations.__struct_encode_fields__, ToolAnnotations.__struct_fields__, strict=True))
    unknown = set(given) - set(known)
    if unknown:
        raise UsageError(f"unknown annotation {sorted(unknown)[0]!r}; there are {', '.join(sorted(known))}")
    return ToolAnnotations(**{known[name]: value for name, value in given.items()})
