"""completion/complete."""

from __future__ import annotations

from msgspec import Struct

from portico.protocol.content import Result
from portico.protocol.meta import BoundedName, RequestParams

# server/utilities/completion: "Maximum 100 items per response".
MAX_COMPLETION_VALUES = 100


class PromptReference(Struct, tag_field="type", tag="ref/prompt"):
    name: BoundedName


class ResourceReference(Struct, tag_field="type", tag="ref/resource"):
    uri: BoundedName


class CompletionArgument(Struct):
    name: BoundedName
    value: BoundedName


class CompletionContext(Struct, omit_defaults=True):
    arguments: dict[str, str] | None = None


class CompleteParams(RequestParams):
    ref: PromptReference | ResourceReference
    argument: CompletionArgument
    context: CompletionContext | None = None


class Completion(Struct, omit_defaults=True, rename="camel"):
    values: list[str]
    total: int | None = None
    has_more: bool | None = None


class CompleteResult(Result, kw_only=True):
    completion: Completion
