"""Prompts: a function that writes messages for a person to send."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

import msgspec
from msgspec import UNSET

from portico._lazy import LazyModule
from portico._options import check_options
from portico.protocol.client_features import InputRequiredResult
from portico.protocol.errors import InvalidParams
from portico.protocol.prompts import GetPromptParams, GetPromptResult, PromptArgument, PromptMessage
from portico.protocol.prompts import Prompt as Definition
from portico.rpc.call import Call
from portico.server.components.interop import ours
from portico.server.components.results import to_block
from portico.server.components.runner import Body
from portico.server.components.runtime import Runtime
from portico.server.components.signature import ArgumentError
from portico.server.components.validation import checked_icons, described_meta, given_name

if TYPE_CHECKING:
    from portico.server.components import auth_checks
else:
    auth_checks = LazyModule("portico.server.components.auth_checks")


class PromptOptions(TypedDict, total=False):
    """The keywords of `@server.prompt`, which says what each of them means."""

    name: str | None
    title: str | None
    description: str | None
    version: str | None
    icons: Sequence[Any] | None
    tags: Collection[str]
    meta: Mapping[str, Any] | None
    inline: bool
    auth: Any


class Prompt:
    """One prompt of a server: a function, and the options of `@server.prompt`.

    Its arguments arrive as text and are read as the types the function asks for.
    """

    # The service that it came with; empty for one of the server's own.
    owner = ""

    def __init__(self, fn: Callable[..., Any], **options: Unpack[PromptOptions]) -> None:
        check_options("a prompt", options, PromptOptions)
        self.fn = fn
        self.name = given_name(options.get("name"), fn, "a prompt")
        self.version = options.get("version")
        # Whether a call may be answered: a function, or several.
        self.auth = options.get("auth")
        self.body = Body(fn, self.name, inline=options.get("inline", False))
        description = options.get("description")
        self.definition = Definition(
            name=self.name,
            title=options.get("title"),
            description=description if description is not None else self.body.signature.summary or None,
            arguments=self._arguments() or None,
            icons=checked_icons(options.get("icons")),
            meta=described_meta(options) or None,
        )

    @classmethod
    def from_function(cls, fn: Callable[..., Any], **options: Unpack[PromptOptions]) -> Prompt:
        """The official SDK's word for `Prompt(fn, …)`."""
        return cls(fn, **options)

    def _arguments(self) -> list[PromptArgument]:
        schema = self.body.signature.input_schema
        required = schema.get("required", ())
        return [
            PromptArgument(name=name, description=one.get("description"), required=name in required)
            for name, one in schema.get("properties", {}).items()
        ]

    def require(self, scopes: frozenset[str]) -> None:
        """What its service asks of a principal that has scopes."""
        self.body.service_scopes = scopes

    async def get(self, call: Call, params: GetPromptParams, runtime: Runtime) -> Any:
        if self.auth is not None:
            await auth_checks.allow(self.auth, call, self)
        arguments = msgspec.json.encode(params.arguments or {})
        try:
            value = await self.body.run(call, runtime, params, params.name, arguments)
        except ArgumentError as mistake:
            raise InvalidParams(str(mistake), {"problems": mistake.problems}) from None
        value = ours(value)
        if isinstance(value, InputRequiredResult | GetPromptResult):
            return value
        described = self.definition.description
        if type(value).__name__ == "PromptResult":
            described, meta = value.description or described, UNSET if value.meta is None else value.meta
            return GetPromptResult(description=described, messages=to_messages(value.messages, self.name), meta=meta)
        return GetPromptResult(description=described, messages=to_messages(value, self.name))


def to_messages(value: Any, name: str) -> list[PromptMessage]:
    """Messages of anything: a text is said by the user, and so is each member of a list."""
    parts = value if isinstance(value, list | tuple) else [value]
    return [_message(part, name) for part in parts]


class Message:
    """What one side says in a prompt: a text, or anything that can be a content block."""

    def __init__(self, content: Any, role: Literal["user", "assistant"] = "user") -> None:
        self.content = content
        self.role = role


class UserMessage(Message):
    """What the user says."""


class AssistantMessage(Message):
    """What the model says."""

    def __init__(self, content: Any, role: Literal["assistant"] = "assistant") -> None:
        super().__init__(content, role)


def _message(value: Any, name: str) -> PromptMessage:
    value = ours(value)
    if isinstance(value, PromptMessage):
        return value
    if isinstance(value, Mapping) and value.keys() >= {"role", "content"}:
        return PromptMessage(value["role"], to_block(value["content"], f"prompt://{name}"))
    if hasattr(value, "role") and hasattr(value, "content"):
        return PromptMessage(value.role, to_block(value.content, f"prompt://{name}"))
    return PromptMessage("user", to_block(value, f"prompt://{name}"))
