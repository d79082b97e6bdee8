"""A conversation in a file: a line for each message, in the order in which they came by, without secrets."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Literal

import msgspec
from msgspec import Struct

from portico import screening
from portico.protocol.errors import UsageError
from portico.protocol.json_depth import decode_bounded

FORMAT = 1
LONGEST_LINE = 80 * 1024 * 1024

Side = Literal["client", "server"]
_SECRETS: tuple[Literal["secret"]] = ("secret",)


class TapeEntry(Struct, rename={"sender": "from"}):
    """One message: who sent it, how many seconds after the beginning, and what it says."""

    sender: Side
    at: float
    message: Any


class _TapeHeading(Struct):
    portico_recording: int


_entry = msgspec.json.Decoder(TapeEntry)


class TapeWriter:
    """Writes each message as it comes, so that a conversation that ends badly is there up to its end."""

    def __init__(self, path: str) -> None:
        try:
            # What was said may be private, also where no secret is found in it.
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        except OSError as failure:
            raise UsageError(f"{path} cannot be written: {failure.strerror}") from None
        self._file: IO[bytes] = open(descriptor, "wb")  # noqa: SIM115
        self._began = time.monotonic()
        self._states: dict[str, str] = {}
        self.count = 0
        self._put(_TapeHeading(FORMAT))

    def write(self, sender: Side, data: bytes) -> None:
        try:
            message = decode_bounded(data)
        except (msgspec.DecodeError, RecursionError):
            # Programs print all kinds of things where they should not.
            message = data[:2000].decode(errors="replace")
        self._put(TapeEntry(sender, round(time.monotonic() - self._began, 3), self._presentable(message)))
        self.count += 1

    def note(self, way: str, message: bytes) -> None:
        """Write a message as links tell of it: "sent" by the client, or received."""
        self.write("client" if way == "sent" else "server", message)

    def close(self) -> None:
        self._file.close()

    def _put(self, line: Struct) -> None:
        self._file.write(msgspec.json.encode(line) + b"\n")
        self._file.flush()

    def _presentable(self, message: Any) -> Any:
        if isinstance(message, list):
            return [self._presentable(one) for one in message]
        if not isinstance(message, dict):
            return screened(message)
        return {name: self._member(name, said) for name, said in message.items()}

    def _member(self, name: str, said: Any) -> Any:
        if name not in ("params", "result", "error"):
            return said
        if not isinstance(said, dict):
            return screened(said)
        # Apart, so that what is compared when it is played does not depend on what stands beside it.
        apart = {key: said[key] for key in ("_meta", "requestState") if key in said}
        rest = screened({key: value for key, value in said.items() if key not in apart})
        if "_meta" in apart:
            rest["_meta"] = screened(apart["_meta"])
        if "requestState" in apart:
            rest["requestState"] = self._state(str(apart["requestState"]))
        return rest

    def _state(self, said: str) -> str:
        """A name for it. It has the answers of a person in it, and says nothing to a reader."""
        return self._states.setdefault(said, f"state-{len(self._states) + 1}")


def screened(value: Any) -> Any:
    """The same without the secrets in it."""
    text = msgspec.json.encode(value).decode()
    found = screening.find(text, _SECRETS)
    if not found:
        return value
    try:
        return msgspec.json.decode(screening.redact(text, found))
    except msgspec.DecodeError:
        # One that goes beyond the text it stands in: each text by itself.
        return _screened_texts(value)


def _screened_texts(value: Any) -> Any:
    if isinstance(value, str):
        return screening.redact(value, screening.find(value, _SECRETS))
    if isinstance(value, list):
        return [_screened_texts(one) for one in value]
    if isinstance(value, dict):
        return {key: _screened_texts(one) for key, one in value.items()}
    return value


def read(path: str | os.PathLike[str]) -> list[TapeEntry]:
    """The entries of a recording. What cannot be read is a UsageError, with the line."""
    try:
        with Path(path).open("rb") as file:
            return list(_entries(file, os.fspath(path)))
    except OSError as failure:
        raise UsageError(f"{os.fspath(path)} cannot be read: {failure.strerror}") from None


def _entries(file: IO[bytes], path: str) -> Iterator[TapeEntry]:
    try:
        heading = msgspec.json.decode(file.readline(1000), type=_TapeHeading)
    except msgspec.DecodeError:
        raise UsageError(f"{path} is no recording: `portico record TARGET -o FILE` makes one") from None
    if heading.portico_recording != FORMAT:
        raise UsageError(f"{path} is a recording of the format {heading.portico_recording}; this reads {FORMAT}")
    number = 1
    while line := file.readline(LONGEST_LINE):
        number += 1
        try:
            yield _entry.decode(line)
        except (msgspec.DecodeError, RecursionError) as failure:
            raise UsageError(f"{path}, line {number}, is no message of a recording: {failure}") from None
