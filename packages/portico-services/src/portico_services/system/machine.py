"""The machine as this service shows it: every query is checked, and every result anonymized. It knows no protocol."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from portico_services.system import processes
from portico_services.system.access_levels import Part, Privacy
from portico_services.system.anonymizer import Anonymizer, opaque
from portico_services.system.audit_log import Audit
from portico_services.system.cursors import Cursors
from portico_services.system.errors import Denied, MachineError
from portico_services.system.files.name_index import Index
from portico_services.system.files.queries import FileQueries
from portico_services.system.files.walk import FileCriteria
from portico_services.system.logs import discovery, evtx
from portico_services.system.logs.entries import LEVELS, Log, LogEntry, Query, iso
from portico_services.system.logs.log_registry import Logs
from portico_services.system.path_access import AllowedRoot, AllowedRoots
from portico_services.system.redaction import EntryFilter, FileView, HidingQuery, candidates
from portico_services.system.registry.branches import PortableRegistry, branches
from portico_services.system.registry.identities import names_in_values
from portico_services.system.registry.tree import RegistryTree, shown
from portico_services.system.results import (
    MOST_LISTED,
    Algorithm,
    AuditTrail,
    Checksum,
    EventEntry,
    EventPage,
    FileInfo,
    FilePage,
    FilePart,
    FileRow,
    FollowedEntries,
    FullEntry,
    Health,
    LogInfo,
    LogList,
    LogStats,
    MachineInfo,
    Order,
    ProcessInfo,
    ProcessPage,
    RegistryChange,
    RegistryKey,
    RegistryRead,
    RegistryValue,
)
from portico_services.system.text import LONGEST_MESSAGE, cut, plain, plain_all, plain_text

Paths = Mapping[str, str | os.PathLike[str]]

# How much of a message is looked at for names before it is cut: half a name at the end of it is not shown.
LONGEST_HIDDEN = 4 * LONGEST_MESSAGE

# How long the entries of each log may be counted for the list of logs.
LISTING_SECONDS = 0.05

# Bytes of all the processes on a page.
LARGEST_PROCESSES = 512 * 1024

# The user ids of people, on most systems.
_FIRST_PERSON, _FIRST_BEYOND = 1000, 65_534


class Machine:
    def __init__(
        self,
        *,
        roots: Iterable[str | os.PathLike[str]] = (),
        logs: Paths | None = None,
        machine_logs: bool = True,
        hives: Paths | None = None,
        levels: Mapping[Part, str],
        privacy: Privacy,
        deny: Iterable[str] = (),
        data: str | os.PathLike[str] | None = None,
        index: bool = True,
    ) -> None:
        folder = None if data is None else Path(data)
        secret = installation_key(folder)
        denied = list(deny)
        self.levels = levels
        self.privacy = Anonymizer(privacy, secret, local_names())
        self.audit = Audit(None if folder is None else folder / "system-audit.jsonl")
        self._cursors = cursors = Cursors(secret)
        self.logs = Logs(lambda: discovery.logs(logs or {}, machine=machine_logs, deny=denied), cursors)
        self._denied = denied
        self._indexes = index and levels["fs"] != "disabled"
        self._index_file = None if folder is None else str(folder / "system-files.sqlite")
        self.index: Index | None = None
        self._look_into(roots)
        self._portable = PortableRegistry(":memory:" if folder is None else str(folder / "system-registry.sqlite"))
        self.registry = RegistryTree(branches(hives or {}, self._portable), writable=levels["reg"] == "read-write")

    def _look_into(self, roots: Iterable[str | os.PathLike[str]]) -> None:
        allowed = AllowedRoots(roots, self._denied)
        self.index = Index(allowed, self._index_file) if self._indexes and allowed else None
        self.files = FileQueries(allowed, self._cursors, self.index)

    def allow(self, folders: Iterable[str]) -> None:
        """Look into these folders, too. A search that goes on begins anew."""
        before = [os.path.join(root.given, root.only) if root.only else root.given for root in self.files.roots.all]
        if self.index is not None:
            self.index.close()
        self._look_into([*before, *folders])

    def close(self) -> None:
        self.audit.close()
        if self.index is not None:
            self.index.close()
        self._portable.close()
        evtx.close()

    def _question(self) -> HidingQuery:
        return HidingQuery(self.privacy)

    # Event logs

    def list_logs(self) -> LogList:
        found = [_log(name, log) for name, log in self.logs.all.items()]
        return self._question().said(LogList(found, len(found), _now()))

    def log_names(self) -> list[str]:
        return self._question().said(list(self.logs.all))

    def query(
        self, name: str, query: Query, limit: int, offset: int, cursor: str | None, *, oldest_first: bool = False
    ) -> EventPage:
        with self._question() as asked:
            meant = msgspec.structs.replace(
                query, contains=asked.meant(query.contains), source=asked.meant(query.source)
            )
            fits = EntryFilter(asked, query) if asked.hides else None
            found = self.logs.query(
                asked.meant(name),
                meant,
                limit=limit,
                offset=offset,
                cursor=cursor,
                fits=fits,
                oldest_first=oldest_first,
            )
            seen = found.offset + len(found.entries)
            page = EventPage(
                entries=[_entry(name, entry, LONGEST_HIDDEN) for entry in found.entries],
                total_count=found.total,
                total_is_exact=found.counted,
                next_offset=seen if found.has_more else None,
                next_cursor=found.cursor,
                page=found.page,
                page_size=found.page_size,
                has_more=found.has_more,
                timed_out=found.timed_out,
                problems=found.problems,
            )
            page = asked.said(page, (entry.fields for entry in found.entries))
            for shown, entry in zip(page.entries, found.entries, strict=True):
                shown.message = cut(shown.message, f"read eventlog://{name}/{entry.id}", whole=len(entry.message))
            return page

    def follow(self, name: str, query: Query, limit: int, cursor: str | None) -> FollowedEntries:
        """What a log has written since the cursor; without one, only the cursor for from now on."""
        with self._question() as asked:
            meant = msgspec.structs.replace(
                query, contains=asked.meant(query.contains), source=asked.meant(query.source)
            )
            fits = EntryFilter(asked, query) if asked.hides else None
            found = self.logs.follow(asked.meant(name), meant, limit=limit, cursor=cursor, fits=fits)
            page = FollowedEntries(
                [_entry(name, entry, LONGEST_HIDDEN) for entry in found.entries],
                found.cursor,
                found.has_more,
                found.problems,
            )
            page = asked.said(page, (entry.fields for entry in found.entries))
            for shown, entry in zip(page.entries, found.entries, strict=True):
                shown.message = cut(shown.message, f"read eventlog://{name}/{entry.id}", whole=len(entry.message))
            return page

    def log_stamp(self, name: str) -> object:
        """Something that is different when a log has grown."""
        with self._question() as asked:
            return self.logs.named(asked.meant(name)).stamp()

    def entry(self, name: str, id: int) -> FullEntry:
        with self._question() as asked:
            found = self.logs.entry(asked.meant(name), id)
            fields = plain_all(dict(found.fields))
            return asked.said(FullEntry(_entry(name, found), fields), [found.fields])

    def log_stats(self, name: str, query: Query) -> LogStats:
        with self._question() as asked:
            found = self.logs.stats(asked.meant(name), query)
            found.log_name = name
            return asked.said(found)

    # Files

    def search(self, path: str | None, within: str | None, limit: int, cursor: str | None, **criteria: Any) -> FilePage:
        """Files by the criteria of `Wanted`, and by what they contain."""
        wanted = FileCriteria(**criteria)
        with self._question() as asked:
            view = FileView(asked, wanted, within) if asked.hides else None
            found = self.files.search(
                candidates(asked, wanted), asked.meant(path), asked.meant(within), limit, cursor, view=view
            )
            return asked.said(found)

    def about(self, path: str) -> FileInfo:
        with self._question() as asked:
            return asked.said(self.files.about(asked.meant(path)))

    def listing(self, path: str, limit: int, cursor: str | None) -> FilePage:
        with self._question() as asked:
            if path:
                return asked.said(self.files.listing(asked.meant(path), limit, cursor))
            rows = [_root(root) for root in self.files.roots.all]
            return asked.said(FilePage(rows, len(rows), False, None, len(rows)))

    def read(self, path: str, offset: int, length: int) -> FilePart:
        """Some of a file; where names are hidden, whole lines."""
        with self._question() as asked:
            if not asked.hides:
                part, around = self.files.read(path, offset, length), ""
            else:
                part, around = self.files.read_lines(asked.meant(path), offset, length)
            if part.encoding != "base64":
                part.content = plain_text(part.content)
            elif asked.hides:
                raise Denied(
                    f"{path!r} is not text, so names in it could not be hidden. Its checksum and size are free."
                )
            return asked.said(part, around=around)

    def checksum(self, path: str, algorithm: Algorithm) -> Checksum:
        with self._question() as asked:
            return asked.said(self.files.checksum(asked.meant(path), algorithm))

    # The registry. A token means a name that is there already: what is written anew would show it to the next reader.

    def _key(self, asked: HidingQuery, path: str) -> str:
        meant = asked.meant(path)
        return meant if meant == path or self.registry.has(meant) else path

    def _value_name(self, asked: HidingQuery, key: str, name: str) -> str:
        meant = asked.meant(name)
        return meant if meant == name or self.registry.has(key, meant) else name

    def key(self, path: str, limit: int = MOST_LISTED, cursor: str | None = None) -> RegistryKey:
        with self._question() as asked:
            meant = self._key(asked, path)
            question = ["key", meant.casefold()]
            start = self._cursors.redeem(cursor, question) if cursor else ([], [])
            real, found = self.registry.content(meant, start, limit)
            more = found.following is not None
            problems = list(found.problems)
            result = RegistryKey(
                path=plain(real),
                subkeys=[plain(name) for name in found.subkeys],
                values=[_value(one) for one in found.values],
                last_written=_time(found.written),
                has_more=more,
                next_cursor=self._cursors.issue(question, found.following, problems) if more else None,
                problems=problems,
            )
            return asked.said(result, known=names_in_values(real, found.values))

    def value(self, path: str, name: str, offset: int, length: int) -> RegistryRead:
        with self._question() as asked:
            key = self._key(asked, path)
            real, found = self.registry.value(key, self._value_name(asked, key, name), offset, length)
            result = RegistryRead(path=plain(real), **msgspec.structs.asdict(_value(found)))
            return asked.said(result, known=names_in_values(real, [found]))

    def write(self, path: str, name: str, value: Any, type: str | None, *, dry_run: bool) -> RegistryChange:
        with self._question() as asked:
            key = self._key(asked, path)
            change = self.registry.write(key, self._value_name(asked, key, name), value, type, dry_run=dry_run)
            # As it was asked for: a token in it stays one.
            before = change.before
            change.name, change.before = name, None if before is None else _value(before)
            return asked.said(change, known=names_in_values(change.path, [] if before is None else [before]))

    # The machine

    def process_page(self, name: str | None, order: Order, limit: int, cursor: str | None) -> ProcessPage:
        with self._question() as asked:
            question = ["processes", name, order]
            start = self._cursors.redeem(cursor, question) if cursor is not None else 0
            found, total = processes.processes(asked.meant(name), order, None if asked.hides else start + limit)
            rows = [msgspec.convert(plain_all(msgspec.to_builtins(one)), ProcessInfo) for one in found]
            if self.privacy.level == "strict":
                for row in rows:
                    row.cmdline = None
            if asked.hides:
                shown = asked.said(ProcessPage(rows, 0, 0)).processes
                rows = [row for row in shown if _names_process(row, opaque(name or ""))]
                total = len(rows)
            page = list(_fitting(rows[start : start + limit]))
            problems: list[str] = []
            more = start + len(page) < total
            following = self._cursors.issue(question, start + len(page), problems) if more else None
            return ProcessPage(page, len(page), total, more, following, problems)

    def info(self) -> MachineInfo:
        return self._question().said(processes.machine())

    def health(self) -> Health:
        ready = self.index is None or self.index.is_ready
        result = Health(
            status="ok" if ready else "degraded",
            levels={str(part): level for part, level in self.levels.items()},
            privacy=self.privacy.level,
            logs=list(self.logs.all),
            roots=[root.given for root in self.files.roots.all],
            branches=list(self.registry.branches),
            indexed_files=self.index.count() if self.index is not None and self.index.is_ready else None,
            timestamp=_now(),
        )
        return self._question().said(result)

    def trail(self) -> AuditTrail:
        """The last calls; without their arguments, unless privacy is off: they are the business of their caller."""
        records = list(self.audit.recent)
        if self.privacy.level != "off":
            records = [msgspec.structs.replace(record, arguments={}) for record in records]
        return AuditTrail(records)


def _log(name: str, log: Log) -> LogInfo:
    try:
        return LogInfo(name, log.description, log.count(LISTING_SECONDS), log.size())
    except MachineError as failure:
        return LogInfo(name, f"{log.description}: {failure}", None, None)


def _fitting(rows: list[ProcessInfo]) -> Iterator[ProcessInfo]:
    """As many as a page has room for, and at least one."""
    room = LARGEST_PROCESSES
    for row in rows:
        if room <= 0:
            return
        room -= len(msgspec.json.encode(row))
        yield row


def _names_process(row: ProcessInfo, text: str) -> bool:
    """Whether a text is in what is shown of a process."""
    return any(text.casefold() in opaque(shown or "").casefold() for shown in (row.name, row.cmdline))


def _entry(name: str, entry: LogEntry, longest: int | None = None) -> EventEntry:
    return EventEntry(
        id=entry.id,
        log_name=name,
        level=LEVELS[entry.level],
        source=plain(entry.source),
        event_id=entry.event_id or 0,
        message=plain_text(entry.message if longest is None else entry.message[:longest]),
        timestamp=iso(entry.time),
        computer=plain(entry.computer),
        time_guessed=entry.time_guess,
        level_guessed=entry.level_guessed,
    )


def _root(root: AllowedRoot) -> FileRow:
    if root.only:
        return FileRow(os.path.join(root.given, root.only), root.only, "file")
    return FileRow(root.given, os.path.basename(root.given), "directory")


def _value(datum: RegistryValue) -> RegistryValue:
    return msgspec.structs.replace(datum, name=plain(datum.name), value=plain_all(shown(datum.value)))


def _time(time: int | None) -> str | None:
    return None if time is None else iso(time)


def _now() -> str:
    return iso(time.time_ns() // 1000)


# The secret of this installation, and the names that this machine is known by.


def installation_key(folder: Path | None) -> bytes:
    """The key of this installation, made when it is first asked for. Without a folder it lasts for this process."""
    if folder is None:
        return os.urandom(32)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / "system.key"
    fd, draft = tempfile.mkstemp(dir=folder)
    try:
        with open(fd, "wb") as file:
            file.write(os.urandom(32))
        # A link to a whole file is there at once or not at all: another process never reads half a key.
        os.link(draft, path)
    except FileExistsError:
        pass
    except OSError:
        os.replace(draft, path)  # a file system without links
    finally:
        Path(draft).unlink(missing_ok=True)
    found = path.read_bytes()
    if len(found) != 32:
        raise ValueError(f"{path} is no key: it should have 32 bytes")
    return found


def local_names() -> Iterator[tuple[str, str]]:
    """The names of this machine and of the people who have an account on it."""
    yield "host", socket.gethostname()
    try:
        import pwd  # not on Windows
    except ImportError:
        yield "user", os.environ.get("USERNAME", "")
        return
    for account in pwd.getpwall():
        if _FIRST_PERSON <= account.pw_uid < _FIRST_BEYOND:
            yield "user", account.pw_name
