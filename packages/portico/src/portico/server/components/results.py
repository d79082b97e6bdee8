"""Conversion of return values of functions to protocol results."""

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
    CONTENT_BLOCK_TYPES,
    Annotations,
    AudioContent,
    BlobResourceContents,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)
from portico.protocol.errors import ToolError, UsageError
from portico.protocol.tools import ERROR_META_KEY, RESULT, CallToolResult
from portico.server.components.interop import is_foreign_block, to_native
from portico.server.components.signature import OutputValidator


class DetachedCall(Struct, frozen=True):
    """Marker for a call that continues as a task, with the input responses and steps so far."""

    answers: dict[str, Raw]
    steps: dict[str, Raw]


class _Media:
    """Bytes, or a file, with a media type."""

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
        self.mime_type = mime_type or self._guess_mime_type(format)

    def _guess_mime_type(self, format: str | None) -> str:
        family = self.default_type.partition("/")[0]
        if format is not None:
            return f"{family}/{format.lower()}"
        if self.path is None:
            return self.default_type
        import mimetypes  # reads the system's tables, so import it only when needed

        return mimetypes.guess_type(self.path)[0] or self.default_type

    @property
    def data(self) -> bytes:
        """Return the bytes, read from the file if there is one."""
        if self._data is not None:
            return self._data
        assert self.path is not None
        with open(self.path, "rb") as file:
            return file.read()

    def base64(self) -> str:
        return b64encode(self.data).decode()


class Image(_Media):
    """An image: `Image("chart.png")` or `Image(data=png, format="png")`."""

    default_type = "image/png"

    def to_block(self) -> ImageContent:
        return ImageContent(data=self.base64(), mime_type=self.mime_type, annotations=self.annotations)


class Audio(_Media):
    """An audio clip."""

    default_type = "audio/wav"

    def to_block(self) -> AudioContent:
        return AudioContent(data=self.base64(), mime_type=self.mime_type, annotations=self.annotations)


class File(_Media):
    """Any other file: embedded in the result, as text if it is text."""

    def __init__(self, *args: Any, name: str | None = None, uri: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.name = name or (os.path.basename(self.path) if self.path is not None else "file")
        # The name only, never the path: the server's directories are not for clients.
        self.uri = uri or f"file:///{self.name}"

    def to_block(self) -> EmbeddedResource:
        return EmbeddedResource(
            resource=to_resource_contents(self.data, self.uri, self.mime_type), annotations=self.annotations
        )


class ToolResult(Struct):
    """An explicit result: content for the model, `structured_content` for programs, `meta` for the host.

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


MEDIA_TYPES = (Image, Audio, File)
# Types that never contain content blocks, so the remaining checks can be skipped.
_PLAIN = frozenset({int, float, bool, dict})
_BLOCKS = (*CONTENT_BLOCK_TYPES, *MEDIA_TYPES)
_CONTENT = (*_BLOCKS, bytes, bytearray)


def to_resource_contents(data: bytes, uri: str, mime_type: str | None) -> TextResourceContents | BlobResourceContents:
    """Return bytes as resource contents: text if the media type is textual and the bytes are valid UTF-8."""
    if mime_type is not None and _is_text(mime_type):
        try:
            return TextResourceContents(uri=uri, mime_type=mime_type, text=data.decode())
        except UnicodeDecodeError:
            pass
    return BlobResourceContents(uri=uri, mime_type=mime_type, blob=b64encode(data).decode())


def _is_text(mime_type: str) -> bool:
    # By suffix, which includes `application/ld+json`, `image/svg+xml` and `application/x-yaml`.
    return mime_type.startswith("text/") or mime_type.endswith(("json", "xml", "yaml", "javascript"))


def _encode_foreign(value: Any) -> Any:
    """Convert a value that msgspec cannot encode. pydantic models are recognized by their method, without importing
    pydantic.
    """
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        return dump(mode="json", by_alias=True)
    if isinstance(value, os.PathLike | complex | range):
        return str(value)
    if isinstance(value, _Media):
        return {"mimeType": value.mime_type, "data": value.base64()}
    # Sets, generators and views, which JSON has no notation for.
    if hasattr(value, "__iter__"):
        return list(value)
    return _describe_object(value)


def _describe_object(value: Any) -> Any:
    """Return the annotated members of an object, or its text.

    Raises ToolError if the text is only a memory address, which is useless to a model.
    """
    names = [name for cls in reversed(type(value).__mro__) for name in get_annotations(cls)]
    members = {name: getattr(value, name) for name in names if name[0] != "_" and hasattr(value, name)}
    text = str(value)
    # A class with its own `__str__` chose its text. The default text contains an address, and then
    # the annotated members say more.
    if members and re.search(_ADDRESS, text):
        return members
    if re.search(_ADDRESS, text):
        kind = type(value).__name__
        raise ToolError(
            f"The result contains an instance of {kind}, which cannot be serialized: return a dict, or add "
            "annotations to the class."
        )
    return text


_ADDRESS = r" at 0x[0-9A-Fa-f]{4,}"

_encoder = msgspec.json.Encoder(enc_hook=_encode_foreign)


def to_json(value: Any) -> bytes:
    try:
        return _encoder.encode(value)
    except OverflowError:
        import json  # for integers beyond 64 bits, which msgspec cannot encode

        return json.dumps(msgspec.to_builtins(value, enc_hook=_encode_foreign), separators=(",", ":")).encode()


def to_result(
    value: Any, uri: str, verify: OutputValidator | None = None, wrapped: bool = False
) -> CallToolResult | InputRequiredResult | DetachedCall:
    """Return the result of a tool.

    A class can mark a value as a failure: its `__tool_error__` returns the error data for programs. Such a value has
    `data`, `status` and `explanation`.

    * **verify** – validator of the tool's output schema, which requires matching structured content.
    * **wrapped** – the schema describes `{"result": …}`.
    """
    kind = type(value)
    # The most frequent results first: these two checks by identity decide most calls without an
    # isinstance.
    if kind is str and verify is None:
        return CallToolResult(content=[TextContent(text=value)], is_error=False)
    if kind in _PLAIN:
        return _build_structured(value, verify, wrapped)
    if isinstance(value, InputRequiredResult | DetachedCall):
        return value
    if isinstance(value, CallToolResult):
        return _verify_result(value, verify, wrapped)
    if isinstance(value, ToolResult):
        return _verify_result(_in_full(value, uri, verify), verify, wrapped)
    if value is None and verify is None:
        return CallToolResult(content=[], is_error=False)
    native = to_native(value)
    if native is not value:
        return to_result(native, uri, verify, wrapped)
    # Before structured output: a list of images must become content blocks and not JSON with base64
    # in it.
    if _is_content(value):
        return _verify_result(CallToolResult(content=to_blocks(value, uri), is_error=False), verify, wrapped)
    about = getattr(kind, "__tool_error__", None)
    if about is None:
        return _build_structured(value, verify, wrapped)
    error = about(value)
    try:
        result = _build_structured(value, verify, wrapped)
    except TypeError:
        # The author's schema describes the data only, and the return type is not annotated.
        return _data_alone(value, error, verify, wrapped)
    return result if error is None else replace(result, is_error=True, meta={ERROR_META_KEY: error})


def _data_alone(value: Any, error: Any, verify: OutputValidator | None, wrapped: bool) -> CallToolResult:
    """Return the data of a value that has a status, with the status in `_meta`. Raises TypeError if it does not fit."""
    if error is not None:
        return CallToolResult(
            content=[TextContent(text=to_json(value).decode())], is_error=True, meta={ERROR_META_KEY: error}
        )
    result = _build_structured(value.data, verify, wrapped)
    return replace(result, meta={RESULT: {"status": value.status, "explanation": value.explanation}})


def _verify_result(result: CallToolResult, verify: OutputValidator | None, wrapped: bool) -> CallToolResult:
    """Return a result that the author constructed, verified unless it is an error. Raises TypeError."""
    structured = result.structured_content
    if structured is UNSET:
        if verify is None or result.is_error is True:
            return result
        # 2026-07-28, Tools, Output Schema: "Servers MUST provide structured results that conform to
        # this schema." Errors are exempt.
        raise TypeError("the tool has an output schema, but its result has no structured content")
    raw = bytes(structured) if type(structured) is Raw else to_json(structured)
    if verify is not None and result.is_error is not True:
        verify(structured, raw)
    elif result.is_error is True or not wrapped:
        # Without a schema, clients expect an object: see `Tool._promise_output`.
        wrapped = not raw.lstrip().startswith(b"{")
    return replace(result, structured_content=Raw(b'{"result":' + raw + b"}" if wrapped else raw))


def _build_structured(value: Any, verify: OutputValidator | None, wrapped: bool) -> CallToolResult:
    try:
        raw = _encoder.encode(value)
    except OverflowError:
        raw = to_json(value)
    if verify is not None:
        verify(value, raw)
    # 2026-07-28, Tools, Structured Content: "a tool that returns structured content SHOULD also
    # return the serialized JSON in a TextContent block", for clients that do not read it.
    text = value if type(value) is str else raw.decode()
    if wrapped:
        structured: Any = Raw(b'{"result":' + raw + b"}")
    else:
        structured = Raw(raw) if verify is not None or raw.startswith(b"{") else UNSET
    return CallToolResult(content=[TextContent(text=text)], structured_content=structured, is_error=False)


def _in_full(value: ToolResult, uri: str, verify: OutputValidator | None) -> CallToolResult:
    # None is a value only if a schema describes it.
    is_absent = value.structured is UNSET or (value.structured is None and verify is None)
    structured = UNSET if is_absent else Raw(to_json(value.structured))
    if value.content is None and structured is not UNSET:
        blocks: list[Any] = [TextContent(text=bytes(structured).decode())]
    else:
        blocks = [] if value.content is None else to_blocks(value.content, uri)
    return CallToolResult(
        content=blocks,
        # An error's content need not match the output schema, and clients validate structured
        # content whenever it is present.
        structured_content=UNSET if value.is_error else structured,
        is_error=value.is_error,
        meta=value.meta or UNSET,
    )


def _is_content(value: Any) -> bool:
    if isinstance(value, _CONTENT):
        return True
    return isinstance(value, list | tuple) and any(
        isinstance(item, _BLOCKS) or is_foreign_block(item) for item in value
    )


def to_blocks(value: Any, uri: str) -> list[Any]:
    """Return the content blocks for any value; lists are converted item by item."""
    parts: Sequence[Any] = value if isinstance(value, list | tuple) else [value]
    return [to_block(part, uri) for part in parts]


def to_block(value: Any, uri: str) -> TextContent | ImageContent | AudioContent | EmbeddedResource | ResourceLink:
    if isinstance(value, CONTENT_BLOCK_TYPES):
        return value
    if isinstance(value, MEDIA_TYPES):
        return value.to_block()
    if isinstance(value, str):
        return TextContent(text=value)
    if isinstance(value, bytes | bytearray):
        return EmbeddedResource(resource=to_resource_contents(bytes(value), uri, "application/octet-stream"))
    if is_foreign_block(value):
        return to_native(value)  # type: ignore[no-any-return]
    return TextContent(text=to_json(value).decode())
