"""How what a service offers looks to clients that were written for another server: names, schemas, results.

A Shape is settings. Whatever it changes is changed when the service is added, in copies of its tools, resources and
prompts; a service without a Shape passes through nothing of this.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType, field
from msgspec.structs import replace

from portico import ProtocolError, Server, ToolError
from portico.extend import (
    MODERN,
    V2024_11_05,
    V2025_03_26,
    Call,
    CallToolParams,
    CallToolResult,
    Completes,
    Component,
    GetPromptParams,
    GetPromptResult,
    Handler,
    HandlerMiddleware,
    InsufficientScope,
    Prompt,
    PromptMessage,
    ReadResourceParams,
    ReadResourceResult,
    Resource,
    Runtime,
    Template,
    TextContent,
    TextContents,
    Tool,
    Unknown,
    checked_name,
    failed_result,
    rounds_of,
)
from portico.jsonschema import simplified
from portico.protocol import translation
from portico_services.contracts.invocation_names import INVOCATION
from portico_services.profiles import envelope as envelopes
from portico_services.profiles.settings import ServiceShape
from portico_services.rate_limit import Limiter

log = logging.getLogger("portico")
calls = logging.getLogger("portico.contracts")

# Until this revision a result has no member for structured content, so an envelope has something to add. Later it would
# say everything twice, so it is in `_meta`, for clients that ask for it there.
ENVELOPED_UNTIL = V2025_03_26
ENVELOPE = "portico/envelope"


def shaped(offers: Iterable[Component], shape: ServiceShape, *, own: bool = False) -> Iterator[Component]:
    """What a service offers, in this shape. `own`: a server of the user's own says in its results what it wants to
    say, and nothing there is taken for the name of a tool; nor is a word of every day, such as `search`, anywhere."""
    found = list(offers)
    names = _names([one for one in found if isinstance(one, Tool)], shape)
    words = Words(
        {old: new for tool, new in names.items() for old in (tool.name, *tool.aliases) if not (own and old.isalpha())}
    )
    # In the order in which the setting names them.
    told = Words({}) if own else words
    yield from (ShapedTool(tool, name, shape, words, told) for tool, name in names.items())
    for offered in found:
        if isinstance(offered, Tool):
            continue
        if isinstance(offered, Resource):
            yield ShapedResource(offered, shape, words)
        elif isinstance(offered, Completes):
            yield Completes(shape.uri(offered.of), offered.argument, offered.completer)
        else:
            yield ShapedPrompt(offered, words)


def _names(tools: list[Tool], shape: ServiceShape) -> dict[Tool, str]:
    """Which tools there are, and what each is called."""
    by_name = {tool.name: tool for tool in tools}
    wanted = shape.tools if shape.tools is not None else list(by_name)
    if not isinstance(wanted, dict):
        wanted = {name: _dotted(by_name.get(name), name) if shape.dotted else name for name in wanted}
    for name in wanted.keys() - by_name.keys():
        log.warning("there is no tool %r to be listed", name)
    return {by_name[name]: checked_name(new) for name, new in wanted.items() if name in by_name}


def _dotted(tool: Tool | None, name: str) -> str:
    """The name that contracts call it by."""
    said = (tool.definition.meta or {}).get(INVOCATION) if tool is not None else None
    return said if isinstance(said, str) else name


class Words:
    """Texts that name tools, with the names that these have here."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = {old: new for old, new in names.items() if old != new and "." not in old}
        choices = "|".join(re.escape(name) for name in sorted(self._names, key=len, reverse=True))
        self._pattern = re.compile(rf"(?<![\w.-])(?:{choices})(?![\w-])") if choices else None

    def __call__(self, text: str) -> str:
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda found: self._names[found[0]], text)

    def schema(self, said: Any, *, plain: bool) -> Any:
        """The same for the descriptions of a schema; and `plain`, its types in fewer words."""
        if isinstance(said, list):
            return [self.schema(one, plain=plain) for one in said]
        if not isinstance(said, dict):
            return said
        if plain:
            said = simplified(said)
        return {
            name: self(part) if name == "description" and isinstance(part, str) else self.schema(part, plain=plain)
            for name, part in said.items()
        }


class ShapedResult(CallToolResult, kw_only=True):
    """A result with what a shape adds, and without what it leaves out."""

    is_error: bool | UnsetType  # type: ignore[assignment]
    success: bool | UnsetType = UNSET
    status: str | UnsetType = UNSET
    data: Any = UNSET
    error: Any = UNSET
    explanation: str | UnsetType | None = UNSET


def _parts(component: Tool | Resource | Prompt) -> dict[str, Any]:
    """All that it has. One that is late is read when its definition is asked for, so that comes first."""
    return {"definition": component.definition, **vars(component)}


class ShapedTool(Tool):
    """A tool under another name, whose results look otherwise."""

    def __init__(self, tool: Tool, name: str, shape: ServiceShape, words: Words, told: Words) -> None:
        vars(self).update(_parts(tool))
        self.name = name
        self.aliases = tuple(one for one in (tool.name, *tool.aliases) if one != name)
        said = tool.definition
        self.definition = replace(
            said,
            name=name,
            description=shape.descriptions.get(tool.name, words(said.description or "")) or None,
            input_schema=words.schema(said.input_schema, plain=shape.plain_schemas),
        )
        self._tool, self._shape, self._words = copy(tool), shape, told
        self._tool.argument_errors = shape.argument_errors
        self._tool.strict_arguments = shape.strict_arguments
        self.is_logged = shape.log_calls
        reaches_out = said.annotations is None or said.annotations.open_world_hint is not False
        self._limiter = Limiter(shape.rate, shape.burst, time.monotonic) if shape.rate and reaches_out else None

    def start(self, call: Call, params: CallToolParams, runtime: Runtime, *, allowed: bool = False) -> Any:
        return self._shaped(call, params, runtime)

    async def _shaped(self, call: Call, params: CallToolParams, runtime: Runtime) -> Any:
        try:
            if self._limiter is not None:
                self._limiter.require(self.name)
            result = await self._tool.call(call, params, runtime)
        except ProtocolError as refusal:
            refusal.message = self._words(refusal.message)
            raise
        except ToolError as refusal:
            if isinstance(refusal, InsufficientScope):
                call.reply.lack(refusal.scopes)
            problems = refusal.details.get("problems") if refusal.kind == "ValidationError" else None
            error = envelopes.mistake(problems[0], self.definition.input_schema, params) if problems else None
            return self._said(failed_result(call, refusal), call, error)
        except Exception as failure:
            if rounds_of(call) is not None:
                raise  # in a job, which may have retries
            return self._said(failed_result(call, failure), call)
        return self._said(result, call) if type(result) is CallToolResult else result

    async def check(self, call: Call, params: CallToolParams, runtime: Runtime) -> None:
        await self._tool.check(call, params, runtime)

    def _said(self, result: CallToolResult, call: Call, error: Mapping[str, Any] | None = None) -> Any:
        about, revision = envelopes.about(result), call.revision or MODERN
        if result.is_error:
            result = replace(result, content=self._worded(result.content, about))
        envelope = {}
        if self._shape.envelope:
            envelope = envelopes.around(result, {**about, **(error or {})}, self._shape.error_code_prefix)
        if envelope and revision > ENVELOPED_UNTIL:
            if _asks_for_envelope(call):
                meta = result.meta if isinstance(result.meta, dict) else {}
                result = replace(result, meta={**meta, ENVELOPE: envelope})
            envelope = {}
        silent = self._shape.is_error == "failures" and not result.is_error
        if not envelope and not silent:
            return result
        plain = translation.result(result, revision)
        return ShapedResult(
            content=plain.content,
            structured_content=plain.structured_content,
            is_error=UNSET if silent else result.is_error,
            meta=plain.meta,
            **envelope,
        )

    def _worded(self, content: list[Any], about: Mapping[str, Any]) -> list[Any]:
        """The blocks of a failure, in the words that are wanted."""
        if self._shape.brief_errors and isinstance(about.get("brief"), str):
            content = [TextContent(text=about["brief"])]
        texts = [at for at, one in enumerate(content) if isinstance(one, TextContent)]
        said = list(content)
        for at in texts:
            prefix = self._shape.error_prefix if at == texts[0] else ""
            said[at] = replace(content[at], text=prefix + self._words(content[at].text))
        return said


class _RequestMeta(Struct, gc=False):
    """The part of a request that says whether an envelope is wanted."""

    meta: dict[str, Any] = field(default_factory=dict, name="_meta")


def _asks_for_envelope(call: Call) -> bool:
    # What cannot be read has been refused before.
    return bool(call.params) and msgspec.json.decode(call.params, type=_RequestMeta).meta.get(ENVELOPE) is True


class TypedText(TextContents, tag_field="type", tag="text"):
    """The text of a resource that says that it is text."""


class ShapedResource(Resource):
    """A resource under another URI, whose contents say what they are."""

    def __init__(self, resource: Resource, shape: ServiceShape, words: Words) -> None:
        vars(self).update(_parts(resource))
        self.uri = shape.uri(resource.uri)
        self.template = None if resource.template is None else Template(self.uri)
        member = "uri" if self.template is None else "uri_template"
        said = resource.definition
        description = None if said.description is None else words(said.description)
        self.definition = replace(said, **{member: self.uri}, description=description)
        self._typed = shape.typed_contents

    async def read(self, call: Call, params: ReadResourceParams, runtime: Runtime, values: Mapping[str, Any]) -> Any:
        result = await super().read(call, params, runtime, values)
        if self._typed and isinstance(result, ReadResourceResult) and (call.revision or MODERN) <= ENVELOPED_UNTIL:
            return replace(result, contents=[_typed(one) for one in result.contents])
        return result


def _typed(contents: Any) -> Any:
    if type(contents) is not TextContents:
        return contents
    return TypedText(uri=contents.uri, mime_type=contents.mime_type, text=contents.text)


class ShapedPrompt(Prompt):
    """A prompt whose texts name tools as they are listed here."""

    def __init__(self, prompt: Prompt, words: Words) -> None:
        vars(self).update(_parts(prompt))
        self._words = words

    async def get(self, call: Call, params: GetPromptParams, runtime: Runtime) -> Any:
        result = await super().get(call, params, runtime)
        if not isinstance(result, GetPromptResult):
            return result
        return replace(result, messages=[self._worded(one) for one in result.messages])

    def _worded(self, message: PromptMessage) -> PromptMessage:
        block = message.content
        if not isinstance(block, TextContent):
            return message
        return PromptMessage(message.role, replace(block, text=self._words(block.text)))


def logging_calls(server: Server) -> HandlerMiddleware:
    """Around a server: every call of a tool whose shape says so leaves a line, with what came of it and nothing that it
    was given; and so does one of a tool that is not there."""

    def is_logged(name: str) -> bool:
        tool = server.registry.tool(name)
        return tool is None or (isinstance(tool, ShapedTool) and tool.is_logged)

    def around(handler: Handler) -> Handler:
        async def handle(call: Call) -> Any:
            if call.method != "tools/call":
                return await handler(call)
            began, said = time.monotonic(), "failure"
            try:
                result = await handler(call)
                said = "failure" if getattr(result, "is_error", False) is True else "success"
                return result
            finally:
                name = _named(call)
                if is_logged(name):
                    calls.info("%r: %s in %.1f ms", name[:300], said, 1000 * (time.monotonic() - began))

        return handle

    return around


class _Named(Struct, gc=False):
    name: str = ""


def _named(call: Call) -> str:
    """The tool that is called; nothing where the request does not say it, which is refused in its own words."""
    try:
        return msgspec.json.decode(call.params, type=_Named).name
    except ValueError:
        return ""


def naming_unknown(said: Mapping[str, Mapping[str, Any]]) -> HandlerMiddleware:
    """Around a server: the error for a tool or a prompt that is not there says these things, too; by method. A `number`
    among them is the code itself at 2024-11-05, whose servers had codes of their own."""

    def around(handler: Handler) -> Handler:
        async def handle(call: Call) -> Any:
            try:
                return await handler(call)
            except Unknown as failure:
                members = said.get(call.method, {})
                failure.data = {**failure.data, **members}
                if "number" in members and call.revision == V2024_11_05:
                    raise ProtocolError(failure.message, failure.data, code=members["number"]) from None
                raise

        return handle

    return around


def adding_details(handler: Handler) -> Handler:
    """Wrap a server so that the data of every error has `details`: the sentence that it has already, or its message."""

    async def handle(call: Call) -> Any:
        try:
            return await handler(call)
        except ProtocolError as failure:
            data = failure.data if isinstance(failure.data, Mapping) else {}
            failure.data = {"details": failure.message, **data}
            raise

    return handle
