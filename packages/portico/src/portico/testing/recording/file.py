"""Recording files: one JSON line per message, in order, with secrets redacted."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Literal

import msgspec
from msgspec import Struct

from portico import screening
from portico.protocol.errors import UsageError
from portico.protocol.json_depth import decode_bounded

# Checked when a file is loaded; a reader rejects versions that it does not know.
FORMAT_VERSION = 1
# Above the largest message of any transport, with room for the encoding as JSON.
MAX_LINE_BYTES = 80 * 1024 * 1024

Sender = Literal["client", "server"]
_SECRETS: tuple[Literal["secret"]] = ("secret",)


class RecordedMessage(Struct, rename={"sender": "from", "elapsed": "at"}):
    """One message, its sender and the seconds since the start of the recording."""

    sender: Sender
    elapsed: float
    message: Any


class _RecordingHeader(Struct):
    portico_recording: int


_entry = msgspec.json.Decoder(RecordedMessage)


class Recorder:
    """Writes each message as it arrives, so that a crashed conversation is recorded up to its end."""

    def __init__(self, path: str) -> None:
        try:
            # Conversations may be private even if no secret is detected in them, so only the owner can read the file.
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            # The mode above applies to new files only, and an existing recording may be readable by others.
            if os.name == "posix" and stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.fchmod(descriptor, 0o600)
        except OSError as failure:
            raise UsageError(f"cannot write {path}: {failure.strerror}") from None
        self._file: IO[bytes] = open(descriptor, "wb")  # noqa: SIM115
        self._start = time.monotonic()
        self._states: dict[str, str] = {}
        self.count = 0
        self._put(_RecordingHeader(FORMAT_VERSION))

    def write(self, sender: Sender, data: bytes) -> None:
        """Write one message with its secrets redacted."""
        try:
            message = decode_bounded(data)
        except (msgspec.DecodeError, RecursionError):
            # Programs may print anything to standard output; record it as text.
            message = data[:2000].decode(errors="replace")
        self._put(RecordedMessage(sender, round(time.monotonic() - self._start, 3), self._redact(message)))
        self.count += 1

    def record(self, direction: str, message: bytes) -> None:
        """Write a message as transports report it: "sent" by the client, or received."""
        self.write("client" if direction == "sent" else "server", message)

    def close(self) -> None:
        self._file.close()

    def _put(self, line: Struct) -> None:
        self._file.write(msgspec.json.encode(line) + b"\n")
        # Flushed per message, so that a crash of the server loses nothing.
        self._file.flush()

    def _redact(self, message: Any) -> Any:
        if isinstance(message, list):
            return [self._redact(item) for item in message]
        if not isinstance(message, dict):
            return redact_secrets(message)
        return {name: self._member(name, value) for name, value in message.items()}

    def _member(self, name: str, value: Any) -> Any:
        if name not in ("params", "result", "error"):
            return value
        if not isinstance(value, dict):
            return redact_secrets(value)
        # Redacted separately, so that the part that replay compares does not depend on the rest.
        separate = {key: value[key] for key in ("_meta", "requestState") if key in value}
        rest = redact_secrets({key: member for key, member in value.items() if key not in separate})
        if "_meta" in separate:
            rest["_meta"] = redact_secrets(separate["_meta"])
        if "requestState" in separate:
            rest["requestState"] = self._state(str(separate["requestState"]))
        return rest

    def _state(self, state: str) -> str:
        """Return a short name for a request state, which is opaque and may contain a user's input."""
        return self._states.setdefault(state, f"state-{len(self._states) + 1}")


def redact_secrets(value: Any) -> Any:
    """Return the value with its secrets redacted."""
    text = msgspec.json.encode(value).decode()
    result = screening.find(text, _SECRETS)
    if not result:
        return value
    try:
        return msgspec.json.decode(screening.redact(text, result))
    except msgspec.DecodeError:
        # The match crossed the end of a JSON string, so redact each string separately.
        return _screened_texts(value)


def _screened_texts(value: Any) -> Any:
    if isinstance(value, str):
        return screening.redact(value, screening.find(value, _SECRETS))
    if isinstance(value, list):
        return [_screened_texts(item) for item in value]
    if isinstance(value, dict):
        return {key: _screened_texts(item) for key, item in value.items()}
    return value


def load_recording(path: str | os.PathLike[str]) -> list[RecordedMessage]:
    """Load the messages of a recording. Raises UsageError, with the line number, if it is invalid."""
    try:
        with Path(path).open("rb") as file:
            return list(_entries(file, os.fspath(path)))
    except OSError as failure:
        raise UsageError(f"cannot read {os.fspath(path)}: {failure.strerror}") from None


def _entries(file: IO[bytes], path: str) -> Iterator[RecordedMessage]:
    try:
        heading = msgspec.json.decode(file.readline(1000), type=_RecordingHeader)
    except msgspec.DecodeError:
        raise UsageError(f"{path} is not a recording; create one with `portico record TARGET -o FILE`") from None
    if heading.portico_recording != FORMAT_VERSION:
        raise UsageError(
            f"unsupported recording format {heading.portico_recording} in {path} (expected {FORMAT_VERSION})"
        )
    number = 1
    while line := file.readline(MAX_LINE_BYTES):
        number += 1
        try:
            yield _entry.decode(line)
        except (msgspec.DecodeError, RecursionError) as failure:
            raise UsageError(f"{path}, line {number}: invalid message: {failure}") from None
