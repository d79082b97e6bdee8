"""The messages of the contract as pydantic models."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal, Self
from uuid import uuid4

from portico.services.contracts import published
from portico.services.contracts.definitions import CONTRACT_VERSION
from portico.services.contracts.invocations import INVOCATION_PATTERN

try:
    from pydantic import BaseModel, ConfigDict, Field, model_validator
except ImportError:
    raise ImportError(
        "the models of portico.contracts are pydantic's, and pydantic is not installed: pip install 'portico[pydantic]'"
    ) from None

Status = Literal["success", "failure", "no_change_needed", "partial_success"]

# The member of a request's `_meta` that a context travels in.
CONTEXT_KEY = "portico/context"


class PublishedModel(BaseModel):
    """A model whose JSON Schema is the published one, of draft-07."""

    document: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def model_json_schema(cls, *arguments: Any, **options: Any) -> dict[str, Any]:
        return deepcopy(dict(cls.document)) or super().model_json_schema(*arguments, **options)


class MCPToolCall(PublishedModel):
    """A call of a tool: its invocation name, and what it is given. Nothing else may stand beside them."""

    model_config = ConfigDict(extra="forbid", title="MCP Tool Call", frozen=True)
    document: ClassVar[Mapping[str, Any]] = published.TOOL_CALL

    tool_name: Annotated[str, Field(pattern=INVOCATION_PATTERN, description="The tool's invocation name")]
    arguments: Annotated[dict[str, Any], Field(description="What the tool is given")]


class MCPErrorDetail(PublishedModel):
    """What went wrong. `error_type` is one of the eight of `ERROR_TYPES` where one of them fits."""

    model_config = ConfigDict(extra="allow", title="MCP Error Detail", frozen=True)
    document: ClassVar[Mapping[str, Any]] = published.ERROR_DETAIL

    error_type: Annotated[str, Field(min_length=1, examples=list(published.ERROR_TYPES))]
    error_message: str
    error_details: dict[str, Any] | str | None = None


class MCPToolResult(PublishedModel):
    """What came of a call. A failure has an error and no data; anything else may have both or neither.

    Members that it does not know are kept: an answer may say more than its caller was written for.
    """

    model_config = ConfigDict(extra="allow", title="MCP Tool Result", frozen=True)
    document: ClassVar[Mapping[str, Any]] = published.TOOL_RESULT

    status: Status
    data: dict[str, Any] | None = None
    error: MCPErrorDetail | None = None
    explanation: str | None = None

    def __init__(self, /, status: Status = "success", **members: Any) -> None:
        """A result of our own may leave out that it is a success; one that comes from elsewhere has to say it."""
        super().__init__(**{"status": status, **members})

    # So pydantic does not come by here with what it reads.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

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


class ContractContext(PublishedModel):
    """What an agent tells a tool about the circumstances of a call. It travels beside the arguments, in `_meta`."""

    model_config = ConfigDict(extra="allow", title="MCP Contract Context")
    document: ClassVar[Mapping[str, Any]] = published.CONTEXT

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
