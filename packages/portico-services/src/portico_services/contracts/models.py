"""Pydantic models of the contract's messages."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from copy import deepcopy
from datetime import datetime
from decimal import Decimal
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, Self, get_args, get_origin, is_typeddict
from uuid import uuid4

import msgspec

from portico.jsonschema import Schema, schema_for_type
from portico_services.contracts import schemas
from portico_services.contracts.definitions import CONTRACT_VERSION
from portico_services.contracts.invocation_names import INVOCATION_PATTERN
from portico_services.contracts.outcomes import has_object_output
from portico_services.contracts.result_schema import result_schema

try:
    from pydantic import (
        BaseModel,
        ConfigDict,
        Field,
        SerializerFunctionWrapHandler,
        model_serializer,
        model_validator,
    )
    from pydantic_core import core_schema
    from typing_extensions import TypeVar  # Installed with pydantic; supports TypeVar defaults before Python 3.13.
except ImportError:
    raise ImportError(
        "the models of portico_services.contracts.api need pydantic, which is not installed: "
        "pip install 'portico-services[contracts]'"
    ) from None

ResultStatus = Literal["success", "failure", "no_change_needed", "partial_success"]

Data = TypeVar("Data", default=dict[str, Any])

# Member of a request's `_meta` that carries the context.
CONTEXT_KEY = "portico/context"


class PublishedModel(BaseModel):
    """Model whose JSON Schema is the published draft-07 schema."""

    document: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def model_json_schema(cls, *arguments: Any, **options: Any) -> dict[str, Any]:
        return deepcopy(dict(cls.document)) or super().model_json_schema(*arguments, **options)

    @model_validator(mode="after")
    def _has_only_numbers(self) -> Self:
        _require_finite(self.__dict__)
        _require_finite(self.model_extra)
        return self

    @model_serializer(mode="wrap")
    def _only_numbers(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Reject NaN and infinity that were assigned after validation: pydantic would serialize them as null."""
        _require_finite(self.__dict__)
        _require_finite(self.model_extra)
        written: dict[str, Any] = handler(self)
        return written


def _require_finite(value: Any) -> None:
    """Raise ValueError for NaN and infinity anywhere in a value: JSON has no such numbers (RFC 8259, section 6)."""
    # A loop instead of recursion: arguments may be nested more deeply than Python's stack.
    waiting = [value]
    # A value may contain itself; serialization rejects that later.
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        if isinstance(value, float | Decimal):
            if not isfinite(value):
                raise ValueError(f"numbers must be finite, got {value}: JSON has neither NaN nor infinity")
        elif isinstance(value, Mapping | list | tuple | set | frozenset) and id(value) not in seen:
            seen.add(id(value))
            waiting.extend(value.values() if isinstance(value, Mapping) else value)


class MCPToolCall(PublishedModel):
    """Tool call: an invocation name and the arguments. Other members are rejected."""

    model_config = ConfigDict(extra="forbid", title="MCP Tool Call", frozen=True)
    document: ClassVar[Mapping[str, Any]] = schemas.TOOL_CALL_SCHEMA

    tool_name: Annotated[str, Field(pattern=INVOCATION_PATTERN, description="The tool's invocation name")]
    arguments: Annotated[dict[str, Any], Field(description="Tool arguments")]


class MCPErrorDetail(PublishedModel):
    """Error of a call. `error_type` is one of the eight types of `ERROR_TYPES` if one of them fits."""

    model_config = ConfigDict(extra="allow", title="MCP Error Detail", frozen=True)
    document: ClassVar[Mapping[str, Any]] = schemas.ERROR_DETAIL_SCHEMA

    error_type: Annotated[str, Field(min_length=1, examples=list(schemas.ERROR_TYPES))]
    error_message: str
    error_details: dict[str, Any] | str | None = None


class MCPToolResult(PublishedModel, Generic[Data]):
    """Result of a call. A failure has an error and no data; any other result may have both or neither.

    `MCPToolResult[Report]` declares the type of `data`: a class with fields, a TypedDict, or a dict with typed values.
    Unknown members are retained: a newer tool may report more than its caller was written for.
    """

    model_config = ConfigDict(extra="allow", title="MCP Tool Result", frozen=True)
    document: ClassVar[Mapping[str, Any]] = schemas.TOOL_RESULT_SCHEMA

    status: ResultStatus
    data: Data | None = None
    error: MCPErrorDetail | None = None
    explanation: str | None = None

    def __init__(self, /, status: ResultStatus = "success", **members: Any) -> None:
        """Create a result; the status defaults to `success`. Results that are parsed from JSON must contain it."""
        super().__init__(**{"status": status, **members})

    # Pydantic validates input without calling this __init__, so the default does not apply to parsed data.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    if not TYPE_CHECKING:

        def __class_getitem__(cls, item: Any) -> Any:
            return super().__class_getitem__(_require_supported_type(item))

    @classmethod
    def model_json_schema(cls, *arguments: Any, **options: Any) -> dict[str, Any]:
        data = cls._data_schema()
        return super().model_json_schema(*arguments, **options) if data is None else result_schema(data)

    @classmethod
    def _data_schema(cls) -> Schema | None:
        """Return the schema of the declared type of `data`, or None if any object is accepted."""
        # The annotation is `Data | None`; the part that is not None is the declared type.
        declared = [arg for arg in get_args(cls.model_fields["data"].annotation) if arg is not type(None)]
        if len(declared) != 1 or isinstance(declared[0], typing.TypeVar):
            return None
        kind = get_args(declared[0])[0] if get_origin(declared[0]) is Annotated else declared[0]
        return None if kind in (dict, dict[str, Any]) else schema_for_type(kind, for_output=True)

    @classmethod
    def __tool_output_schema__(cls, data: Schema) -> Schema:
        """Return the output schema of a tool whose author declares the schema of the data."""
        return result_schema(data)

    def __tool_error__(self) -> dict[str, Any] | None:
        """Return the error of a failure, so that every client sees the tool call as failed; None for other results."""
        return None if self.error is None or self.status != "failure" else self.error.model_dump(mode="json")

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        # Consistency is enforced in the model, so that a handler cannot return a result that callers would misread.
        if "failure" in self.status:
            if self.error is None:
                raise ValueError(f"a result with status {self.status!r} must have an `error`")
            if self.data is not None:
                raise ValueError(f"a result with status {self.status!r} must not have `data`")
        return self


def _require_supported_type(kind: Any) -> Any:
    """Return a type for `data` that pydantic can validate and serialize. Raises TypeError if it is not an
    object type.
    """
    if isinstance(kind, typing.TypeVar):
        return kind
    if kind in (dict[str, Any], dict, Any):
        return dict[str, Any]
    if not has_object_output(schema_for_type(kind, for_output=True)):
        raise TypeError(f"the data of an MCPToolResult must be an object, got {kind}: put the value into a field")
    bare = get_origin(kind) or kind
    # Pydantic does not support Struct, and before Python 3.12 not typing's own TypedDict.
    if not is_typeddict(bare) and not (isinstance(bare, type) and issubclass(bare, msgspec.Struct)):
        return kind
    return Annotated[kind, _ReadByMsgspec(kind)]


class _ReadByMsgspec:
    """Annotation that makes pydantic delegate validation and serialization of a type to msgspec."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        written = core_schema.plain_serializer_function_ser_schema(msgspec.to_builtins)
        return core_schema.no_info_plain_validator_function(self._read, serialization=written)

    def _read(self, value: Any) -> Any:
        return msgspec.convert(msgspec.to_builtins(value), self._kind)


class ContractContext(PublishedModel):
    """Context that an agent passes to a tool along with a call, in `_meta`."""

    model_config = ConfigDict(extra="allow", title="MCP Contract Context")
    document: ClassVar[Mapping[str, Any]] = schemas.CONTEXT_SCHEMA

    # A caller written for 1.0.0 works with every 1.x.x and with no other version.
    contract_version: Annotated[str, Field(pattern=r"^1\.(0|[1-9]\d*)\.(0|[1-9]\d*)$")] = CONTRACT_VERSION
    correlation_id: Annotated[str, Field(max_length=200)] = Field(default_factory=lambda: uuid4().hex)
    caller: str | None = None
    conversation_id: str | None = None
    locale: str | None = None
    timezone: str | None = None
    deadline: datetime | None = None
    roots: list[str] = Field(default_factory=list)
    dry_run: bool = False
    metadata: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_a_zone(self) -> Self:
        if self.deadline is not None and self.deadline.tzinfo is None:
            raise ValueError("deadline must have a time zone, as in 2024-01-15T10:30:00Z")
        return self

    @classmethod
    def from_meta(cls, meta: Mapping[str, Any]) -> Self | None:
        """Return the context in a request's `_meta` (`ctx.meta`), or None if it is absent. Raises pydantic's
        ValidationError.
        """
        value = meta.get(CONTEXT_KEY)
        return None if value is None else cls.model_validate(value)

    def to_meta(self) -> dict[str, Any]:
        """Return the `_meta` that carries this context."""
        return {CONTEXT_KEY: self.model_dump(mode="json", exclude_none=True)}

    def to_json(self) -> dict[str, Any]:
        """Return the context as a dict without unset members."""
        return self.model_dump(exclude_none=True)
