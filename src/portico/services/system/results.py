"""What the tools answer. Names are those of the wire; times are ISO 8601 in UTC."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Struct

from portico.services.system.eventlog.entries import Level

Order = Literal["pid", "cpu", "memory"]
Mode = Literal["CONTAINS", "FREETEXT"]
Algorithm = Literal["sha256", "sha512", "sha1", "md5", "blake2b"]

LARGEST_READ = 2**20
# Subkeys, and values, on a page of a registry key.
MOST_LISTED = 1000


class EventEntry(Struct, rename="camel"):
    """An entry of a log."""

    id: int
    log_name: str
    level: Level
    source: str
    event_id: int | None
    message: str
    timestamp: str
    computer: str


class EventPage(Struct, rename="camel"):
    """Entries, newest first."""

    entries: list[EventEntry]
    total_count: Annotated[int, "How many match; at least so many if totalIsExact is false"]
    total_is_exact: bool
    next_offset: int | None
    next_cursor: Annotated[str | None, "Pass it as cursor for the next page: it stays right while the log grows"]
    page: int
    page_size: int
    has_more: bool
    timed_out: Annotated[bool, "There was not enough time to look through everything; the next page goes on"] = False
    problems: Annotated[list[str], "What could not be read, and why"] = []


class LogInfo(Struct, rename="camel"):
    name: str
    description: str
    entries: int | None
    size: int | None


class LogList(Struct, rename="camel"):
    logs: list[LogInfo]
    count: int
    timestamp: str


class LogStats(Struct, rename="camel"):
    """What a log consists of."""

    log_name: str
    total_count: int
    total_is_exact: bool
    by_level: dict[str, int]
    by_source: dict[str, int]
    oldest: str | None
    newest: str | None
    problems: list[str] = []


class FullEntry(Struct, rename="camel"):
    """An entry with everything that its log has about it."""

    entry: EventEntry
    fields: dict[str, Any]


class TextMatch(Struct):
    """A line of a file with what was looked for."""

    line: int
    text: str


class FileRow(Struct, rename="camel"):
    path: str
    name: str
    type: str
    size: int | None = None
    modified: str | None = None
    matches: list[TextMatch] = []


class FilePage(Struct, rename="camel"):
    """Files, a page of them."""

    files: list[FileRow]
    count: int
    has_more: bool
    next_cursor: str | None
    total_count: int | None = None
    timed_out: Annotated[bool, "There was not enough time to look everywhere; the next page goes on"] = False
    used_index: bool = False
    problems: list[str] = []


class FileInfo(Struct, rename="camel"):
    """One file, folder or other thing, in the columns of osquery's `file`."""

    path: str
    name: str
    type: str
    size: int
    mode: str
    uid: int
    gid: int
    owner: str
    inode: int
    hard_links: int
    accessed: str
    modified: str
    changed: str
    created: str | None


class FilePart(Struct, rename="camel"):
    """Some of a file."""

    path: str
    offset: int
    length: int
    size: int
    encoding: Literal["utf-8", "utf-16", "base64"]
    content: str
    next_offset: int | None


class Checksum(Struct, rename="camel"):
    path: str
    algorithm: str
    checksum: str
    size: int


class RegistryValue(Struct, rename="camel"):
    """A value; bytes are hexadecimal digits. The name "" is that of the default value."""

    name: str
    type: str
    value: Any
    size: Annotated[int, "Bytes, as they are stored"]
    offset: Annotated[int, "The byte that this part begins with"] = 0
    next_offset: Annotated[int | None, "Where the rest begins, for reg_read; null if this is all"] = None


class RegistryKey(Struct, rename="camel"):
    """Some of a key, by name: go on with nextCursor."""

    path: str
    subkeys: list[str]
    values: list[RegistryValue]
    last_written: str | None
    has_more: bool
    next_cursor: str | None = None
    problems: list[str] = []


class RegistryRead(Struct, rename="camel"):
    """A value, or a part of it."""

    path: str
    name: str
    type: str
    value: Any
    size: Annotated[int, "Bytes, as they are stored"]
    offset: Annotated[int, "The byte that this part begins with"]
    next_offset: Annotated[int | None, "Where the rest begins; null if this is all"]


class RegistryChange(Struct, rename="camel"):
    """What was written, or with dry_run what would be."""

    path: str
    name: str
    type: str
    before: RegistryValue | None
    after: Any
    written: bool


class ProcessInfo(Struct):
    """A process. What this user may not know is None. Times are milliseconds of CPU; it began `start_time` seconds
    after 1970."""

    pid: int
    name: str
    path: str | None = None
    cmdline: str | None = None
    state: str | None = None
    username: str | None = None
    uid: int | None = None
    gid: int | None = None
    euid: int | None = None
    egid: int | None = None
    suid: int | None = None
    sgid: int | None = None
    on_disk: int = -1
    resident_size: int | None = None
    total_size: int | None = None
    user_time: int | None = None
    system_time: int | None = None
    disk_bytes_read: int | None = None
    disk_bytes_written: int | None = None
    start_time: int | None = None
    parent: int | None = None
    threads: int | None = None
    nice: int | None = None


class MachineInfo(Struct):
    """What is known of this machine."""

    hostname: str
    computer_name: str
    cpu_type: str
    cpu_brand: str
    cpu_physical_cores: int | None
    cpu_logical_cores: int | None
    physical_memory: int
    available_memory: int
    hardware_vendor: str
    hardware_model: str
    os_name: str
    os_version: str
    os_platform: str
    os_build: str
    os_arch: str
    uptime_seconds: int
    load_average: list[float]
    disk_total: int
    disk_free: int


class ProcessPage(Struct, rename="camel"):
    """Processes, in the columns of osquery."""

    processes: list[ProcessInfo]
    count: int
    total_count: int


class Health(Struct, rename="camel"):
    status: Literal["ok", "degraded"]
    levels: dict[str, str]
    privacy: str
    logs: list[str]
    roots: list[str]
    branches: list[str]
    indexed_files: int | None
    timestamp: str


class AuditRecord(Struct, rename="camel"):
    number: int
    time: str
    tool: str
    outcome: str
    arguments: dict[str, Any]
    previous: str
    hash: str = ""


class AuditTrail(Struct, rename="camel"):
    records: list[AuditRecord]
