"""Lock files: approved definitions, as JSON to be reviewed and committed.

There are two kinds. `contracts` pins one server, for `portico contracts check`; `pins` pins the upstreams of a gateway.
Both are read and written here, so that they cannot be confused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from portico.definitions.invisible_chars import visible_json
from portico.protocol.errors import UsageError
from portico.protocol.json_depth import decode_bounded

T = TypeVar("T")

LockKind = Literal["contracts", "pins"]
LOCK_VERSION = 2
# Version 1 did not pin `_meta`, icons and unknown members: if present, they count as changed.
_READABLE_VERSIONS = (1, LOCK_VERSION)
# Lock files are committed and may come from a pull request, so they are untrusted input.
MAX_LOCK_BYTES = 64 * 1024 * 1024

_MEANINGS: dict[str, str] = {
    "contracts": "the contract of a server, which `portico contracts lock` writes",
    "pins": "the pins of a gateway, which `portico pins approve` writes",
}


class LockFileError(ValueError):
    """The text is not a lock file of the expected kind, or was edited."""


class _Header(Struct):
    """Version and kind of a lock file. The last two members identify files written before `kind` existed."""

    lock: int
    kind: str = ""
    contract: Raw | UnsetType = UNSET
    upstreams: Raw | UnsetType = UNSET

    def detect_kind(self) -> str:
        if self.kind:
            return self.kind
        return "contracts" if self.contract is not UNSET else "pins" if self.upstreams is not UNSET else ""


def format_lock(kind: LockKind, members: Mapping[str, Any]) -> str:
    """Return the text of a lock file, independent of the order of members."""
    return visible_json({"lock": LOCK_VERSION, "kind": kind, **members}, sort=True) + "\n"


def parse_lock(data: str | bytes, kind: LockKind, type: type[T]) -> T:
    """Decode a lock file of this kind. Raises LockFileError."""
    if len(data) > MAX_LOCK_BYTES:
        raise LockFileError(f"a lock file must not exceed {MAX_LOCK_BYTES} bytes")
    try:
        header = decode_bounded(data, type=_Header)
        if header.lock not in _READABLE_VERSIONS:
            expected = " or ".join(map(str, reversed(_READABLE_VERSIONS)))
            raise LockFileError(f"lock must be {expected}, got {header.lock}; upgrade Portico, or write the file again")
        _require_kind(header.detect_kind(), kind)
        return msgspec.json.decode(data, type=type)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as failure:
        reason = str(failure).replace("`", "'")
        raise LockFileError(f"expected a lock file of kind {kind!r}: {reason}") from None


def _require_kind(kind: str, expected: LockKind) -> None:
    if kind != expected:
        about = f"{kind!r}, {_MEANINGS[kind]}" if kind in _MEANINGS else repr(kind) if kind else "none"
        raise LockFileError(f"expected a lock file of kind {expected!r} ({_MEANINGS[expected]}), got {about}")


def read_lock(path: Path, kind: LockKind, type: type[T]) -> T | None:
    """Read a lock file of this kind, or return None if it does not exist. Raises UsageError."""
    data = _read(path)
    if data is None:
        return None
    try:
        return parse_lock(data, kind, type)
    except LockFileError as failure:
        raise UsageError(f"{path}: {failure}") from None


def write_lock(path: Path, kind: LockKind, text: str) -> None:
    """Write a lock file atomically, but never over one of another kind. Raises UsageError."""
    # A file of one kind must not replace the approvals in a file of the other.
    existing = lock_kind(path)
    if existing not in ("", kind):
        about = _MEANINGS.get(existing, f"a lock file of kind {existing!r}")
        raise UsageError(f"{path} has {about}; write the {kind} to another file")
    # The process id alone is not unique: in a container it is the same after every crash.
    draft = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}.draft")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as file:
            file.write(text.encode())
            file.flush()
            # Before the rename: after a crash, the name must not refer to an empty file, which
            # would read as `no pins`.
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError as failure:
        draft.unlink(missing_ok=True)
        raise UsageError(f"{path} cannot be written: {failure.strerror or failure}") from None


def lock_kind(path: Path) -> str:
    """Return the kind of a lock file, or an empty string if it does not exist or has none. Raises UsageError."""
    try:
        return decode_bounded(_read(path) or b"", type=_Header).detect_kind()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


def _read(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            return file.read(MAX_LOCK_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as failure:
        raise UsageError(f"{path} cannot be read: {failure.strerror or failure}") from None
