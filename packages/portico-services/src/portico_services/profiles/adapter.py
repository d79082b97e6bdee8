"""Adaptation of a service's components to clients of another server: names, schemas and results.

A CompatSection holds the settings. Changes are applied when the service is added, to copies of its tools, resources and
prompts; a service without such settings bypasses this module.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from typing import Any
from weakref import WeakSet

import msgspec
from msgspec import UNSET, Struct, UnsetType, field
from msgspec.structs import replace

from portico import Prompt, ProtocolError, Resource, Server, Tool, ToolError
from portico.errors import ComponentNotFound, InsufficientScope
from portico.extend import (
    FIRST_MODERN_VERSION,
    Call,
    CallToolParams,
    CompletionBinding,
    Component,
    GetPromptParams,
    Handler,
    HandlerMiddleware,
    ReadResourceParams,
    Runtime,
    UriTemplate,
    exception_to_result,
    get_rounds,
    validate_tool_name,
)
from portico.jsonschema import simplify
from portico.protocol import translation
from portico.types import (
    V2024_11_05,
    V2025_03_26,
    CallToolResult,
    GetPromptResult,
    PromptMessage,
    ReadResourceResult,
    TextContent,
    TextResourceContents,
)
from portico_services.contracts.invocation_names import INVOCATION_META_KEY
from portico_services.profiles import envelope as envelopes
from portico_services.rate_limit import ToolRateLimiter
from portico_services.settings import CompatSection

log = logging.getLogger("portico")
call_log = logging.getLogger("portico.contracts")

# Up to this protocol version a result has no structured content, so an envelope adds information. Later versions would
# duplicate it, so the envelope is sent in `_meta`, for clients that request it.
LAST_ENVELOPE_VERSION = V2025_03_26
ENVELOPE_META_KEY = "portico/envelope"
_logged_servers: WeakSet[Server] = WeakSet()


def adapt_components(
    components: Iterable[Component], compat: CompatSection, *, is_user_server: bool = False
) -> Iterator[Component]:
    """Yield the components of a service, adapted to the settings.

    With `own`, they belong to the user's own server: its results are not searched for tool names, and everyday words
    such as `search` are not replaced anywhere.
    """
    result = list(components)
    names = _map_tool_names([item for item in result if isinstance(item, Tool)], compat)
    words = NameSubstitution(
        {
            old: new
            for tool, new in names.items()
            for old in (tool.name, *tool.aliases)
            if not (is_user_server and old.isalpha())
        }
    )
    # In the order of the setting.
    description_names = NameSubstitution({}) if is_user_server else words
    yield from (CompatTool(tool, name, compat, words, description_names) for tool, name in names.items())
    for offered in result:
        if isinstance(offered, Tool):
            continue
        if isinstance(offered, Resource):
            yield CompatResource(offered, compat, words)
        elif isinstance(offered, CompletionBinding):
            yield CompletionBinding(compat.map_uri(offered.target), offered.argument, offered.completer)
        else:
            yield CompatPrompt(offered, words)


def _map_tool_names(tools: list[Tool], compat: CompatSection) -> dict[Tool, str]:
    """Return the tools to list with their new names."""
    by_name = {tool.name: tool for tool in tools}
    names = compat.tools if compat.tools is not None else list(by_name)
    if not isinstance(names, dict):
        names = {name: _dotted_name(by_name.get(name), name) if compat.dotted_names else name for name in names}
    for name in names.keys() - by_name.keys():
        log.warning("compat: unknown tool %r in tools", name)
    return {by_name[name]: validate_tool_name(new) for name, new in names.items() if name in by_name}


def _dotted_name(tool: Tool | None, name: str) -> str:
    """Return the dotted name by which contracts call a tool."""
    invocation = (tool.definition.meta or {}).get(INVOCATION_META_KEY) if tool is not None else None
    return invocation if isinstance(invocation, str) else name


class NameSubstitution:
    """Replaces tool names in texts with the names listed by this server."""

    def __init__(self, names: Mapping[str, str]) -> None:
        # Dotted names stay valid under every profile, so they are not replaced.
        self._names = {old: new for old, new in names.items() if old != new and "." not in old}
        choices = "|".join(re.escape(name) for name in sorted(self._names, key=len, reverse=True))
        # Longest first, so that `memory_delete_all` is not read as `memory_delete`.
        self._pattern = re.compile(rf"(?<![\w.-])(?:{choices})(?![\w-])") if choices else None

    def __call__(self, text: str) -> str:
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda match: self._names[match[0]], text)

    def substitute_schema(self, schema: Any, *, plain: bool) -> Any:
        """Return a schema with tool names replaced in its descriptions; with `plain`, its types are simplified too."""
        if isinstance(schema, list):
            return [self.substitute_schema(item, plain=plain) for item in schema]
        if not isinstance(schema, dict):
            return schema
        if plain:
            schema = simplify(schema)
        return {
            name: self(part)
            if name == "description" and isinstance(part, str)
            else self.substitute_schema(part, plain=plain)
            for name, part in schema.items()
        }


class CompatResult(CallToolResult, kw_only=True):
    """A result with the members that the settings add, and without those they omit."""

    is_error: bool | UnsetType  # type: ignore[assignment]
    success: bool | UnsetType = UNSET
    status: str | UnsetType = UNSET
    data: Any = UNSET
    error: Any = UNSET
    explanation: str | UnsetType | None = UNSET


def _load_component(component: Tool | Resource | Prompt) -> dict[str, Any]:
    """Return the attributes of a component. A lazy one is loaded by its definition, so that is read first."""
    return {"definition": component.definition, **vars(component)}


class CompatTool(Tool):
    """A tool under another name, with adapted results."""

    def __init__(
        self, tool: Tool, name: str, compat: CompatSection, words: NameSubstitution, result_words: NameSubstitution
    ) -> None:
        vars(self).update(_load_component(tool))
        self.name = name
        self.aliases = tuple(item for item in (tool.name, *tool.aliases) if item != name)
        definition = tool.definition
        self.definition = replace(
            definition,
            name=name,
            description=compat.descriptions.get(tool.name, words(definition.description or "")) or None,
            input_schema=words.substitute_schema(definition.input_schema, plain=compat.simple_schemas),
            # Descriptions of results name tools too.
            output_schema=words.substitute_schema(definition.output_schema, plain=False),
        )
        self._tool, self._compat, self._words = copy(tool), compat, result_words
        self._tool.argument_errors = compat.argument_errors
        self._tool.strict_arguments = compat.strict_arguments
        self.is_logged = compat.log_calls
        # A missing annotation counts as external, which is the default of openWorldHint in the specification.
        reaches_out = definition.annotations is None or definition.annotations.open_world_hint is not False
        self._limiter = (
            ToolRateLimiter(compat.rate_limit, compat.rate_burst, time.monotonic)
            if compat.rate_limit and reaches_out
            else None
        )

    def start(self, call: Call, params: CallToolParams, runtime: Runtime, *, authorized: bool = False) -> Any:
        return self._run(call, params, runtime)

    async def _run(self, call: Call, params: CallToolParams, runtime: Runtime) -> Any:
        """Call the tool and adapt its result or error."""
        try:
            if self._limiter is not None:
                self._limiter.acquire(self.name)
            result = await self._tool.call(call, params, runtime)
        except ProtocolError as refusal:
            refusal.message = self._words(refusal.message)
            raise
        except ToolError as refusal:
            if isinstance(refusal, InsufficientScope):
                call.reply.require_scopes(refusal.scopes)
            # Only validation errors name the parameter, which the envelope of some servers repeats.
            problems = refusal.details.get("problems") if refusal.error_type == "ValidationError" else None
            error = envelopes.argument_error(problems[0], self.definition.input_schema, params) if problems else None
            return self._build_result(exception_to_result(call, refusal), call, error)
        except Exception as failure:
            if get_rounds(call) is not None:
                raise  # in an MCP task, which may be retried
            return self._build_result(exception_to_result(call, failure), call)
        return self._build_result(result, call) if type(result) is CallToolResult else result

    async def validate_call(self, call: Call, params: CallToolParams, runtime: Runtime) -> None:
        await self._tool.validate_call(call, params, runtime)

    def _build_result(self, result: CallToolResult, call: Call, error: Mapping[str, Any] | None = None) -> Any:
        """Build the result, with an envelope if the settings require one."""
        about, revision = envelopes.error_details(result), call.protocol_version or FIRST_MODERN_VERSION
        if result.is_error:
            result = replace(result, content=self._substitute_names(result.content, about))
        envelope = {}
        if self._compat.envelope:
            envelope = envelopes.build_envelope(result, {**about, **(error or {})}, self._compat.error_code_prefix)
        if envelope and revision > LAST_ENVELOPE_VERSION:
            if _wants_envelope(call):
                meta = result.meta if isinstance(result.meta, dict) else {}
                result = replace(result, meta={**meta, ENVELOPE_META_KEY: envelope})
            envelope = {}
        silent = self._compat.include_is_error == "on_failure" and not result.is_error
        if not envelope and not silent:
            return result
        # CompatResult is not a type that the protocol layer knows, so members of newer versions are removed here.
        plain = translation.translate_result(result, revision)
        return CompatResult(
            content=plain.content,
            structured_content=plain.structured_content,
            is_error=UNSET if silent else result.is_error,
            meta=plain.meta,
            **envelope,
        )

    def _substitute_names(self, content: list[Any], about: Mapping[str, Any]) -> list[Any]:
        """Return the content of an error with tool names replaced, in its short form if requested."""
        if self._compat.short_errors and isinstance(about.get("brief"), str):
            content = [TextContent(text=about["brief"])]
        texts = [at for at, block in enumerate(content) if isinstance(block, TextContent)]
        blocks = list(content)
        for at in texts:
            prefix = self._compat.error_prefix if at == texts[0] else ""
            blocks[at] = replace(content[at], text=prefix + self._words(content[at].text))
        return blocks


class _RequestMeta(Struct, gc=False):
    """The part of a request that says whether the client requests an envelope."""

    meta: dict[str, Any] = field(default_factory=dict, name="_meta")


def _wants_envelope(call: Call) -> bool:
    # Invalid params have been rejected before.
    return bool(call.params) and msgspec.json.decode(call.params, type=_RequestMeta).meta.get(ENVELOPE_META_KEY) is True


class TypedTextContents(TextResourceContents, tag_field="type", tag="text"):
    """Text contents of a resource with a `type` member."""


class CompatResource(Resource):
    """A resource under another URI, with typed contents."""

    def __init__(self, resource: Resource, compat: CompatSection, words: NameSubstitution) -> None:
        vars(self).update(_load_component(resource))
        self.uri = compat.map_uri(resource.uri)
        self.template = None if resource.template is None else UriTemplate(self.uri)
        member = "uri" if self.template is None else "uri_template"
        definition = resource.definition
        description = None if definition.description is None else words(definition.description)
        self.definition = replace(definition, **{member: self.uri}, description=description)
        self._typed = compat.typed_resource_contents

    async def read(self, call: Call, params: ReadResourceParams, runtime: Runtime, values: Mapping[str, Any]) -> Any:
        result = await super().read(call, params, runtime, values)
        if (
            self._typed
            and isinstance(result, ReadResourceResult)
            and (call.protocol_version or FIRST_MODERN_VERSION) <= LAST_ENVELOPE_VERSION
        ):
            return replace(result, contents=[_with_content_type(content) for content in result.contents])
        return result


def _with_content_type(contents: Any) -> Any:
    if type(contents) is not TextResourceContents:
        return contents
    return TypedTextContents(uri=contents.uri, mime_type=contents.mime_type, text=contents.text)


class CompatPrompt(Prompt):
    """A prompt whose texts use the tool names listed by this server."""

    def __init__(self, prompt: Prompt, words: NameSubstitution) -> None:
        # A copy of the attributes, because the original stays registered with its service and may be added elsewhere.
        vars(self).update(_load_component(prompt))
        self._words = words

    async def get(self, call: Call, params: GetPromptParams, runtime: Runtime) -> Any:
        result = await super().get(call, params, runtime)
        if not isinstance(result, GetPromptResult):
            return result
        return replace(result, messages=[self._substitute_message(message) for message in result.messages])

    def _substitute_message(self, message: PromptMessage) -> PromptMessage:
        block = message.content
        if not isinstance(block, TextContent):
            return message
        return PromptMessage(message.role, replace(block, text=self._words(block.text)))


def enable_call_log(server: Server) -> None:
    """Log the tool calls of a server as `call_logging_middleware` does. A second call changes nothing."""
    # The user's server and the services that are added to it may both request the log.
    if server not in _logged_servers:
        _logged_servers.add(server)
        server.add_middleware(call_logging_middleware(server))


def call_logging_middleware(server: Server) -> HandlerMiddleware:
    """Return middleware that logs the name, outcome and duration of tool calls, never their arguments.

    Logged are calls of tools whose settings request it, and calls of unknown tools.
    """

    def is_logged(name: str) -> bool:
        tool = server.registry.tool(name)
        return tool is None or (isinstance(tool, CompatTool) and tool.is_logged)

    def around(handler: Handler) -> Handler:
        async def handle(call: Call) -> Any:
            if call.method != "tools/call":
                return await handler(call)
            started_at, outcome = time.monotonic(), "failure"
            try:
                result = await handler(call)
                outcome = "failure" if getattr(result, "is_error", False) is True else "success"
                return result
            finally:
                name = _requested_name(call)
                if is_logged(name):
                    call_log.info("%r: %s in %.1f ms", name[:300], outcome, 1000 * (time.monotonic() - started_at))

        return handle

    return around


class _NamedParams(Struct, gc=False):
    name: str = ""


def _requested_name(call: Call) -> str:
    """Return the name of the called tool; empty if the request does not contain one, which is rejected elsewhere."""
    try:
        return msgspec.json.decode(call.params, type=_NamedParams).name
    except ValueError:
        return ""


def unknown_component_middleware(members_by_method: Mapping[str, Mapping[str, Any]]) -> HandlerMiddleware:
    """Return middleware that adds members to the error data for unknown tools and prompts, by method.

    For protocol version 2024-11-05, whose servers defined their own codes, a member `number` becomes the error code.
    """

    def around(handler: Handler) -> Handler:
        async def handle(call: Call) -> Any:
            try:
                return await handler(call)
            except ComponentNotFound as failure:
                members = members_by_method.get(call.method, {})
                failure.data = {**failure.data, **members}
                # The numbers lie in a range that later protocol versions may use.
                if "number" in members and call.protocol_version == V2024_11_05:
                    raise ProtocolError(failure.message, failure.data, code=members["number"]) from None
                raise

        return handle

    return around


def adding_details(handler: Handler) -> Handler:
    """Wrap a server so that the data of every error has `details`: an existing value, or the message."""

    async def handle(call: Call) -> Any:
        try:
            return await handler(call)
        except ProtocolError as failure:
            data = failure.data if isinstance(failure.data, Mapping) else {}
            failure.data = {"details": failure.message, **data}
            raise

    return handle
