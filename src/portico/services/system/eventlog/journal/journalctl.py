"""The journal by way of `journalctl`, where its files are not ours to read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import msgspec

from portico.services.system import programs
from portico.services.system.errors import MachineError
from portico.services.system.eventlog.entries import OF_SEVERITY, WARNING, LogEntry, Position, Query
from portico.services.system.eventlog.journal.log import Where, entry_id, made


class JournalctlLog:
    """`arguments` say which journal: `--system`, `--user`, `--directory=…`."""

    def __init__(
        self, name: str, description: str, arguments: tuple[str, ...] = (), *, where: Where | None = None
    ) -> None:
        self.name = name
        self.description = description
        self._arguments = arguments
        # Matches of one field are alternatives to journalctl, and matches of different ones must all hold: as here.
        self._matches = [f"{field}={value}" for field, values in (where or {}).items() for value in sorted(values)]

    def newest_first(self, query: Query, after: Position, problems: list[str]) -> Iterator[LogEntry | None]:
        wanted = ["--reverse"]
        if query.min_level >= WARNING:
            wanted.append(f"--priority={max(n for n, level in enumerate(OF_SEVERITY) if level >= query.min_level)}")
        if query.start is not None:
            wanted.append(f"--since=@{query.start // 1_000_000}")
        if query.end is not None:
            wanted.append(f"--until=@{query.end // 1_000_000 + 1}")
        if after is not None:
            wanted.append(f"--after-cursor={after}")
        yield from self._run(wanted, problems)

    def _run(self, wanted: list[str], problems: list[str]) -> Iterator[LogEntry | None]:
        argv = ["journalctl", "--output=json", "--all", "--no-pager", "--quiet", *self._arguments, *wanted]
        with closing(programs.lines([*argv, *self._matches])) as lines:
            try:
                for line in lines:
                    yield _entry(line)
            except MachineError as failure:
                problems.append(str(failure))

    def entry(self, id: int) -> LogEntry | None:
        """Its number is not something journalctl can be asked for, so the latest are looked through."""
        found = (entry for entry in self._run(["--reverse", "--lines=10000"], []) if entry is not None)
        return next((entry for entry in found if entry.id == id), None)

    def count(self) -> int | None:
        return None

    def size(self) -> int | None:
        return None

    def stamp(self) -> object:
        newest = next(iter(self._run(["--lines=1"], [])), None)
        return None if newest is None else newest.position


def _entry(line: bytes) -> LogEntry | None:
    try:
        fields: dict[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
        cursor, time = fields.pop("__CURSOR"), int(fields.pop("__REALTIME_TIMESTAMP"))
    except (msgspec.DecodeError, KeyError, ValueError):
        return None
    parts = dict(part.split("=", 1) for part in cursor.split(";") if "=" in part)
    fields = {name: _value(value) for name, value in fields.items() if not name.startswith("__")}
    return made(fields, id=_id(parts), time=time, position=cursor)


def _id(parts: dict[str, str]) -> int:
    """The same that the files give: whose counter it is from, and the number."""
    try:
        return entry_id(bytes.fromhex(parts["s"]), int(parts["i"], 16))
    except (KeyError, ValueError):
        return 0


def _value(value: Any) -> Any:
    """What is no text is written as a list of numbers, and a field that is there twice as a list of texts."""
    if isinstance(value, list) and value and all(type(one) is int and 0 <= one < 256 for one in value):
        return bytes(value)
    return [_value(one) for one in value] if isinstance(value, list) else value
