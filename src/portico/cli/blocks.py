"""What a server gave, shown to people: texts as they are, and a line or a file for what is no text."""

from __future__ import annotations

import mimetypes
import os
import re
from base64 import b64decode
from binascii import Error as NotBase64
from typing import Any

import msgspec
from msgspec import UNSET

from portico.cli.printer import Printer
from portico.wire.content import (
    AudioContent,
    BlobContents,
    Contents,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextContents,
)
from portico.wire.errors import UsageError

LONGEST_NAME = 80
MOST_NAMESAKES = 10_000


class Show:
    """Prints blocks, and keeps what is binary in files of a folder when there is one."""

    def __init__(self, printer: Printer, folder: str | None, name: str) -> None:
        self.printer = printer
        self.folder = folder
        self.name = name

    def block(self, block: Any) -> None:
        if isinstance(block, TextContent):
            self.printer.text(block.text)
        elif isinstance(block, ImageContent | AudioContent):
            kind = "an image" if isinstance(block, ImageContent) else "sound"
            self.printer.line(self.binary(kind, block.data, block.mime_type, self.name))
        elif isinstance(block, EmbeddedResource):
            self.contents(_received(block.resource))
        elif isinstance(block, ResourceLink):
            kind = f", {block.mime_type}" if block.mime_type else ""
            self.printer.line(f"({block.title or block.name}: {block.uri}{kind})")
        else:
            self.printer.pretty(block)

    def contents(self, one: Contents, *, to_the_letter: bool = False) -> None:
        """What a resource holds."""
        if one.text is not UNSET:
            self.printer.text(one.text, to_the_letter=to_the_letter)
        elif one.blob is not UNSET:
            name = one.uri.partition("?")[0].rstrip("/").rpartition("/")[2]
            self.printer.line(self.binary("data", one.blob, one.mime_type, name, one.uri))

    def save(self, blocks: list[Any]) -> None:
        """Only the files: what was printed as JSON has the rest."""
        if self.folder is None:
            return
        for block in blocks:
            if isinstance(block, ImageContent | AudioContent):
                self.printer.aside(self.binary("", block.data, block.mime_type, self.name))
            contents = _received(block.resource) if isinstance(block, EmbeddedResource) else block
            if isinstance(contents, Contents) and contents.blob is not UNSET:
                name = contents.uri.rstrip("/").rpartition("/")[2]
                self.printer.aside(self.binary("", contents.blob, contents.mime_type, name))

    def binary(self, kind: str, data: str, mime_type: str | None, name: str, uri: str = "") -> str:
        """A sentence about it, and the file if it is kept."""
        words = ", ".join(word for word in (kind, mime_type, uri) if word)
        try:
            found = b64decode(data, validate=True)
        except (NotBase64, ValueError):
            return f"({words}: not valid base64)"
        if self.folder is None:
            return f"({words}, {_size(len(found))}; --save DIR keeps it in a file)"
        return f"({words + ', ' if words else ''}{_size(len(found))}: {self._keep(found, mime_type, name)})"

    def _keep(self, data: bytes, mime_type: str | None, name: str) -> str:
        """A new file, under a name that is ours: the server's could lead anywhere."""
        assert self.folder is not None
        stem, extension = _file_name(name, mime_type)
        try:
            os.makedirs(self.folder, exist_ok=True)
            for number in range(1, MOST_NAMESAKES):
                path = os.path.join(self.folder, f"{stem}{'' if number == 1 else f'-{number}'}{extension}")
                try:
                    with open(path, "xb") as file:
                        file.write(data)
                    return path
                except FileExistsError:
                    continue
        except OSError as failure:
            raise UsageError(f"cannot write to {self.folder}: {failure.strerror or failure}") from None
        raise UsageError(f"{self.folder} has {MOST_NAMESAKES} files called {stem} already")


def _received(resource: Any) -> Contents:
    if isinstance(resource, TextContents | BlobContents):
        resource = msgspec.to_builtins(resource)
    return resource if isinstance(resource, Contents) else msgspec.convert(resource, Contents)


def _file_name(name: str, mime_type: str | None) -> tuple[str, str]:
    stem, mark, suffix = name.rpartition(".")
    guessed = mimetypes.guess_extension((mime_type or "").partition(";")[0].strip())
    extension = f".{suffix}" if mark and re.fullmatch(r"[A-Za-z0-9]{1,8}", suffix) else guessed or ".bin"
    kept = re.sub(r"[^A-Za-z0-9_-]+", "-", stem if mark and extension == f".{suffix}" else name).strip("-")
    return kept[:LONGEST_NAME] or "data", extension


def _size(count: int) -> str:
    return f"{count} bytes" if count < 10_000 else f"{count / 1000:,.0f} kB"
