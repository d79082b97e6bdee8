"""Lock files: definitions that a person has approved, as JSON to be reviewed and committed.

There are two kinds. `contracts` pins one server, for `portico contracts check`; `pins` pins the upstreams of a gateway.
Both are written and read here, so that neither is mistaken for the other.
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
# Version 1 did not pin `_meta`, icons and unknown members: where there are some, they count as changed.
_READABLE_VERSIONS = (1, LOCK_VERSION)
MAX_LOCK_BYTES = 64 * 1024 * 1024

_MEANINGS: dict[str, str] = {
    "contracts": "the contract of a server, which `portico contracts lock` writes",
    "pins": "the pins of a gateway, which `portico pins approve` writes",
}


class LockFileError(ValueError):
    """A text that is not a lock file of the expected kind, or that was changed by hand."""


class _Header(Struct):
    """The members that tell the version and the kind. The last two are for files from before `kind` was written."""

    lock: int
    kind: str = ""
    contract: Raw | UnsetType = UNSET
    upstreams: Raw | UnsetType = UNSET

    def detect_kind(self) -> str:
        if self.kind:
            return self.kind
        return "contracts" if self.contract is not UNSET else "pins" if self.upstreams is not UNSET else ""


def format_lock(kind: LockKind, members: Mapping[str, Any]) -> str:
    """Return the text of a lock file, the same for the same members in any order."""
    return visible_json({"lock": LOCK_VERSION, "kind": kind, **members}, sort=True) + "\n"


def parse_lock(data: str | bytes, kind: LockKind, type: type[T]) -> T:
    """Decode a lock file of this kind. Raises LockFileError."""
    if len(data) > MAX_LOCK_BYTES:
        raise LockFileError(f"a lock file may have up to {MAX_LOCK_BYTES} bytes, and this has more")
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


def _require_kind(found: str, expected: LockKind) -> None:
    if found != expected:
        about = f"{found!r}, {_MEANINGS[found]}" if found in _MEANINGS else repr(found) if found else "none"
        raise LockFileError(f"expected a lock file of kind {expected!r} ({_MEANINGS[expected]}), got {about}")


def read_lock(path: Path, kind: LockKind, type: type[T]) -> T | None:
    """Read a lock file of this kind, or return None if there is no such file. Raises UsageError."""
    data = _read(path)
    if data is None:
        return None
    try:
        return parse_lock(data, kind, type)
    except LockFileError as failure:
        raise UsageError(f"{path}: {failure}") from None


def write_lock(path: Path, kind: LockKind, text: str) -> None:
    """Write a lock file, whole or not at all, but never over one of another kind. Raises UsageError."""
    existing = lock_kind(path)
    if existing not in ("", kind):
        about = _MEANINGS.get(existing, f"a lock file of kind {existing!r}")
        raise UsageError(f"{path} has {about}; write the {kind} to another file")
    # Not named after the process alone: in a container that has the same number after every crash.
    draft = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}.draft")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError as failure:
        draft.unlink(missing_ok=True)
        raise UsageError(f"{path} cannot be written: {failure.strerror or failure}") from None


def lock_kind(path: Path) -> str:
    """Return the kind of a lock file, or an empty string if there is no file, or one of no kind. Raises UsageError."""
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
