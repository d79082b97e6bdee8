"""From what a body returns to what the wire says."""

from __future__ import annotations

import os
import re
from base64 import b64encode
from collections.abc import Sequence
from inspect import get_annotations
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from portico.protocol.client_features import InputRequiredResult
from portico.protocol.content import (
    BLOCKS,
    Annotations,
    AudioContent,
    BlobContents,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextContents,
)
from portico.protocol.errors import ToolError, UsageError
from portico.protocol.tools import ERROR, RESULT, CallToolResult
from portico.server.components.interop import is_foreign_block, ours
from portico.server.components.signature import Verify


class Detached(Struct, frozen=True):
    """A body that wants to go on as a task, and what it has learnt and done so far."""

    answers: dict[str, Raw]
    steps: dict[str, Raw]


class _Media:
    """Bytes, or a file that has them, with a type."""

    default_type = "application/octet-stream"

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        data: bytes | None = None,
        format: str | None = None,
        mime_type: str | None = None,
        annotations: Annotations | None = None,
    ) -> None:
        if (path is None) == (data is None):
            raise UsageError(f"{type(self).__name__} takes a path or data, one of the two")
        self.path = None if path is None else os.fspath(path)
        self._data = data
        self.annotations = annotations
        self.mime_type = mime_type or self._guess(format)

    def _guess(self, format: str | None) -> str:
        family = self.default_type.partition("/")[0]
        if format is not None:
            return f"{family}/{format.lower()}"
        if self.path is None:
            return self.default_type
        import mimetypes  # reads the system's tables, so not before they are needed

        return mimetypes.guess_type(self.path)[0] or self.default_type

    @property
    def data(self) -> bytes:
        if self._data is not None:
            return self._data
        assert self.path is not None
        with open(self.path, "rb") as file:
            return file.read()

    def base64(self) -> str:
        return b64encode(self.data).decode()


class Image(_Media):
    """An image to show: `Image("chart.png")` or `Image(data=png, format="png")`."""

    default_type = "image/png"

    def to_block(self) -> ImageContent:
        return ImageContent(data=self.base64(), mime_type=self.mime_type, annotations=self.annotations)


class Audio(_Media):
    """Something to hear."""

    default_type = "audio/wav"

    def to_block(self) -> AudioContent:
        return AudioContent(data=self.base64(), mime_type=self.mime_type, annotations=self.annotations)


class File(_Media):
    """Anything else: embedded in the result, as text when it is text."""

    def __init__(self, *args: Any, name: str | None = None, uri: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.name = name or (os.path.basename(self.path) if self.path is not None else "file")
        # The name alone, never the path: where a file lies is for the server alone.
        self.uri = uri or f"file:///{self.name}"

    def to_block(self) -> EmbeddedResource:
        return EmbeddedResource(resource=contents_of(self.data, self.uri, self.mime_type), annotations=self.annotations)


class ToolResult(Struct):
    """A result said in full: content for the model, `structured_content` for programs, `meta` for the host.

    `structured` is another name for `structured_content`.
    """

    content: Any = None
    structured_content: Any = UNSET
    meta: dict[str, Any] | None = None
    is_error: bool = False
    structured: Any = UNSET

    def __post_init__(self) -> None:
        if self.structured is UNSET:
            self.structured = self.structured_content
        else:
            self.structured_content = self.structured


MEDIA = (Image, Audio, File)
# These are never content blocks, so nothing more has to be looked at.
_PLAIN = frozenset({int, float, bool, dict})
_BLOCKS = (*BLOCKS, *MEDIA)
_CONTENT = (*_BLOCKS, bytes, bytearray)


def contents_of(data: bytes, uri: str, mime_type: str | None) -> TextContents | BlobContents:
    """Bytes as resource contents: text when the type says so and the bytes agree."""
    if mime_type is not None and _is_text(mime_type):
        try:
            return TextContents(uri=uri, mime_type=mime_type, text=data.decode())
        except UnicodeDecodeError:
            pass
    return BlobContents(uri=uri, mime_type=mime_type, blob=b64encode(data).decode())


def _is_text(mime_type: str) -> bool:
    return mime_type.startswith("text/") or mime_type.endswith(("json", "xml", "yaml", "javascript"))


def _foreign(value: Any) -> Any:
    """What msgspec cannot encode by itself. pydantic models are known by their method, not by importing pydantic."""
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        return dump(mode="json", by_alias=True)
    if isinstance(value, os.PathLike | complex | range):
        return str(value)
    if isinstance(value, _Media):
        return {"mimeType": value.mime_type, "data": value.base64()}
    if hasattr(value, "__iter__"):
        return list(value)
    return _described(value)


def _described(value: Any) -> Any:
    """An object of a class that says what its members are, as those; anything else as its text. Raises ToolError for
    what has none: where it lies in memory is nothing that a model could use."""
    names = [name for cls in reversed(type(value).__mro__) for name in get_annotations(cls)]
    members = {name: getattr(value, name) for name in names if name[0] != "_" and hasattr(value, name)}
    text = str(value)
    if members and re.search(_ADDRESS, text):
        return members
    if re.search(_ADDRESS, text):
        kind = type(value).__name__
        raise ToolError(
            f"The result has something of the class {kind}, which cannot be described: return a dict, or give the class"
            " annotations."
        )
    return text


_ADDRESS = r" at 0x[0-9A-Fa-f]{4,}"

_encoder = msgspec.json.Encoder(enc_hook=_foreign)


def to_json(value: Any) -> bytes:
    try:
        return _encoder.encode(value)
    except OverflowError:
        import json  # for integers beyond 64 bits, which JSON has and msgspec has not

        return json.dumps(msgspec.to_builtins(value, enc_hook=_foreign), separators=(",", ":")).encode()


def to_result(value: Any, uri: str, verify: Verify | None = None) -> CallToolResult | InputRequiredResult | Detached:
    """The result of a tool. `verify`: the tool has an output schema, so structured content that fits it is owed.

    A class may know that one of its values is a failure: its `__tool_error__` gives what programs are told of it. Such
    a value has `data`, `status` and `explanation`.
    """
    kind = type(value)
    if kind is str and verify is None:
        return CallToolResult(content=[TextContent(text=value)], is_error=False)
    if kind in _PLAIN:
        return _structured(value, verify)
    if isinstance(value, InputRequiredResult | Detached):
        return value
    if isinstance(value, CallToolResult):
        return _verified(value, verify)
    if isinstance(value, ToolResult):
        return _verified(_in_full(value, uri), verify)
    if value is None and verify is None:
        return CallToolResult(content=[], is_error=False)
    known = ours(value)
    if known is not value:
        return to_result(known, uri=uri, verify=verify)
    if _is_content(value):
        return _verified(CallToolResult(content=to_blocks(value, uri), is_error=False), verify)
    about = getattr(kind, "__tool_error__", None)
    if about is None:
        return _structured(value, verify)
    error = about(value)
    try:
        result = _structured(value, verify)
    except TypeError:
        # The tool declares a schema of the data alone, and has no annotation that says what it returns.
        return _data_alone(value, error, verify)
    return result if error is None else replace(result, is_error=True, meta={ERROR: error})


def _data_alone(value: Any, error: Any, verify: Verify | None) -> CallToolResult:
    """Return the data of a value that knows its status, and the status in `_meta`. Raises TypeError if it is unfit."""
    if error is not None:
        return CallToolResult(content=[TextContent(text=to_json(value).decode())], is_error=True, meta={ERROR: error})
    result = _structured(value.data, verify)
    return replace(result, meta={RESULT: {"status": value.status, "explanation": value.explanation}})


def _verified(result: CallToolResult, verify: Verify | None) -> CallToolResult:
    """A result that its author has put together. One that is no error owes what the tool's output schema promises."""
    if verify is None or result.is_error is True:
        return result
    structured = result.structured_content
    if structured is UNSET:
        raise TypeError("the tool has an output schema, and its result has no structured content")
    raw = structured if type(structured) is Raw else Raw(to_json(structured))
    verify(structured, bytes(raw))
    return replace(result, structured_content=raw)


def _structured(value: Any, verify: Verify | None) -> CallToolResult:
    try:
        raw = _encoder.encode(value)
    except OverflowError:
        raw = to_json(value)
    if verify is not None:
        verify(value, raw)
    text = value if type(value) is str else raw.decode()
    structured = Raw(raw) if verify is not None or raw.startswith(b"{") else UNSET
    return CallToolResult(content=[TextContent(text=text)], structured_content=structured, is_error=False)


def _in_full(value: ToolResult, uri: str) -> CallToolResult:
    structured = value.structured if value.structured is UNSET else Raw(to_json(value.structured))
    if value.content is None and structured is not UNSET:
        blocks: list[Any] = [TextContent(text=bytes(structured).decode())]
    else:
        blocks = [] if value.content is None else to_blocks(value.content, uri)
    return CallToolResult(
        content=blocks,
        structured_content=UNSET if value.is_error else structured,
        is_error=value.is_error,
        meta=value.meta or UNSET,
    )


def _is_content(value: Any) -> bool:
    if isinstance(value, _CONTENT):
        return True
    return isinstance(value, list | tuple) and any(isinstance(one, _BLOCKS) or is_foreign_block(one) for one in value)


def to_blocks(value: Any, uri: str) -> list[Any]:
    """Content blocks of anything, a list item by item."""
    parts: Sequence[Any] = value if isinstance(value, list | tuple) else [value]
    return [to_block(part, uri) for part in parts]


def to_block(value: Any, uri: str) -> TextContent | ImageContent | AudioContent | EmbeddedResource | ResourceLink:
    if isinstance(value, BLOCKS):
        return value
    if isinstance(value, MEDIA):
        return value.to_block()
    if isinstance(value, str):
        return TextContent(text=value)
    if isinstance(value, bytes | bytearray):
        return EmbeddedResource(resource=contents_of(bytes(value), uri, "application/octet-stream"))
    if is_foreign_block(value):
        return ours(value)  # type: ignore[no-any-return]
    return TextContent(text=to_json(value).decode())
