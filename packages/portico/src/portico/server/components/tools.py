"""Tools: functions with a signature, and how they are called."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from msgspec import Struct

from portico._lazy import LazyModule
from portico._options import validate_options
from portico.jsonschema.generation import schema_for_type
from portico.jsonschema.type_hints import split_annotations
from portico.protocol import translation
from portico.protocol.content import CONTENT_BLOCK_TYPES
from portico.protocol.errors import InsufficientScope, InvalidParams, MissingClientCapability, ToolError, UsageError
from portico.protocol.header_params import HeaderParam, parse_header_params
from portico.protocol.tools import CallToolParams, CallToolResult, Tool as Definition, ToolAnnotations
from portico.protocol.versions import FIRST_MODERN_VERSION, V2025_11_25
from portico.rpc.call import Call
from portico.server.components.results import MEDIA_TYPES, ToolResult, to_result
from portico.server.components.runner import FunctionRunner, unwrap_exception_group
from portico.server.components.runtime import ArgumentErrorMode, Runtime
from portico.server.components.signature import ArgumentError, OutputValidator, make_output_validator
from portico.server.components.validation import build_meta, parse_icons, resolve_name

if TYPE_CHECKING:
    from portico.rpc import client_requests
    from portico.server import apps
    from portico.server.components import auth_checks, schema_signature
    from portico.server.policy.interfaces import QualifiedName
    from portico.server.transforms import transformed_tool
else:
    client_requests = LazyModule("portico.rpc.client_requests")
    apps = LazyModule("portico.server.apps")
    schema_signature = LazyModule("portico.server.components.schema_signature")
    auth_checks = LazyModule("portico.server.components.auth_checks")
    transformed_tool = LazyModule("portico.server.transforms.transformed_tool")

# Characters allowed in a name (2025-11-25, Tools, Tool Names).
_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")

_WITHOUT_OUTPUT = (*CONTENT_BLOCK_TYPES, *MEDIA_TYPES, ToolResult, CallToolResult)

TaskMode = Literal["never", "optional", "required"]

SECONDS_PER_DAY = 24 * 3600.0


class TaskConfig(Struct, frozen=True, kw_only=True):
    """Task options of a tool: `@server.tool(task=TaskConfig(mode="optional", max_retries=3))`.

    A mode alone is short for it: `task="optional"`.

    * **mode** – whether calls "never", "optional"ly (if the client asks for it) or always ("required") run as tasks.
    * **max_retries**, **retry_delay** – how often to run the function again after an unexpected failure, and the
      seconds before the first retry. The delay doubles each time.
    * **priority** – tasks with a higher number run first.
    * **max_concurrency** – how many tasks of this tool run concurrently, in all processes together.
    * **ttl** – seconds for which a task is retained; None retains it for ever.
    * **poll_interval** – how often clients should poll, in seconds.
    * **detachable** – the function starts as an ordinary call and becomes a task at `await ctx.continue_as_task()`.
    """

    mode: TaskMode = "optional"
    max_retries: int = 0
    retry_delay: float = 1.0
    priority: int = 0
    max_concurrency: int | None = None
    ttl: float | None = SECONDS_PER_DAY
    poll_interval: float = 0.5
    detachable: bool = False


class ToolOptions(TypedDict, total=False):
    """Keywords of `@server.tool`, which documents them."""

    name: str | None
    title: str | None
    description: str | None
    version: str | None
    annotations: ToolAnnotations | Mapping[str, Any] | None
    icons: Sequence[Any] | None
    tags: Collection[str]
    meta: Mapping[str, Any] | None
    timeout: float | None
    aliases: Collection[str]
    scopes: Collection[str]
    auth: Any
    input_schema: dict[str, Any] | None
    output_schema: dict[str, Any] | None
    structured_output: bool | None
    task: TaskMode | TaskConfig | bool
    ui: Any
    visibility: Collection[str] | None
    run_in_thread: bool


class Tool:
    """A tool of a server: a function, and the options of `@server.tool`."""

    # How to report invalid arguments; None: as the server does.
    argument_errors: ArgumentErrorMode | None = None
    # Whether to reject strings for numbers and booleans, which the server would repair.
    strict_arguments = False
    # The app page registered together with the tool, if any.
    app_page: Any = None
    # Whether the tool has app metadata.
    is_app = False
    # Name of the service that registered it; empty for the server itself. The qualified name is cached, because every
    # call needs it.
    owner = ""
    qualified_name: QualifiedName | None = None

    def __init__(self, fn: Callable[..., Any], **options: Unpack[ToolOptions]) -> None:
        validate_options("a tool", options, ToolOptions)
        self.fn = fn
        self.name = validate_tool_name(resolve_name(options.get("name"), fn, "a tool"))
        # The original name, whatever name it is listed under.
        self.local_name = self.name
        self.task = resolve_task_config(options.get("task", "never"), self.name)
        self.version = options.get("version")
        self.aliases = tuple(validate_tool_name(alias) for alias in options.get("aliases", ()))
        self.scopes = frozenset(options.get("scopes", ()))
        # Authorization check, or several; a check returns True or raises.
        self.auth = options.get("auth")
        self.runner = FunctionRunner(
            fn,
            self.name,
            run_in_thread=options.get("run_in_thread", True),
            timeout=options.get("timeout"),
            types_without_schema=_WITHOUT_OUTPUT,
            input_schema=options.get("input_schema"),
        )
        signature = self.runner.signature
        description = options.get("description")
        self.definition = Definition(
            name=self.name,
            title=options.get("title"),
            description=description if description is not None else signature.summary or None,
            input_schema=signature.input_schema,
            output_schema=_output_schema(options, signature),
            annotations=parse_tool_annotations(options.get("annotations")),
            icons=parse_icons(options.get("icons")),
            execution=None if self.task is None else {"taskSupport": self.task.mode},
            meta=build_meta(options) or None,
        )
        if options.get("ui") is not None or options.get("visibility") is not None:
            self._put_page(options.get("ui"), options.get("visibility"))
        self.is_app = "ui" in (self.definition.meta or ())
        self.header_params = _mirrors(self.name, self.definition.input_schema)
        promised = self.definition.output_schema
        self._wraps_result = self._wrapped_before_2026 = False
        self._verify: OutputValidator | None = None
        if promised is not None:
            self._promise_output(promised, by_author=options.get("output_schema") is not None)
        self._uri = f"tool://{self.name}/result"
        # Whether the author left it open if strings are structured content.
        self._open = options.get("structured_output") is None and promised is None

    def _put_page(self, ui: Any, visibility: Collection[str] | None) -> None:
        ui_meta, self.app_page = apps.resolve_app_page(self.name, ui, visibility)
        meta = dict(self.definition.meta or {})
        self.definition.meta = {**meta, "ui": {**meta.get("ui", {}), **ui_meta}}

    def structure_text_output(self) -> None:
        """Send strings as structured content too, unless the author decided about it."""
        returns = self.runner.signature.returns
        if self._open and returns is str:
            self._open = False
            self._promise_output(schema_for_type(returns, for_output=True), by_author=False)

    def _promise_output(self, promised: dict[str, Any], *, by_author: bool) -> None:
        """List an output schema, and validate results against it.

        Values that are not objects are sent as `{"result": …}` on every protocol version: 2026-07-28 allows any JSON
        value, but clients and proxies of earlier versions validate structured content as an object. An author's own
        schema is sent unchanged where the version allows it.
        """
        by_type = None if by_author else make_output_validator(self.runner.signature.returns, self.name)
        self._verify = by_type or _verifier(promised, self.name, at_once=by_author)
        if promised.get("type") == "object":
            self.definition.output_schema = promised
        elif by_author:
            self._wrapped_before_2026 = True
        else:
            self._wraps_result = True
            self.definition.output_schema = translation.wrap_output_schema(promised)

    @classmethod
    def from_tool(cls, tool: Tool | Callable[..., Any], **options: Any) -> Tool:
        """Create a tool from another one, with changes.

        Takes `name`, `title`, `description`, `tags`, `annotations`, `meta` and `version`; `transform_args`, an
        ArgTransform for each argument to change; and `transform_fn`, a function that wraps the tool and calls it with
        `forward(…)`.
        """
        return transformed_tool.transform_tool(tool, **options)

    @classmethod
    def from_function(cls, fn: Callable[..., Any], **options: Unpack[ToolOptions]) -> Tool:
        """Create a Tool; FastMCP's name for `Tool(fn, …)`."""
        return cls(fn, **options)

    def start(self, call: Call, params: CallToolParams, runtime: Runtime, *, authorized: bool = False) -> Any:
        """Return the result of the tool for these arguments, or a coroutine that returns it.

        `authorized`: the tool's `auth` checks have passed already.
        """
        if self.scopes:
            self._authorize(call)
        if self.auth is not None and not authorized:
            return self._start_allowed(self.auth, call, params, runtime)
        try:
            strict = runtime.strict_arguments or self.strict_arguments
            value = self.runner.start(call, runtime, params, params.name, params.arguments, strict)
        except ArgumentError as mistake:
            raise self._argument_failure(mistake, call, runtime) from None
        return self._complete(call, runtime, value) if type(value) is CoroutineType else self._result(call, value)

    async def _start_allowed(
        self, allow: Callable[[Call], Any], call: Call, params: CallToolParams, runtime: Runtime
    ) -> Any:
        await self._allow(allow, call)
        result = Tool.start(self, call, params, runtime, authorized=True)
        return await result if type(result) is CoroutineType else result

    async def _complete(self, call: Call, runtime: Runtime, coroutine: CoroutineType[Any, Any, Any]) -> Any:
        try:
            value = await coroutine
        except ArgumentError as mistake:
            raise self._argument_failure(mistake, call, runtime) from None
        except MissingClientCapability as missing:
            raise client_requests.to_capability_error(missing, call) from None
        except BaseExceptionGroup as group:
            raise unwrap_exception_group(group) or group from None
        return self._result(call, value)

    def _result(self, call: Call, value: Any) -> Any:
        wrapped = self._wraps_result or (
            self._wrapped_before_2026 and (call.protocol_version or FIRST_MODERN_VERSION) < FIRST_MODERN_VERSION
        )
        return to_result(value, self._uri, self._verify, wrapped)

    async def call(self, call: Call, params: CallToolParams, runtime: Runtime) -> Any:
        """Call the tool and return its result."""
        result = self.start(call, params, runtime)
        return await result if type(result) is CoroutineType else result

    async def validate_call(self, call: Call, params: CallToolParams, runtime: Runtime) -> None:
        """Raise the error that a call with these arguments would fail with, before it becomes a task."""
        if self.scopes:
            self._authorize(call)
        if self.auth is not None:
            await self._allow(self.auth, call)
        self.runner.authorize(call)
        try:
            strict = runtime.strict_arguments or self.strict_arguments
            self.runner.signature.bind(params.arguments, None, strict=strict)
        except ArgumentError as mistake:
            raise self._argument_failure(mistake, call, runtime) from None

    def _argument_failure(self, mistake: ArgumentError, call: Call, runtime: Runtime) -> Exception:
        """Return the error for invalid arguments: a tool error since 2025-11-25 (SEP-1303), before that a protocol
        error.
        """
        habit = self.argument_errors or runtime.argument_errors
        problems = {"problems": mistake.problems}
        if habit == "result" or (habit == "auto" and (call.protocol_version or FIRST_MODERN_VERSION) >= V2025_11_25):
            return ToolError(str(mistake), error_type="ValidationError", details=problems)
        return InvalidParams(str(mistake), problems)

    async def _allow(self, allow: Any, call: Call) -> None:
        """Run the author's checks. Raises ToolError, or the exception of a check."""
        await auth_checks.authorize(allow, call, self)

    @property
    def annotations(self) -> ToolAnnotations | None:
        """Return the tool's annotations."""
        return self.definition.annotations

    def update_definition(self, change: Callable[[Definition], Definition]) -> None:
        """Replace the listed definition with `change(definition)`."""
        self.definition = change(self.definition)

    def require_scopes(self, scopes: frozenset[str]) -> None:
        """Set the scopes that its service requires of a principal with scopes."""
        self.runner.service_scopes = scopes

    @property
    def required_scopes(self) -> frozenset[str]:
        """Return the scopes that a principal with scopes must have: those of the author and of the service."""
        return self.scopes | self.runner.service_scopes

    def _authorize(self, call: Call) -> None:
        """Raise InsufficientScope if the caller lacks a scope.

        A client on stdio is the local user and passes; an anonymous HTTP client has no scopes.
        """
        if call.principal is not None:
            missing = call.principal.missing_scopes(self.required_scopes)
        else:
            missing = self.scopes if call.is_anonymous else frozenset()
        if missing:
            raise InsufficientScope(f"The tool {self.name!r}", self.required_scopes, missing)


def resolve_task_config(task: TaskMode | TaskConfig | bool, name: str) -> TaskConfig | None:
    """Return the settings of a tool that may run as a task, or None. True is short for "optional"."""
    if isinstance(task, bool):
        task = "optional" if task else "never"
    config = task if isinstance(task, TaskConfig) else TaskConfig(mode=task)
    if config.mode not in ("never", "optional", "required"):
        raise UsageError(f"tool {name!r}: task must be 'never', 'optional' or 'required', got {config.mode!r}")
    if (
        config.max_retries < 0
        or config.retry_delay < 0
        or (config.max_concurrency is not None and config.max_concurrency < 1)
    ):
        raise UsageError(
            f"tool {name!r}: max_retries and retry_delay must not be negative, and max_concurrency must be at least 1"
        )
    if (config.ttl is not None and config.ttl <= 0) or config.poll_interval <= 0:
        raise UsageError(f"tool {name!r}: ttl and poll_interval must be more than 0")
    return None if config.mode == "never" else config


def _output_schema(options: ToolOptions, signature: Any) -> dict[str, Any] | None:
    structured = options.get("structured_output")
    explicit_schema = options.get("output_schema")
    if structured is False:
        if explicit_schema is not None:
            raise UsageError("a tool with an output_schema has structured output; remove structured_output=False")
        return None
    # For a class whose values carry a status, the author's schema describes the data inside.
    around = getattr(split_annotations(signature.returns)[0], "__tool_output_schema__", None)
    if explicit_schema is not None and around is not None:
        explicit_schema = around(explicit_schema)
    result: dict[str, Any] | None = explicit_schema or signature.output_schema
    if result is None and structured:
        return schema_for_type(signature.returns, for_output=True)
    return result


def _verifier(schema: dict[str, Any], name: str, *, at_once: bool) -> OutputValidator:
    """Return the validator for results whose type does not guarantee the schema."""
    return schema_signature.OutputSchemaValidator(schema, name, eager=at_once)


def _mirrors(name: str, schema: dict[str, Any]) -> tuple[HeaderParam, ...]:
    try:
        return parse_header_params(schema)
    except ValueError as mistake:
        raise UsageError(f"tool {name!r}: {mistake}") from None


def validate_tool_name(name: str) -> str:
    if not 1 <= len(name) <= 128 or not _NAME.issuperset(name):
        raise UsageError(f"invalid name {name!r}: use 1 to 128 of the characters A-Z a-z 0-9 _ . -")
    return name


def parse_tool_annotations(annotations: ToolAnnotations | Mapping[str, Any] | None) -> ToolAnnotations | None:
    if annotations is None or isinstance(annotations, ToolAnnotations):
        return annotations
    field_names = {field: field for field in ToolAnnotations.__struct_fields__}
    field_names |= dict(zip(ToolAnnotations.__struct_encode_fields__, ToolAnnotations.__struct_fields__, strict=True))
    unknown = set(annotations) - set(field_names)
    if unknown:
        raise UsageError(
            f"unknown annotation {sorted(unknown)[0]!r} (expected one of {', '.join(sorted(field_names))})"
        )
    return ToolAnnotations(**{field_names[name]: value for name, value in annotations.items()})
