"""What a tool gave, and what it promised to give."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Generic

import msgspec
from msgspec import UNSET, Struct

from portico.jsonschema.validation import UNCHECKED, Checker, Unbounded, Unfit, checker, has_formats, with_formats
from portico.protocol.content import TextContent
from portico.protocol.errors import ProtocolError, ToolError, UsageError
from portico.protocol.tools import ERROR, WRAPPED, ReceivedToolResult, Tool

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")

_TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
# All of it up to a text that does not end.
_WHOLE = re.compile(rb'(?:[^"]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
_PIECE = 2**20


class CallToolResult(Struct, Generic[T]):
    """What a tool gave: blocks for a model, `structured` for programs, `data` for you."""

    content: list[Any]
    structured: Any = None
    is_error: bool = False
    meta: dict[str, Any] | None = None
    # The value itself: of the type that was asked for, or as the tool's output schema has it, or the text.
    data: T = None  # type: ignore[assignment]

    @property
    def structured_content(self) -> Any:
        """Return `structured`, by the name that the protocol and other clients have for it."""
        return self.structured

    @property
    def text(self) -> str:
        return "".join(block.text for block in self.content if isinstance(block, TextContent))


def tool_error(result: CallToolResult[Any]) -> ToolError:
    """Return the error of a failed result, with the `kind`, `details` and `retryable` that its `_meta` reports."""
    about = (result.meta or {}).get(ERROR)
    if not isinstance(about, dict):
        return ToolError(result.text)
    kind, retryable = about.get("error_type"), about.get("retryable")
    return ToolError(
        result.text,
        kind=kind if isinstance(kind, str) else None,
        details=_error_details(about),
        retryable=retryable if isinstance(retryable, bool) else None,
    )


def _error_details(about: dict[str, Any]) -> dict[str, Any]:
    """Return the members that ToolError puts beside its kind; an MCPErrorDetail has them under `error_details`."""
    details = {name: value for name, value in about.items() if name not in _KNOWN_MEMBERS}
    inner = about.get("error_details")
    return {**details, **inner} if isinstance(inner, dict) else details if inner is None else {**details, "text": inner}


_KNOWN_MEMBERS = frozenset({"error_type", "error_message", "error_details", "retryable"})


class BrokenPromise(ProtocolError):
    """A result that does not fit what its tool promised, as far as that is known."""


class Promise(Struct):
    """What one tool says about its calls and its results."""

    schema: dict[str, Any] | None
    # To call it twice is as good as once, if the server is to be believed.
    repeatable: bool
    # 2025-11-25, basic/utilities/tasks: "forbidden", "optional" or "required".
    task_support: str = "forbidden"
    # Why there is none, where the schema cannot be used.
    _checker: Checker | str | None = None
    # None until it was looked for.
    _has_formats: bool | None = None

    @property
    def wraps(self) -> bool:
        """Whether `{"result": …}` is only the wrapping of a value that is no object."""
        return self.schema is not None and bool(self.schema.get(WRAPPED))

    @property
    def has_formats(self) -> bool:
        """Whether there may be dates, times or ids in a result. Most schemas have none, and need no second look."""
        if self._has_formats is None:
            self._has_formats = has_formats(self.schema or {})
        return self._has_formats

    def broken_by(self, structured: Any) -> str | None:
        """What is wrong with a result, or None. Raises Unfit where the schema cannot be used."""
        if self._checker is None:
            self._checker = _checker_for(self.schema or {})
        if isinstance(self._checker, str):
            raise Unfit(self._checker)
        try:
            if self._checker.is_valid(structured):
                return None
        except Unbounded:
            return None
        return self._checker.reason(structured)


def _checker_for(schema: dict[str, Any]) -> Checker | str:
    try:
        return checker(schema)
    except Unbounded:
        return UNCHECKED
    except Unfit as failure:
        return str(failure)


def has_more_values(said: bytes, most: int) -> bool:
    """Whether JSON has more values than that, going by what separates them."""
    if _separators(said) <= most:
        return False
    # Texts have commas too. A piece at a time, for what is cut out of it takes room as well.
    count, at, inside = 0, 0, False
    while at < len(said):
        end = at + _PIECE
        while said[end - 1 : end] == b"\\":
            end += 1
        piece = b'"' + said[at:end] if inside else said[at:end]
        whole = _WHOLE.match(piece)
        assert whole is not None
        inside = whole.end() < len(piece)
        count += _separators(_TEXT.sub(b"", piece[: whole.end()]))
        if count > most:
            return True
        at = end
    return False


def _separators(said: bytes) -> int:
    return said.count(b",") + said.count(b"[") + said.count(b"{")


def promise(tool: Tool) -> Promise:
    hints = tool.annotations
    harmless = hints is not None and bool(hints.read_only_hint or hints.idempotent_hint)
    return Promise(tool.output_schema, harmless, str((tool.execution or {}).get("taskSupport", "forbidden")))


def read(
    said: ReceivedToolResult, returns: Any, promised: Promise | None, name: str, *, validate: bool = True
) -> CallToolResult[Any]:
    """The result as its caller wants it. What breaks the tool's own promise is refused."""
    structured = None if said.structured_content is UNSET else said.structured_content
    meta = None if said.meta is UNSET else said.meta
    result: CallToolResult[Any] = CallToolResult(said.content, structured, said.is_error, meta)
    given = said.structured_content is not UNSET
    if said.is_error:
        result.data = structured if given else result.text or None
        return result
    value: Any = structured if given else result.text or None
    if promised is not None and promised.schema is not None:
        if validate:
            _check(structured, given, promised, name)
        if given:
            # A caller who gives a type says there what is a date; the schema need not agree.
            value = with_formats(value, promised.schema) if returns is None and promised.has_formats else value
            value = _unwrapped(value, promised)
    result.data = value if returns is None else typed(value, returns, given=given, name=name)
    return result


def _check(structured: Any, given: bool, promised: Promise, name: str) -> None:
    """2026-07-28, server/tools, Output Schema: servers must keep to it, and clients should look."""
    if not given:
        raise BrokenPromise(f"{name} has an output schema, and gave no structured content")
    try:
        reason = promised.broken_by(structured)
    except Unfit as failure:
        raise ProtocolError(f"{name}: its output schema cannot be used: {failure}") from None
    if reason is not None:
        raise BrokenPromise(f"{name} gave a result that breaks its own output schema: {reason}")


def _unwrapped(value: Any, promised: Promise) -> Any:
    """The value, out of the object that older revisions put around it."""
    return value["result"] if promised.wraps and isinstance(value, dict) and "result" in value else value


def typed(value: Any, returns: Any, *, given: bool, name: str) -> Any:
    """A value of the type the caller asked for. A text is taken for JSON unless a text was asked for."""
    try:
        if not given and returns is not str and isinstance(value, str):
            return msgspec.json.decode(value, type=returns, dec_hook=_model)
        return msgspec.convert(value, returns, strict=False, dec_hook=_model)
    except (ValueError, RecursionError) as reason:
        expected = getattr(returns, "__name__", returns)
        raise ProtocolError(f"{name} gave a result that does not fit {expected}: {str(reason)[:300]}") from None
    except TypeError as reason:
        raise UsageError(f"`returns` is no type that a result can be given: {reason}") from None


def _model(kind: type[Any], value: Any) -> Any:
    """What msgspec does not know: the models of pydantic."""
    if hasattr(kind, "model_validate"):
        return kind.model_validate(value)
    raise TypeError(f"{kind} is not supported")
