"""Tool results and their validation against output schemas."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Generic

import msgspec
from msgspec import UNSET, Struct

from portico.jsonschema.validation import (
    ACCEPT_ALL,
    InvalidSchema,
    SchemaTooExpensive,
    SchemaValidator,
    convert_formats,
    create_validator,
    has_formats,
)
from portico.protocol.content import TextContent
from portico.protocol.errors import ProtocolError, ToolError, UsageError
from portico.protocol.tools import ERROR_META_KEY, WRAP_RESULT_KEY, ReceivedToolResult, Tool

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")

_TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
# Everything up to the beginning of an unterminated string.
_WHOLE = re.compile(rb'(?:[^"]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
_PIECE = 2**20


class CallToolResult(Struct, Generic[T]):
    """Result of a tool call: `content` blocks for a model, `structured` for programs, `data` for the caller."""

    content: list[Any]
    structured: Any = None
    is_error: bool = False
    meta: dict[str, Any] | None = None
    # The converted value: of the requested type, or according to the output schema, or the text.
    data: T = None  # type: ignore[assignment]

    @property
    def structured_content(self) -> Any:
        """Return `structured` under the name that the protocol and other clients use."""
        return self.structured

    @property
    def text(self) -> str:
        """Return the concatenated text blocks."""
        return "".join(block.text for block in self.content if isinstance(block, TextContent))


def tool_error(result: CallToolResult[Any]) -> ToolError:
    """Return the ToolError of a failed result, with the `error_type`, `details` and `retryable` of its `_meta`.

    The type is `ToolExecutionError` if the server states none, so that callers can compare types without special cases.
    """
    about = (result.meta or {}).get(ERROR_META_KEY)
    if not isinstance(about, dict):
        return ToolError(result.text, error_type=UNSPECIFIED_ERROR_TYPE)
    # The metadata is from a remote server, so every member may have any type.
    kind, retryable = about.get("error_type"), about.get("retryable")
    return ToolError(
        result.text,
        error_type=kind if isinstance(kind, str) and kind else UNSPECIFIED_ERROR_TYPE,
        details=_error_details(about),
        retryable=retryable if isinstance(retryable, bool) else None,
    )


def _error_details(about: dict[str, Any]) -> dict[str, Any]:
    """Return the details next to the error type; an MCPErrorDetail nests them under `error_details`."""
    details = {name: value for name, value in about.items() if name not in _KNOWN_MEMBERS}
    inner = about.get("error_details")
    return {**details, **inner} if isinstance(inner, dict) else details if inner is None else {**details, "text": inner}


UNSPECIFIED_ERROR_TYPE = "ToolExecutionError"
_KNOWN_MEMBERS = frozenset({"error_type", "error_message", "error_details", "retryable"})


class OutputValidationError(ProtocolError):
    """A result does not match the output schema of its tool."""


class ToolMetadata(Struct):
    """Metadata of one tool that affects its calls and results."""

    schema: dict[str, Any] | None
    # Whether a repeated call has no further effect, according to the server.
    repeatable: bool
    # 2025-11-25, basic/utilities/tasks: "forbidden", "optional" or "required".
    task_support: str = "forbidden"
    # The validator, or the reason why the schema is unusable, or None before the first use.
    _checker: SchemaValidator | str | None = None
    # None until computed.
    _has_formats: bool | None = None

    @property
    def is_wrapped(self) -> bool:
        """Return whether `{"result": …}` wraps a value that is not an object."""
        return self.schema is not None and bool(self.schema.get(WRAP_RESULT_KEY))

    @property
    def has_formats(self) -> bool:
        """Return whether the schema has formats such as dates or UUIDs. Most have none and need no conversion."""
        if self._has_formats is None:
            self._has_formats = has_formats(self.schema or {})
        return self._has_formats

    def find_violation(self, structured: Any) -> str | None:
        """Return why a result does not match the schema, or None. Raises InvalidSchema if the schema is unusable."""
        if self._checker is None:
            self._checker = _checker_for(self.schema or {})
        if isinstance(self._checker, str):
            raise InvalidSchema(self._checker)
        try:
            if self._checker.is_valid(structured):
                return None
        # A schema that is too expensive to check is a reason to skip validation, not to reject the result.
        except SchemaTooExpensive:
            return None
        return self._checker.reason(structured)


def _checker_for(schema: dict[str, Any]) -> SchemaValidator | str:
    try:
        return create_validator(schema)
    except SchemaTooExpensive:
        # Output schemas are chosen by the server. One that takes seconds to compile must not block the client.
        return ACCEPT_ALL
    except InvalidSchema as failure:
        return str(failure)


def exceeds_value_count(data: bytes, limit: int) -> bool:
    """Return whether JSON contains more than `limit` values, estimated from its separators."""
    if _separators(data) <= limit:
        return False
    # Strings contain commas too, so remove them and count again. Working in pieces bounds the memory of the copies.
    count, at, inside = 0, 0, False
    while at < len(data):
        end = at + _PIECE
        # A piece must not end inside an escape sequence such as `\"`.
        while data[end - 1 : end] == b"\\":
            end += 1
        piece = b'"' + data[at:end] if inside else data[at:end]
        match = _WHOLE.match(piece)
        assert match is not None
        inside = match.end() < len(piece)
        count += _separators(_TEXT.sub(b"", piece[: match.end()]))
        if count > limit:
            return True
        at = end
    return False


def _separators(data: bytes) -> int:
    return data.count(b",") + data.count(b"[") + data.count(b"{")


def read_tool_metadata(tool: Tool) -> ToolMetadata:
    """Return the metadata of a listed tool."""
    hints = tool.annotations
    harmless = hints is not None and bool(hints.read_only_hint or hints.idempotent_hint)
    return ToolMetadata(tool.output_schema, harmless, str((tool.execution or {}).get("taskSupport", "forbidden")))


def parse_tool_result(
    data: ReceivedToolResult, result_type: Any, metadata: ToolMetadata | None, name: str, *, validate: bool = True
) -> CallToolResult[Any]:
    """Convert a received result for the caller. Raises `OutputValidationError` if it violates the output schema."""
    structured = None if data.structured_content is UNSET else data.structured_content
    meta = None if data.meta is UNSET else data.meta
    result: CallToolResult[Any] = CallToolResult(data.content, structured, data.is_error, meta)
    has_structured = data.structured_content is not UNSET
    # Errors are not validated: the output schema describes successful results only.
    if data.is_error:
        result.data = structured if has_structured else result.text or None
        return result
    value: Any = structured if has_structured else result.text or None
    if metadata is not None and metadata.schema is not None:
        if validate:
            _check(structured, has_structured, metadata, name)
        if has_structured:
            # With an explicit type the caller decides what is a date; the schema need not agree.
            value = convert_formats(value, metadata.schema) if result_type is None and metadata.has_formats else value
            value = _unwrap_result(value, metadata)
    elif has_structured and metadata is None and _is_wrapped(value, result.text):
        value = value["result"]
    result.data = (
        value if result_type is None else convert_data(value, result_type, is_present=has_structured, name=name)
    )
    return result


def _check(structured: Any, is_present: bool, promised: ToolMetadata, name: str) -> None:
    """Validate structured content: servers must conform to their output schema (2026-07-28, server/tools, Output
    Schema).
    """
    if not is_present:
        raise OutputValidationError(f"{name} has an output schema but returned no structured content")
    try:
        reason = promised.find_violation(structured)
    except InvalidSchema as failure:
        raise ProtocolError(f"{name}: unusable output schema: {failure}") from None
    if reason is not None:
        raise OutputValidationError(f"{name} returned a result that violates its output schema: {reason}")


def _is_wrapped(structured: Any, text: str) -> bool:
    """Return whether structured content is `{"result": …}` around a value, when no schema is available.

    That happens for a tool that is not listed under the called name. Servers repeat the unwrapped value as text.
    """
    if not isinstance(structured, dict) or structured.keys() != {"result"}:
        return False
    value = structured["result"]
    try:
        return bool(text == value if isinstance(value, str) else msgspec.json.decode(text) == value)
    except (ValueError, RecursionError):
        return False


def _unwrap_result(value: Any, promised: ToolMetadata) -> Any:
    """Return the value without the `{"result": …}` object that servers put around non-object values."""
    return value["result"] if promised.is_wrapped and isinstance(value, dict) and "result" in value else value


def convert_data(value: Any, returns: Any, *, is_present: bool, name: str) -> Any:
    """Convert a value to the requested type. Text is decoded as JSON unless str is requested."""
    try:
        if not is_present and returns is not str and isinstance(value, str):
            return msgspec.json.decode(value, type=returns, dec_hook=_model)
        return msgspec.convert(value, returns, strict=False, dec_hook=_model)
    except (ValueError, RecursionError) as reason:
        expected = getattr(returns, "__name__", returns)
        raise ProtocolError(f"{name} returned a result that does not match {expected}: {str(reason)[:300]}") from None
    except TypeError as reason:
        raise UsageError(f"result_type must be a type that a result can be converted to: {reason}") from None


def _model(kind: type[Any], value: Any) -> Any:
    """Convert types that msgspec does not support: pydantic models."""
    if hasattr(kind, "model_validate"):
        return kind.model_validate(value)
    raise TypeError(f"{kind} is not supported")
