"""Facade of the machine: validates every query and anonymizes every result. Independent of the protocol."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from portico_services.system import processes
from portico_services.system.access_levels import PrivacyMode, SystemPart
from portico_services.system.anonymizer import Anonymizer, encode_tokens
from portico_services.system.audit_log import AuditLog
from portico_services.system.cursors import EncryptedCursorCodec
from portico_services.system.errors import SystemToolError
from portico_services.system.files.name_index import FileNameIndex
from portico_services.system.files.queries import FileQueries
from portico_services.system.files.walk import FileCriteria
from portico_services.system.logs import discovery, evtx
from portico_services.system.logs.entries import LEVELS, EventLog, LogEntry, LogQuery, format_iso
from portico_services.system.logs.log_registry import LogRegistry
from portico_services.system.path_access import NO_ALLOWED_PATHS_HELP, AllowedPath, AllowedPaths
from portico_services.system.redaction import RedactedEntryFilter, RedactedFileView, RedactedQuery, relaxed_criteria
from portico_services.system.registry.branches import PortableRegistry, list_branches
from portico_services.system.registry.tree import RegistryTree, to_json
from portico_services.system.registry.values import names_in_values
from portico_services.system.results import (
    MAX_KEY_PAGE_ITEMS,
    AuditRecords,
    Checksum,
    EventDetail,
    EventEntry,
    EventPage,
    FileInfo,
    FilePage,
    FileRange,
    FileRow,
    FollowResult,
    HashAlgorithm,
    LogInfo,
    LogList,
    LogStats,
    MachineInfo,
    ProcessInfo,
    ProcessPage,
    ProcessSort,
    RegistryKey,
    RegistryValue,
    RegistryValueRange,
    RegistryWriteResult,
    SystemHealth,
)
from portico_services.system.text import (
    MAX_MESSAGE_CHARS,
    escape_controls,
    escape_controls_deep,
    escape_controls_multiline,
    truncate,
)

Paths = Mapping[str, str | os.PathLike[str]]

# Length of a message that is anonymized before it is truncated, so that half a name at the cut is never shown.
MAX_REDACTED_CHARS = 4 * MAX_MESSAGE_CHARS

# Time limit for counting the entries of each log in the list of logs.
LOG_COUNT_TIMEOUT_SECONDS = 0.05

# Size limit of all processes on a page.
MAX_PROCESS_PAGE_BYTES = 512 * 1024

# Range of user ids of people on most systems.
# Service accounts below are the same on every machine and identify no person.
_FIRST_USER_UID, _LAST_USER_UID = 1000, 65_534

PageT = TypeVar("PageT", EventPage, FollowResult)


class Machine:
    """Logs, files, registry and processes of this machine with anonymized results."""

    def __init__(
        self,
        *,
        allowed_paths: Iterable[str | os.PathLike[str]] = (),
        logs: Paths | None = None,
        platform_logs: bool = True,
        hives: Paths | None = None,
        access_levels: Mapping[SystemPart, str],
        privacy: PrivacyMode,
        deny: Iterable[str] = (),
        data_dir: str | os.PathLike[str] | None = None,
        file_index: bool = True,
    ) -> None:
        folder = None if data_dir is None else Path(data_dir)
        # One secret for tokens and cursors, so that both stay valid after a restart.
        secret = installation_key(folder)
        denied = list(deny)
        self.access_levels = access_levels
        self.privacy = Anonymizer(privacy, secret, local_names())
        self.audit = AuditLog(None if folder is None else folder / "system-audit.jsonl")
        self._cursors = cursors = EncryptedCursorCodec(secret)
        self.logs = LogRegistry(
            lambda: discovery.discover_logs(logs or {}, machine=platform_logs, deny=denied), cursors
        )
        self._denied = denied
        # Checked here once: client roots create the index again later.
        self._indexes = file_index and access_levels["files"] != "disabled"
        self._index_file = None if folder is None else str(folder / "system-files.sqlite")
        self.index: FileNameIndex | None = None
        self._set_roots(allowed_paths)
        self._portable = PortableRegistry(":memory:" if folder is None else str(folder / "system-registry.sqlite"))
        self.registry = RegistryTree(
            list_branches(hives or {}, self._portable), writable=access_levels["registry"] == "read-write"
        )

    def _set_roots(self, roots: Iterable[str | os.PathLike[str]]) -> None:
        allowed = AllowedPaths(roots, self._denied)
        self.index = FileNameIndex(allowed, self._index_file) if self._indexes and allowed else None
        self.files = FileQueries(allowed, self._cursors, self.index)

    def allow(self, folders: Iterable[str]) -> None:
        """Allow additional directories. Cursors of running searches become invalid."""
        before = [
            os.path.join(root.configured, root.only) if root.only else root.configured for root in self.files.roots.all
        ]
        if self.index is not None:
            self.index.close()
        self._set_roots([*before, *folders])

    def close(self) -> None:
        self.audit.close()
        if self.index is not None:
            self.index.close()
        self._portable.close()
        evtx.close_children()

    def _redacted_query(self) -> RedactedQuery:
        return RedactedQuery(self.privacy)

    # Event logs

    def list_logs(self) -> LogList:
        result = [_log(name, log) for name, log in self.logs.list.items()]
        return self._redacted_query().redact_result(LogList(result, len(result), _now_iso()))

    def log_names(self) -> list[str]:
        return self._redacted_query().redact_result(list(self.logs.list))

    def query(
        self, name: str, query: LogQuery, limit: int, offset: int, cursor: str | None, *, oldest_first: bool = False
    ) -> EventPage:
        with self._redacted_query() as redacted:
            resolved, fits = _resolve_query(redacted, query)
            result = self.logs.query(
                redacted.resolve_tokens(name),
                resolved,
                limit=limit,
                offset=offset,
                cursor=cursor,
                fits=fits,
                oldest_first=oldest_first,
            )
            # For clients without cursors; entries written in between shift offsets, so the cursor is preferred.
            seen = result.offset + len(result.entries)
            page = EventPage(
                # Under the requested name: the real one may contain a host name that the caller knows as a token only.
                entries=[_entry(name, entry, MAX_REDACTED_CHARS) for entry in result.entries],
                total_count=result.total,
                total_is_exact=result.counted,
                next_offset=seen if result.has_more else None,
                next_cursor=result.cursor,
                page=result.page,
                page_size=result.page_size,
                has_more=result.has_more,
                timed_out=result.timed_out,
                problems=result.problems,
            )
            return _cut_messages(
                redacted.redact_result(page, (entry.fields for entry in result.entries)), name, result.entries
            )

    def follow(self, name: str, query: LogQuery, limit: int, cursor: str | None) -> FollowResult:
        """Return the entries that a log has written since the cursor; without one, only a cursor for the
        current end.
        """
        with self._redacted_query() as redacted:
            resolved, fits = _resolve_query(redacted, query)
            result = self.logs.follow(redacted.resolve_tokens(name), resolved, limit=limit, cursor=cursor, fits=fits)
            page = FollowResult(
                [_entry(name, entry, MAX_REDACTED_CHARS) for entry in result.entries],
                result.cursor,
                result.has_more,
                result.problems,
            )
            return _cut_messages(
                redacted.redact_result(page, (entry.fields for entry in result.entries)), name, result.entries
            )

    def log_stamp(self, name: str) -> object:
        """Return a value that changes when a log grows."""
        with self._redacted_query() as redacted:
            return self.logs.get(redacted.resolve_tokens(name)).change_stamp()

    def entry(self, name: str, id: int) -> EventDetail:
        with self._redacted_query() as redacted:
            result = self.logs.entry(redacted.resolve_tokens(name), id)
            # Control characters in log data could drive a terminal that shows the result.
            fields = escape_controls_deep(dict(result.fields))
            return redacted.redact_result(EventDetail(_entry(name, result), fields), [result.fields])

    def log_stats(self, name: str, query: LogQuery) -> LogStats:
        with self._redacted_query() as redacted:
            result = self.logs.stats(redacted.resolve_tokens(name), query)
            result.log_name = name
            return redacted.redact_result(result)

    # Files

    def search(self, path: str | None, within: str | None, limit: int, cursor: str | None, **criteria: Any) -> FilePage:
        """Search files by the criteria of `FileCriteria` and by content."""
        file_criteria = FileCriteria(**criteria)
        with self._redacted_query() as redacted:
            # Two steps: the relaxed criteria preselect by real names, the view decides on the anonymized form.
            view = RedactedFileView(redacted, file_criteria, within) if redacted.is_active else None
            match = self.files.search(
                relaxed_criteria(redacted, file_criteria),
                redacted.resolve_tokens(path),
                redacted.resolve_tokens(within),
                limit,
                cursor,
                view=view,
            )
            return redacted.redact_result(match)

    def stat(self, path: str) -> FileInfo:
        with self._redacted_query() as redacted:
            return redacted.redact_result(self.files.stat(redacted.resolve_tokens(path)))

    def list_directory(self, path: str, limit: int, cursor: str | None) -> FilePage:
        with self._redacted_query() as redacted:
            if path:
                return redacted.redact_result(self.files.list_directory(redacted.resolve_tokens(path), limit, cursor))
            rows = [_root(root) for root in self.files.roots.all]
            # Without the reason, an empty list would look like an empty machine.
            problems = [] if rows else [f"No directory may be read here. {NO_ALLOWED_PATHS_HELP}"]
            return redacted.redact_result(FilePage(rows, len(rows), False, None, len(rows), problems=problems))

    def read(self, path: str, offset: int, length: int) -> FileRange:
        """Read a range of a file; whole lines if results are anonymized."""
        with self._redacted_query() as redacted:
            if not redacted.is_active:
                part, around = self.files.read(path, offset, length), ""
            else:
                # Whole lines: a range that ends within a name would show a part that is not recognized as one.
                part, around = self.files.read_lines(redacted.resolve_tokens(path), offset, length)
            if part.encoding != "base64":
                part.content = escape_controls_multiline(part.content)
            elif redacted.is_active:
                raise SystemToolError(
                    f"{path!r} is not a text file, so names in it cannot be anonymized. Its checksum and size "
                    "are available.",
                    outcome="denied",
                )
            return redacted.redact_result(part, around=around)

    def checksum(self, path: str, algorithm: HashAlgorithm) -> Checksum:
        with self._redacted_query() as redacted:
            return redacted.redact_result(self.files.checksum(redacted.resolve_tokens(path), algorithm))

    # Registry. Tokens resolve only to existing names: writing a new one would reveal the name to the next reader.

    def _key(self, redacted: RedactedQuery, path: str) -> str:
        resolved = redacted.resolve_tokens(path)
        return resolved if resolved == path or self.registry.has(resolved) else path

    def _value_name(self, redacted: RedactedQuery, key: str, name: str) -> str:
        resolved = redacted.resolve_tokens(name)
        return resolved if resolved == name or self.registry.has(key, resolved) else name

    def key(self, path: str, limit: int = MAX_KEY_PAGE_ITEMS, cursor: str | None = None) -> RegistryKey:
        with self._redacted_query() as redacted:
            resolved = self._key(redacted, path)
            # Registry names ignore case, so a cursor is valid for every spelling of the key.
            question = ["key", resolved.casefold()]
            start = self._cursors.decode(cursor, question) if cursor else ([], [])
            real, content = self.registry.content(resolved, start, limit)
            more = content.following is not None
            problems = list(content.problems)
            result = RegistryKey(
                path=escape_controls(real),
                subkeys=[escape_controls(name) for name in content.subkeys],
                values=[_value(value) for value in content.values],
                last_written=None if content.written is None else format_iso(content.written),
                has_more=more,
                next_cursor=self._cursors.encode(question, content.following, problems) if more else None,
                problems=problems,
            )
            return redacted.redact_result(result, known_names=names_in_values(real, content.values))

    def value(self, path: str, name: str, offset: int, length: int) -> RegistryValueRange:
        with self._redacted_query() as redacted:
            key = self._key(redacted, path)
            real, registry_value = self.registry.value(key, self._value_name(redacted, key, name), offset, length)
            result = RegistryValueRange(path=escape_controls(real), **msgspec.structs.asdict(_value(registry_value)))
            return redacted.redact_result(result, known_names=names_in_values(real, [registry_value]))

    def write(self, path: str, name: str, value: Any, type: str | None, *, dry_run: bool) -> RegistryWriteResult:
        with self._redacted_query() as redacted:
            key = self._key(redacted, path)
            change = self.registry.write(key, self._value_name(redacted, key, name), value, type, dry_run=dry_run)
            # Return the name as requested, so that a token in it stays a token.
            before = change.before
            change.name, change.before = name, None if before is None else _value(before)
            return redacted.redact_result(
                change, known_names=names_in_values(change.path, [] if before is None else [before])
            )

    # Processes and system

    def process_page(self, name: str | None, order: ProcessSort, limit: int, cursor: str | None) -> ProcessPage:
        with self._redacted_query() as redacted:
            question = ["processes", name, order]
            start = self._cursors.decode(cursor, question) if cursor is not None else 0
            matching, total = processes.list_processes(
                # All processes if results are anonymized: the filter on the anonymized form changes which ones are on a
                # page.
                redacted.resolve_tokens(name),
                order,
                None if redacted.is_active else start + limit,
            )
            rows = [msgspec.convert(escape_controls_deep(msgspec.to_builtins(item)), ProcessInfo) for item in matching]
            if self.privacy.level == "strict":
                for row in rows:
                    # Arguments may contain anything, and no pattern recognizes every name in them.
                    row.cmdline = None
            if redacted.is_active:
                redacted_rows = redacted.redact_result(ProcessPage(rows, 0, 0)).processes
                rows = [row for row in redacted_rows if _process_contains(row, encode_tokens(name or ""))]
                total = len(rows)
            page = list(_fit_page(rows[start : start + limit]))
            problems: list[str] = []
            more = start + len(page) < total
            following = self._cursors.encode(question, start + len(page), problems) if more else None
            return ProcessPage(page, len(page), total, more, following, problems)

    def info(self) -> MachineInfo:
        return self._redacted_query().redact_result(processes.machine_info())

    def health(self) -> SystemHealth:
        ready = self.index is None or self.index.is_ready
        result = SystemHealth(
            # Searches work without the index, only slower.
            status="ok" if ready else "degraded",
            levels={str(part): level for part, level in self.access_levels.items()},
            privacy=self.privacy.level,
            logs=list(self.logs.list),
            roots=[root.configured for root in self.files.roots.all],
            branches=list(self.registry.branches),
            indexed_files=self.index.count() if self.index is not None and self.index.is_ready else None,
            timestamp=_now_iso(),
        )
        return self._redacted_query().redact_result(result)

    def trail(self) -> AuditRecords:
        """Return the latest audit records, without arguments unless privacy is off: they may be those of other
        callers.
        """
        records = list(self.audit.recent)
        if self.privacy.level != "off":
            records = [msgspec.structs.replace(record, arguments={}) for record in records]
        return AuditRecords(records)


def _log(name: str, log: EventLog) -> LogInfo:
    try:
        return LogInfo(name, log.description, log.count(LOG_COUNT_TIMEOUT_SECONDS), log.size())
    except SystemToolError as failure:
        return LogInfo(name, f"{log.description}: {failure}", None, None)


def _resolve_query(redacted: RedactedQuery, query: LogQuery) -> tuple[LogQuery, RedactedEntryFilter | None]:
    """Return a query with its tokens resolved, and the test of the anonymized form of an entry."""
    resolved = msgspec.structs.replace(
        query, contains=redacted.resolve_tokens(query.contains), source=redacted.resolve_tokens(query.source)
    )
    return resolved, RedactedEntryFilter(redacted, query) if redacted.is_active else None


def _cut_messages(page: PageT, name: str, entries: list[LogEntry]) -> PageT:
    for row, entry in zip(page.entries, entries, strict=True):
        row.message = truncate(row.message, f"read eventlog://{name}/{entry.id}", whole=len(entry.message))
    return page


def _fit_page(rows: list[ProcessInfo]) -> Iterator[ProcessInfo]:
    """Yield as many rows as fit on a page, at least one."""
    room = MAX_PROCESS_PAGE_BYTES
    for row in rows:
        if room <= 0:
            return
        # Measured as sent, because command lines vary from a few bytes to many kilobytes.
        room -= len(msgspec.json.encode(row))
        yield row


def _process_contains(row: ProcessInfo, text: str) -> bool:
    """Return whether the anonymized form of a process contains a text."""
    return any(text.casefold() in encode_tokens(field or "").casefold() for field in (row.name, row.cmdline))


def _entry(name: str, entry: LogEntry, longest: int | None = None) -> EventEntry:
    return EventEntry(
        id=entry.id,
        log_name=name,
        level=LEVELS[entry.level],
        source=escape_controls(entry.source),
        event_id=entry.event_id or 0,
        message=escape_controls_multiline(entry.message if longest is None else entry.message[:longest]),
        timestamp=format_iso(entry.time),
        computer=escape_controls(entry.computer),
        time_guessed=entry.time_guess,
        level_guessed=entry.level_guessed,
    )


def _root(root: AllowedPath) -> FileRow:
    if root.only:
        return FileRow(os.path.join(root.configured, root.only), root.only, "file")
    return FileRow(root.configured, os.path.basename(root.configured), "directory")


def _value(datum: RegistryValue) -> RegistryValue:
    return msgspec.structs.replace(
        datum, name=escape_controls(datum.name), value=escape_controls_deep(to_json(datum.value))
    )


def _now_iso() -> str:
    return format_iso(time.time_ns() // 1000)


# Secret key of this installation, and the names that identify this machine


def installation_key(folder: Path | None) -> bytes:
    """Return the key of this installation, created on first use. Without a directory it is valid for this
    process only.
    """
    if folder is None:
        return os.urandom(32)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / "system.key"
    fd, draft = tempfile.mkstemp(dir=folder)
    try:
        with open(fd, "wb") as file:
            file.write(os.urandom(32))
        # A hard link appears atomically: another process never reads half a key.
        os.link(draft, path)
    except FileExistsError:
        pass
    except OSError:
        os.replace(draft, path)  # The file system does not support links.
    finally:
        Path(draft).unlink(missing_ok=True)
    result = path.read_bytes()
    if len(result) != 32:
        raise ValueError(f"invalid key file {path}: expected 32 bytes")
    return result


def local_names() -> Iterator[tuple[str, str]]:
    """Yield the names of this machine and of the users who have an account on it."""
    yield "host", socket.gethostname()
    try:
        import pwd  # Not available on Windows.
    except ImportError:
        yield "user", os.environ.get("USERNAME", "")
        return
    for account in pwd.getpwall():
        if _FIRST_USER_UID <= account.pw_uid < _LAST_USER_UID:
            yield "user", account.pw_name
