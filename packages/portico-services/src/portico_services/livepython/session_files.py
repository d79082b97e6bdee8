"""Saved sessions as files: one header line of JSON, then the data. The data is opaque to the server."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Struct

from portico_services.livepython.replies import SkippedName
from portico_services.livepython.sandbox.limits import MIB
from portico_services.livepython.sandbox.name_resolution import InspectionError, NameNotFound
from portico_services.timestamps import format_iso, now_ms

# A header with the names of a session; readline without a limit would read a damaged file into memory.
MAX_HEADER_BYTES = 1 * MIB
# Of all owners together.
MAX_TOTAL_BYTES = 2048 * MIB
_SUFFIX = ".session"


class SavedSession(Struct, rename="camel", kw_only=True):
    """A saved session."""

    name: Annotated[str, "Name of the saved session"]
    session: Annotated[str, "Session that was saved"]
    saved_at: Annotated[str, "Time of the save"]
    python: Annotated[str, "Python version of the session"]
    size: Annotated[int, "Size in bytes"]
    names: Annotated[list[str], "First names"]
    total: Annotated[int, "Total number of names"]
    left_out: Annotated[list[SkippedName], "Names that were not saved, with reasons"] = []


class _SessionFileHeader(Struct):
    saved: SavedSession
    digest: str


class SessionFileStore:
    """Store of saved sessions, with one directory per owner.

    Names must have passed `validate_session_name`, since they become file names.
    """

    def __init__(self, folder: Path, *, max_sessions: int) -> None:
        self._folder = folder
        self._max_sessions = max_sessions

    def write(self, owner: str | None, saved: SavedSession, data: bytes, digest: str) -> None:
        """Write a saved session, replacing one with the same name. Raises InspectionError if a limit is reached."""
        folder = self._owner_dir(owner)
        # Saved sessions contain the data of one principal: other users of the machine must not read them.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / f"{saved.name}{_SUFFIX}"
        if not path.exists() and len(list(_session_files(folder))) >= self._max_sessions:
            raise InspectionError(
                f"The limit of {self._max_sessions} saved sessions is reached: delete one that is no longer needed."
            )
        # A replaced file counts twice here. The check is approximate, as two saves may also run concurrently.
        if sum(item.stat().st_size for item in self._folder.rglob(f"*{_SUFFIX}")) + len(data) > MAX_TOTAL_BYTES:
            raise InspectionError(
                "The saved sessions have reached their total size limit: delete one that is no longer needed."
            )
        # Write to a temporary file and rename it, so that a reader never sees a partial file.
        descriptor, unfinished = tempfile.mkstemp(dir=folder)
        try:
            with open(descriptor, "wb") as file:
                file.write(msgspec.json.encode(_SessionFileHeader(saved, digest)) + b"\n")
                file.write(data)
            os.replace(unfinished, path)
        except BaseException:
            os.unlink(unfinished)
            raise

    def read(self, owner: str | None, name: str) -> tuple[SavedSession, bytes]:
        """Return a saved session and its data. Raises InspectionError if it does not exist or is damaged."""
        try:
            with open(self._owner_dir(owner) / f"{name}{_SUFFIX}", "rb") as file:
                head, data = _parse_header(file.readline(MAX_HEADER_BYTES)), file.read()
        except FileNotFoundError:
            raise self._not_found(owner, name) from None
        # The digest detects truncation and disk errors. Unpickling is safe in any case only because it happens in a
        # sandbox.
        if head is None or sha256(data).hexdigest() != head.digest:
            raise InspectionError(f"The saved session {name!r} is damaged.")
        return head.saved, data

    def list(self, owner: str | None) -> list[SavedSession]:
        """Return the saved sessions of an owner, newest first."""
        results = []
        for path in _session_files(self._owner_dir(owner)):
            with open(path, "rb") as file:
                head = _parse_header(file.readline(MAX_HEADER_BYTES))
            if head is not None:
                results.append(head.saved)
        return sorted(results, key=lambda session: session.saved_at, reverse=True)

    def remove(self, owner: str | None, name: str) -> None:
        try:
            (self._owner_dir(owner) / f"{name}{_SUFFIX}").unlink()
        except FileNotFoundError:
            raise self._not_found(owner, name) from None

    def _not_found(self, owner: str | None, name: str) -> InspectionError:
        names = ", ".join(item.name for item in self.list(owner)[:10])
        return NameNotFound(f"Unknown saved session {name!r}{f' (saved: {names})' if names else ''}.")

    def _owner_dir(self, owner: str | None) -> Path:
        # Hashed: the identifier of a principal may contain characters that are unsafe in a path.
        return self._folder / ("local" if owner is None else sha256(owner.encode()).hexdigest()[:32])


def _session_files(folder: Path) -> Iterator[Path]:
    return folder.glob(f"*{_SUFFIX}")


def _parse_header(line: bytes) -> _SessionFileHeader | None:
    try:
        return msgspec.json.decode(line, type=_SessionFileHeader)
    except msgspec.DecodeError:
        return None


def new_saved_session(name: str, session: str, python: str) -> SavedSession:
    """Create the record of a session that is being saved now."""
    return SavedSession(
        name=name, session=session, saved_at=format_iso(now_ms()), python=python, size=0, names=[], total=0
    )
