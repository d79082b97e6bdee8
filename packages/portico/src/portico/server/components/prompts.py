"""Prompts: functions that write messages for a user to send."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

import msgspec
from msgspec import UNSET

from portico._lazy import LazyModule
from portico._options import validate_options
from portico.protocol.client_features import InputRequiredResult
from portico.protocol.errors import InvalidParams
from portico.protocol.prompts import (
    GetPromptParams,
    GetPromptResult,
    Prompt as Definition,
    PromptArgument,
    PromptMessage,
)
from portico.rpc.call import Call
from portico.server.components.interop import to_native
from portico.server.components.results import to_block
from portico.server.components.runner import FunctionRunner
from portico.server.components.runtime import Runtime
from portico.server.components.signature import ArgumentError
from portico.server.components.validation import build_meta, parse_icons, resolve_name

if TYPE_CHECKING:
    from portico.server.components import auth_checks
else:
    auth_checks = LazyModule("portico.server.components.auth_checks")


class PromptOptions(TypedDict, total=False):
    """Keywords of `@server.prompt`, which documents them."""

    name: str | None
    title: str | None
    description: str | None
    version: str | None
    icons: Sequence[Any] | None
    tags: Collection[str]
    meta: Mapping[str, Any] | None
    run_in_thread: bool
    auth: Any


class Prompt:
    """A prompt of a server: a function, and the options of `@server.prompt`.

    Arguments arrive as strings and are decoded to the types of the function's parameters.
    """

    # Name of the service that registered it; empty for the server itself.
    owner = ""

    def __init__(self, fn: Callable[..., Any], **options: Unpack[PromptOptions]) -> None:
        validate_options("a prompt", options, PromptOptions)
        self.fn = fn
        self.name = resolve_name(options.get("name"), fn, "a prompt")
        self.version = options.get("version")
        # Authorization check, or several.
        self.auth = options.get("auth")
        self.runner = FunctionRunner(fn, self.name, run_in_thread=options.get("run_in_thread", True))
        description = options.get("description")
        self.definition = Definition(
            name=self.name,
            title=options.get("title"),
            description=description if description is not None else self.runner.signature.summary or None,
            arguments=self._arguments() or None,
            icons=parse_icons(options.get("icons")),
            meta=build_meta(options) or None,
        )

    @classmethod
    def from_function(cls, fn: Callable[..., Any], **options: Unpack[PromptOptions]) -> Prompt:
        """Create a Prompt; the official SDK's name for `Prompt(fn, …)`."""
        return cls(fn, **options)

    def _arguments(self) -> list[PromptArgument]:
        schema = self.runner.signature.input_schema
        required = schema.get("required", ())
        return [
            PromptArgument(name=name, description=property_schema.get("description"), required=name in required)
            for name, property_schema in schema.get("properties", {}).items()
        ]

    def require_scopes(self, scopes: frozenset[str]) -> None:
        """Set the scopes that its service requires of a principal with scopes."""
        self.runner.service_scopes = scopes

    async def get(self, call: Call, params: GetPromptParams, runtime: Runtime) -> Any:
        """Return the prompt's messages. Raises InvalidParams for invalid arguments."""
        if self.auth is not None:
            await auth_checks.authorize(self.auth, call, self)
        # Prompt arguments are strings in the protocol (2026-07-28, Prompts). Encoded as JSON they
        # go through the decoder and the repair of tools, which turns "5" into 5 for an `int`.
        arguments = msgspec.json.encode(params.arguments or {})
        try:
            value = await self.runner.run(call, runtime, params, params.name, arguments)
        except ArgumentError as mistake:
            # Unlike a tool, a prompt has no result with `isError`: invalid arguments are a protocol
            # error.
            raise InvalidParams(str(mistake), {"problems": mistake.problems}) from None
        value = to_native(value)
        if isinstance(value, InputRequiredResult | GetPromptResult):
            return value
        described = self.definition.description
        # Recognized by name: the class may be FastMCP's.
        if type(value).__name__ == "PromptResult":
            described, meta = value.description or described, UNSET if value.meta is None else value.meta
            return GetPromptResult(description=described, messages=to_messages(value.messages, self.name), meta=meta)
        return GetPromptResult(description=described, messages=to_messages(value, self.name))


def to_messages(value: Any, name: str) -> list[PromptMessage]:
    """Return prompt messages for any value. Strings and list items become messages of the user."""
    parts = value if isinstance(value, list | tuple) else [value]
    return [_message(part, name) for part in parts]


class Message:
    """A message in a prompt: text, or anything that can become a content block."""

    def __init__(self, content: Any, role: Literal["user", "assistant"] = "user") -> None:
        self.content = content
        self.role = role


class UserMessage(Message):
    """A message of the user."""


class AssistantMessage(Message):
    """A message of the model."""

    def __init__(self, content: Any, role: Literal["assistant"] = "assistant") -> None:
        super().__init__(content, role)


def _message(value: Any, name: str) -> PromptMessage:
    value = to_native(value)
    if isinstance(value, PromptMessage):
        return value
    if isinstance(value, Mapping) and value.keys() >= {"role", "content"}:
        return PromptMessage(value["role"], to_block(value["content"], f"prompt://{name}"))
    # Messages of other libraries, and our own `Message`.
    if hasattr(value, "role") and hasattr(value, "content"):
        return PromptMessage(value.role, to_block(value.content, f"prompt://{name}"))
    return PromptMessage("user", to_block(value, f"prompt://{name}"))
