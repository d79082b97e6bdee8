"""Saved sessions as files, each with a line about it. What is behind the line is never read here, only kept."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Struct

from portico_services.livepython.replies import LeftOut
from portico_services.livepython.sandbox.limits import MIB
from portico_services.livepython.sandbox.name_resolution import InspectionError, NameNotFound
from portico_services.timestamps import now, written

LONGEST_HEAD = 1 * MIB
# Of all owners together.
MOST_BYTES = 2048 * MIB
_SUFFIX = ".session"


class SavedSession(Struct, rename="camel", kw_only=True):
    """A session that was saved."""

    name: Annotated[str, "The name it is saved under"]
    session: Annotated[str, "Whose names these were"]
    saved_at: Annotated[str, "When that was"]
    python: Annotated[str, "The version of Python they come from"]
    size: Annotated[int, "How many bytes they take"]
    names: Annotated[list[str], "The first of them"]
    total: Annotated[int, "How many there are in all"]
    left_out: Annotated[list[LeftOut], "What could not be saved"] = []


class _Head(Struct):
    saved: SavedSession
    digest: str


class SavedSessions:
    """The saved sessions of everybody, each owner's in a folder of its own. A name is one of `pool.is_name`."""

    def __init__(self, folder: Path, *, most: int) -> None:
        self._folder = folder
        self._most = most

    def write(self, owner: str | None, saved: SavedSession, data: bytes, digest: str) -> None:
        """Keep it, in place of what was saved under this name. Raises InspectionError if there is no room."""
        place = self._place(owner)
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = place / f"{saved.name}{_SUFFIX}"
        if not path.exists() and len(list(_files(place))) >= self._most:
            raise InspectionError(f"There are {self._most} saved sessions already: delete one that is not needed.")
        if sum(one.stat().st_size for one in self._folder.rglob(f"*{_SUFFIX}")) + len(data) > MOST_BYTES:
            raise InspectionError("There is no room for more saved sessions: delete one that is not needed.")
        descriptor, unfinished = tempfile.mkstemp(dir=place)
        try:
            with open(descriptor, "wb") as file:
                file.write(msgspec.json.encode(_Head(saved, digest)) + b"\n")
                file.write(data)
            os.replace(unfinished, path)
        except BaseException:
            os.unlink(unfinished)
            raise

    def read(self, owner: str | None, name: str) -> tuple[SavedSession, bytes]:
        """Raises InspectionError if there is none, or if it is not what was written."""
        try:
            with open(self._place(owner) / f"{name}{_SUFFIX}", "rb") as file:
                head, data = _head(file.readline(LONGEST_HEAD)), file.read()
        except FileNotFoundError:
            raise self._absent(owner, name) from None
        if head is None or sha256(data).hexdigest() != head.digest:
            raise InspectionError(f"The saved session {name!r} is damaged.")
        return head.saved, data

    def list(self, owner: str | None) -> list[SavedSession]:
        """The newest first."""
        found = []
        for path in _files(self._place(owner)):
            with open(path, "rb") as file:
                head = _head(file.readline(LONGEST_HEAD))
            if head is not None:
                found.append(head.saved)
        return sorted(found, key=lambda one: one.saved_at, reverse=True)

    def remove(self, owner: str | None, name: str) -> None:
        try:
            (self._place(owner) / f"{name}{_SUFFIX}").unlink()
        except FileNotFoundError:
            raise self._absent(owner, name) from None

    def _absent(self, owner: str | None, name: str) -> InspectionError:
        known = ", ".join(one.name for one in self.list(owner)[:10])
        return NameNotFound(f"There is no saved session {name!r}{f'; there are {known}' if known else ''}.")

    def _place(self, owner: str | None) -> Path:
        return self._folder / ("local" if owner is None else sha256(owner.encode()).hexdigest()[:32])


def _files(place: Path) -> Iterator[Path]:
    return place.glob(f"*{_SUFFIX}")


def _head(line: bytes) -> _Head | None:
    try:
        return msgspec.json.decode(line, type=_Head)
    except msgspec.DecodeError:
        return None


def about(name: str, session: str, python: str) -> SavedSession:
    """One that is being saved now."""
    return SavedSession(name=name, session=session, saved_at=written(now()), python=python, size=0, names=[], total=0)
