"""Result types of the tools. Field names are those of the wire format; times are ISO 8601 in UTC."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from portico_services.system.logs.entries import LogLevel, TimeEstimate

ProcessSort = Literal["pid", "cpu", "memory"]
SearchMode = Literal["CONTAINS", "FREETEXT"]
HashAlgorithm = Annotated[Literal["sha256", "sha512", "sha1", "md5", "blake2b"], "Hash algorithm; default sha256"]

# A range of a file or value must fit into one message with room to spare.
MAX_READ_BYTES = 2**20
# Maximum entries on a page of a log, regardless of its limit.
MAX_PAGE_ENTRIES = 6000
# Maximum subkeys and maximum values on a page of a registry key.
MAX_KEY_PAGE_ITEMS = 1000

# Inside the server, binary values are bytes; these are the types of their JSON form.
RegistryData = Annotated[
    Any, Meta(extra_json_schema={"type": ["string", "integer", "array", "null"], "items": {"type": "string"}})
]


class EventEntry(Struct, rename="camel", omit_defaults=True):
    """Log entry. The guessed fields are omitted if nothing was estimated."""

    id: Annotated[int, "Entry id"]
    log_name: Annotated[str, "Log that contains the entry"]
    level: Annotated[LogLevel, "Severity"]
    source: Annotated[str, "Program, unit or provider that wrote the entry"]
    event_id: Annotated[int, "Event number; 0 if the log does not number events"]
    message: Annotated[str, "Message text"]
    timestamp: Annotated[str, "Time of the entry"]
    computer: Annotated[str, "Host name"]
    time_guessed: Annotated[
        TimeEstimate | None,
        "Part of the timestamp that the log does not state: zone (that of this machine is assumed), year, "
        "date, or the whole time",
    ] = None
    level_guessed: Annotated[bool, ("Whether the level was inferred from the message because the log states none")] = (
        False
    )


class EventPage(Struct, rename="camel"):
    """Page of log entries in the requested order."""

    entries: Annotated[list[EventEntry], "Entries, newest first, or oldest first with order=asc"]
    total_count: Annotated[int, "Number of matching entries; a lower bound if totalIsExact is false"]
    total_is_exact: Annotated[bool, "Whether totalCount is exact"]
    next_offset: Annotated[int | None, "Offset of the next page; null on the last page"]
    next_cursor: Annotated[str | None, "Cursor for the next page; stays valid while the log grows"]
    page: Annotated[int, "Page number, from 1"]
    page_size: Annotated[int, "Maximum entries on this page: the limit, at most 6000, fewer if messages are long"]
    has_more: Annotated[bool, "Whether there is a next page"]
    timed_out: Annotated[bool, "Whether the time limit ended the scan; the next page continues it"] = False
    problems: Annotated[list[str], "Parts that could not be read, with reasons"] = []


class FollowResult(Struct, rename="camel"):
    """New entries of a log since the cursor, oldest first."""

    entries: Annotated[list[EventEntry], "New entries, oldest first"]
    next_cursor: Annotated[str | None, "Cursor for the entries after these"]
    has_more: Annotated[bool, "Whether more entries are already available"]
    problems: Annotated[list[str], "Parts that could not be read, with reasons"] = []


class LogInfo(Struct, rename="camel"):
    name: Annotated[str, "Log name"]
    description: Annotated[str, "Kind of entries in the log"]
    entries: Annotated[int | None, "Number of entries, if known"]
    size: Annotated[int | None, "Size in bytes, if known"]


class LogList(Struct, rename="camel"):
    logs: Annotated[list[LogInfo], "Readable logs"]
    count: Annotated[int, "Number of logs"]
    timestamp: Annotated[str, "Time of this listing"]


class LogStats(Struct, rename="camel"):
    """Statistics of a log."""

    log_name: Annotated[str, "Log name"]
    total_count: Annotated[int, "Number of counted entries"]
    total_is_exact: Annotated[bool, "Whether all entries were counted"]
    by_level: Annotated[dict[str, int], "Number of entries by level"]
    by_source: Annotated[dict[str, int], "Number of entries by source"]
    oldest: Annotated[str | None, "Time of the oldest entry"]
    newest: Annotated[str | None, "Time of the newest entry"]
    problems: Annotated[list[str], "Parts that could not be read, with reasons"] = []


class EventDetail(Struct, rename="camel"):
    """Log entry with all its fields."""

    entry: Annotated[EventEntry, "Log entry"]
    fields: Annotated[dict[str, Any], "All other fields of the entry by name"]


class LineMatch(Struct):
    """Line of a file that matches the search."""

    line: Annotated[int, "Line number, from 1"]
    text: Annotated[str, "Text of the line, cut if it is long"]


class FileRow(Struct, rename="camel"):
    path: Annotated[str, "File path"]
    name: Annotated[str, "File name"]
    type: Annotated[str, "file, directory, link or other"]
    size: Annotated[int | None, "Size in bytes"] = None
    modified: Annotated[str | None, "Last modification time"] = None
    matches: Annotated[list[LineMatch], "Matching lines"] = []


class FilePage(Struct, rename="camel"):
    """Page of files."""

    files: Annotated[list[FileRow], "Files of this page"]
    count: Annotated[int, "Number of files on this page"]
    has_more: Annotated[bool, "Whether there is a next page"]
    next_cursor: Annotated[str | None, "Cursor for the next page"]
    total_count: Annotated[int | None, "Total number of files, if known"] = None
    timed_out: Annotated[bool, "Whether the time limit ended the search; the next page continues it"] = False
    used_index: Annotated[bool, "Whether the file name index was used instead of walking directories"] = False
    problems: Annotated[list[str], "Parts that could not be searched, with reasons"] = []


class FileInfo(Struct, rename="camel"):
    """Metadata of a file, directory or other entry, in the columns of osquery's `file`."""

    path: Annotated[str, "File path"]
    name: Annotated[str, "File name"]
    type: Annotated[str, "file, directory, link or other"]
    size: Annotated[int, "Size in bytes"]
    mode: Annotated[str, "Permissions, as shown by `ls -l`"]
    uid: Annotated[int, "User id of the owner"]
    gid: Annotated[int, "Group id"]
    owner: Annotated[str, "Name of the owner"]
    inode: Annotated[int, "Inode number"]
    hard_links: Annotated[int, "Number of hard links"]
    accessed: Annotated[str, "Last access time"]
    modified: Annotated[str, "Last modification time"]
    changed: Annotated[str, "Last change of permissions or names"]
    created: Annotated[str | None, "Creation time, if known"]


class FileRange(Struct, rename="camel"):
    """Range of a file."""

    path: Annotated[str, "File path"]
    offset: Annotated[int, "Offset of the first byte"]
    length: Annotated[int, "Number of bytes in this range"]
    size: Annotated[int, "File size in bytes"]
    encoding: Annotated[Literal["utf-8", "utf-16", "base64"], "Encoding of the content"]
    content: Annotated[str, "Content of the range"]
    next_offset: Annotated[int | None, "Offset of the next range; null at the end"]


class Checksum(Struct, rename="camel"):
    path: Annotated[str, "File path"]
    algorithm: Annotated[str, "Hash algorithm"]
    checksum: Annotated[str, "Hexadecimal digest"]
    size: Annotated[int, "File size in bytes"]


class RegistryValue(Struct, rename="camel"):
    """Registry value; binary data is hexadecimal. The default value has an empty name."""

    name: Annotated[str, "Value name; empty for the default value"]
    type: Annotated[str, "Registry type"]
    value: Annotated[RegistryData, "Value; binary data is hexadecimal"]
    size: Annotated[int, "Stored size in bytes"]
    offset: Annotated[int, "Offset of the first byte of this range"] = 0
    next_offset: Annotated[int | None, "Offset of the next range for reg_read; null if complete"] = None


class RegistryKey(Struct, rename="camel"):
    """Page of a registry key, sorted by name; continue with nextCursor."""

    path: Annotated[str, "Registry key"]
    subkeys: Annotated[list[str], "Names of the subkeys"]
    values: Annotated[list[RegistryValue], "Values of the key"]
    last_written: Annotated[str | None, "Last modification time, if known"]
    has_more: Annotated[bool, "Whether there is a next page"]
    next_cursor: Annotated[str | None, "Cursor for the next page"] = None
    problems: Annotated[list[str], "Parts that could not be read, with reasons"] = []


class RegistryValueRange(Struct, rename="camel"):
    """Registry value or a range of it."""

    path: Annotated[str, "Registry key"]
    name: Annotated[str, "Value name; empty for the default value"]
    type: Annotated[str, "Registry type"]
    value: Annotated[RegistryData, "Value; binary data is hexadecimal"]
    size: Annotated[int, "Stored size in bytes"]
    offset: Annotated[int, "Offset of the first byte of this range"]
    next_offset: Annotated[int | None, "Offset of the next range; null if complete"]


class RegistryWriteResult(Struct, rename="camel"):
    """Result of writing a registry value, or with dry_run its preview."""

    path: Annotated[str, "Registry key"]
    name: Annotated[str, "Value name; empty for the default value"]
    type: Annotated[str, "Registry type"]
    before: Annotated[RegistryValue | None, "Value before the change"]
    after: Annotated[RegistryData, "Value after the change; binary data is hexadecimal"]
    written: Annotated[bool, "Whether the value was written; false in a dry run"]


class ProcessInfo(Struct):
    """Process. Fields that are not accessible to this user are null. CPU times are in milliseconds; `start_time` is in
    seconds since 1970.
    """

    pid: Annotated[int, "Process id"]
    name: Annotated[str, "Process name"]
    path: Annotated[str | None, "Path of the executable"] = None
    cmdline: Annotated[str | None, "Command line"] = None
    state: Annotated[str | None, "State letter: R running, S sleeping, T stopped and so on"] = None
    username: Annotated[str | None, "User name of the owner"] = None
    uid: Annotated[int | None, "User id"] = None
    gid: Annotated[int | None, "Group id"] = None
    euid: Annotated[int | None, "Effective user id"] = None
    egid: Annotated[int | None, "Effective group id"] = None
    suid: Annotated[int | None, "Saved user id"] = None
    sgid: Annotated[int | None, "Saved group id"] = None
    on_disk: Annotated[int, "Whether the executable still exists: 1, 0, or -1 if unknown"] = -1
    resident_size: Annotated[int | None, "Resident memory in bytes"] = None
    total_size: Annotated[int | None, "Virtual memory in bytes"] = None
    user_time: Annotated[int | None, "CPU time in user mode, in milliseconds"] = None
    system_time: Annotated[int | None, "CPU time in kernel mode, in milliseconds"] = None
    disk_bytes_read: Annotated[int | None, "Bytes read from disk"] = None
    disk_bytes_written: Annotated[int | None, "Bytes written to disk"] = None
    start_time: Annotated[int | None, "Start time in seconds since 1970"] = None
    parent: Annotated[int | None, "Process id of the parent"] = None
    threads: Annotated[int | None, "Number of threads"] = None
    nice: Annotated[int | None, "Nice value, from -20 to 19"] = None


class MachineInfo(Struct):
    """System information of this machine."""

    hostname: Annotated[str, "Network host name"]
    computer_name: Annotated[str, "Computer name"]
    cpu_type: Annotated[str, "CPU architecture"]
    cpu_brand: Annotated[str, "CPU model"]
    cpu_physical_cores: Annotated[int | None, "Number of physical cores"]
    cpu_logical_cores: Annotated[int | None, "Number of logical cores"]
    physical_memory: Annotated[int, "Physical memory in bytes"]
    available_memory: Annotated[int, "Available memory in bytes"]
    hardware_vendor: Annotated[str, "Hardware vendor"]
    hardware_model: Annotated[str, "Hardware model"]
    os_name: Annotated[str, "Operating system"]
    os_version: Annotated[str, "Operating system version"]
    os_platform: Annotated[str, "Operating system family"]
    os_build: Annotated[str, "Operating system build"]
    os_arch: Annotated[str, "Operating system architecture"]
    uptime_seconds: Annotated[int, "Uptime in seconds"]
    load_average: Annotated[list[float], "Load average of the last 1, 5 and 15 minutes"]
    disk_total: Annotated[int, "Size of the system disk in bytes"]
    disk_free: Annotated[int, "Free space of the system disk in bytes"]


class ProcessPage(Struct, rename="camel"):
    """Page of processes, in the columns of osquery."""

    processes: Annotated[list[ProcessInfo], "Processes of this page"]
    count: Annotated[int, "Number of processes on this page"]
    total_count: Annotated[int, "Total number of processes"]
    has_more: Annotated[bool, "Whether there is a next page"] = False
    next_cursor: Annotated[str | None, "Cursor for the next page"] = None
    problems: Annotated[list[str], "Parts that could not be read, with reasons"] = []


class SystemHealth(Struct, rename="camel"):
    status: Annotated[Literal["ok", "degraded"], "Whether all parts work"]
    levels: Annotated[dict[str, str], "Access level of each part"]
    privacy: Annotated[str, "Privacy mode"]
    logs: Annotated[list[str], "Readable logs"]
    roots: Annotated[list[str], "Directories that may be read"]
    branches: Annotated[list[str], "Registry branches that may be read"]
    indexed_files: Annotated[int | None, "Number of indexed files, if there is an index"]
    timestamp: Annotated[str, "Time of this report"]


class AuditRecord(Struct, rename="camel"):
    number: Annotated[int, "Sequence number"]
    time: Annotated[str, "Time of the call"]
    tool: Annotated[str, "Called tool"]
    outcome: Annotated[str, "Outcome of the call"]
    arguments: Annotated[dict[str, Any], "Arguments of the call"]
    previous: Annotated[str, "Hash of the previous record"]
    hash: Annotated[str, "Hash of this record"] = ""


class AuditRecords(Struct, rename="camel"):
    records: Annotated[list[AuditRecord], "Latest records, newest last"]
