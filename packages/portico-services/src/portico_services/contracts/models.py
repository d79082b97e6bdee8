"""The messages of the contract as pydantic models."""

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

from portico.jsonschema import Schema, schema
from portico_services.contracts import schemas
from portico_services.contracts.definitions import CONTRACT_VERSION
from portico_services.contracts.invocation_names import INVOCATION_PATTERN
from portico_services.contracts.outcomes import is_object
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
    from typing_extensions import TypeVar  # comes with pydantic, and knows defaults before Python 3.13
except ImportError:
    raise ImportError(
        "the models of portico_services.contracts.api need pydantic, which is not installed: "
        "pip install 'portico-services[contracts]'"
    ) from None

Status = Literal["success", "failure", "no_change_needed", "partial_success"]

Data = TypeVar("Data", default=dict[str, Any])

# The member of a request's `_meta` that a context travels in.
CONTEXT_KEY = "portico/context"


class PublishedModel(BaseModel):
    """A model whose JSON Schema is the published one, of draft-07."""

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
        """Refuse NaN and infinity that came in after the validation: pydantic would write null for them."""
        _require_finite(self.__dict__)
        _require_finite(self.model_extra)
        written: dict[str, Any] = handler(self)
        return written


def _require_finite(value: Any) -> None:
    """Raise ValueError for NaN and infinity anywhere in a value: JSON has no such numbers (RFC 8259, section 6)."""
    waiting = [value]
    # A value may contain itself. That is refused where it is written.
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
    """A call of a tool: its invocation name, and what it is given. Nothing else may stand beside them."""

    model_config = ConfigDict(extra="forbid", title="MCP Tool Call", frozen=True)
    document: ClassVar[Mapping[str, Any]] = schemas.TOOL_CALL

    tool_name: Annotated[str, Field(pattern=INVOCATION_PATTERN, description="The tool's invocation name")]
    arguments: Annotated[dict[str, Any], Field(description="What the tool is given")]


class MCPErrorDetail(PublishedModel):
    """What went wrong. `error_type` is one of the eight of `ERROR_TYPES` where one of them fits."""

    model_config = ConfigDict(extra="allow", title="MCP Error Detail", frozen=True)
    document: ClassVar[Mapping[str, Any]] = schemas.ERROR_DETAIL

    error_type: Annotated[str, Field(min_length=1, examples=list(schemas.ERROR_TYPES))]
    error_message: str
    error_details: dict[str, Any] | str | None = None


class MCPToolResult(PublishedModel, Generic[Data]):
    """The result of a call. A failure has an error and no data; any other result may have both or neither.

    `MCPToolResult[Report]` declares what `data` holds: a class with fields, a TypedDict, or a dict with typed values.
    Unknown members are retained: a newer tool may report more than its caller was written for.
    """

    model_config = ConfigDict(extra="allow", title="MCP Tool Result", frozen=True)
    document: ClassVar[Mapping[str, Any]] = schemas.TOOL_RESULT

    status: Status
    data: Data | None = None
    error: MCPErrorDetail | None = None
    explanation: str | None = None

    def __init__(self, /, status: Status = "success", **members: Any) -> None:
        """A result of our own may leave out that it is a success; one that comes from elsewhere has to say it."""
        super().__init__(**{"status": status, **members})

    # So pydantic does not come by here with what it reads.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    if not TYPE_CHECKING:

        def __class_getitem__(cls, item: Any) -> Any:
            return super().__class_getitem__(_readable(item))

    @classmethod
    def model_json_schema(cls, *arguments: Any, **options: Any) -> dict[str, Any]:
        data = cls._data_schema()
        return super().model_json_schema(*arguments, **options) if data is None else result_schema(data)

    @classmethod
    def _data_schema(cls) -> Schema | None:
        """Return the schema of the declared type of `data`; None for any object."""
        declared = [one for one in get_args(cls.model_fields["data"].annotation) if one is not type(None)]
        if len(declared) != 1 or isinstance(declared[0], typing.TypeVar):
            return None
        kind = get_args(declared[0])[0] if get_origin(declared[0]) is Annotated else declared[0]
        return None if kind in (dict, dict[str, Any]) else schema(kind, output=True)

    @classmethod
    def __tool_output_schema__(cls, data: Schema) -> Schema:
        """Return the output schema of a tool whose author declares the schema of the data."""
        return result_schema(data)

    def __tool_error__(self) -> dict[str, Any] | None:
        """A tool that returns a failure has failed, for every client."""
        return None if self.error is None or self.status != "failure" else self.error.model_dump(mode="json")

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if "failure" in self.status:
            if self.error is None:
                raise ValueError(f"a result with the status {self.status!r} says in `error` what went wrong")
            if self.data is not None:
                raise ValueError(f"a result with the status {self.status!r} has no `data`")
        return self


def _readable(kind: Any) -> Any:
    """Return a type of `data` that pydantic can read and write. Raises TypeError for one that is not an object."""
    if isinstance(kind, typing.TypeVar):
        return kind
    if kind in (dict[str, Any], dict, Any):
        return dict[str, Any]
    if not is_object(schema(kind, output=True)):
        raise TypeError(f"the data of an MCPToolResult must be an object, got {kind}: put the value into a field")
    bare = get_origin(kind) or kind
    # pydantic knows no Struct, and before Python 3.12 none of typing's own TypedDicts.
    if not is_typeddict(bare) and not (isinstance(bare, type) and issubclass(bare, msgspec.Struct)):
        return kind
    return Annotated[kind, _ReadByMsgspec(kind)]


class _ReadByMsgspec:
    """Has pydantic leave reading and writing a type to msgspec."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        written = core_schema.plain_serializer_function_ser_schema(msgspec.to_builtins)
        return core_schema.no_info_plain_validator_function(self._read, serialization=written)

    def _read(self, value: Any) -> Any:
        return msgspec.convert(msgspec.to_builtins(value), self._kind)


class ContractContext(PublishedModel):
    """What an agent tells a tool about the circumstances of a call. It travels beside the arguments, in `_meta`."""

    model_config = ConfigDict(extra="allow", title="MCP Contract Context")
    document: ClassVar[Mapping[str, Any]] = schemas.CONTEXT

    # Whatever was written for 1.0.0 works with every 1.x.x, and with nothing else.
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
            raise ValueError("a deadline needs its time zone, as in 2024-01-15T10:30:00Z")
        return self

    @classmethod
    def read(cls, meta: Mapping[str, Any]) -> Self | None:
        """The context in a request's `_meta`, such as `ctx.meta`; None if there is none. Raises pydantic's
        ValidationError."""
        said = meta.get(CONTEXT_KEY)
        return None if said is None else cls.model_validate(said)

    def meta(self) -> dict[str, Any]:
        """The `_meta` that carries it."""
        return {CONTEXT_KEY: self.model_dump(mode="json", exclude_none=True)}

    def plain(self) -> dict[str, Any]:
        """What is said in it."""
        return self.model_dump(exclude_none=True)
