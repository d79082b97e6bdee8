"""What the tools answer. Names are those of the wire; times are ISO 8601 in UTC."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from portico_services.system.logs.entries import Guess, Level

Order = Literal["pid", "cpu", "memory"]
Mode = Literal["CONTAINS", "FREETEXT"]
Algorithm = Annotated[Literal["sha256", "sha512", "sha1", "md5", "blake2b"], "How it is computed"]

LARGEST_READ = 2**20
# Entries on a page of a log, whatever its limit.
MAX_PAGE_ENTRIES = 6000
# Subkeys, and values, on a page of a registry key.
MOST_LISTED = 1000

# Within the server bytes are bytes: only what is written of them has these types.
RegistryData = Annotated[
    Any, Meta(extra_json_schema={"type": ["string", "integer", "array", "null"], "items": {"type": "string"}})
]


class EventEntry(Struct, rename="camel", omit_defaults=True):
    """An entry of a log. Where nothing is guessed, nothing is said of it."""

    id: Annotated[int, "Finds it again"]
    log_name: Annotated[str, "The log it stands in"]
    level: Annotated[Level, "How bad it is"]
    source: Annotated[str, "Who wrote it"]
    event_id: Annotated[int, "The number of the event; 0 if the log does not number its events"]
    message: Annotated[str, "What it says"]
    timestamp: Annotated[str, "When it was written"]
    computer: Annotated[str, "The machine it was written on"]
    time_guessed: Annotated[
        Guess | None,
        "What of the timestamp its log does not say: zone (this machine's is taken), year, date, or the time at all",
    ] = None
    level_guessed: Annotated[bool, "The log states no level; this is what the words of the message suggest"] = False


class EventPage(Struct, rename="camel"):
    """Entries of a log, in the order that was asked for."""

    entries: Annotated[list[EventEntry], "Newest first, or oldest first with order=asc"]
    total_count: Annotated[int, "How many entries match; a lower bound if totalIsExact is false"]
    total_is_exact: Annotated[bool, "Whether all were counted"]
    next_offset: Annotated[int | None, "Where the next page begins; null on the last"]
    next_cursor: Annotated[str | None, "Pass it as cursor for the next page: it stays right while the log grows"]
    page: Annotated[int, "Which page this is, from 1"]
    page_size: Annotated[
        int, "The most entries on this page: limit, at most 6000, or fewer where their messages have no room"
    ]
    has_more: Annotated[bool, "Whether there is a next page"]
    timed_out: Annotated[bool, "There was not enough time to look through everything; the next page goes on"] = False
    problems: Annotated[list[str], "What could not be read, and why"] = []


class FollowedEntries(Struct, rename="camel"):
    """Entries that a log has written since the cursor, oldest first."""

    entries: Annotated[list[EventEntry], "The new entries, oldest first"]
    next_cursor: Annotated[str | None, "Pass it as cursor to hear what comes after these"]
    has_more: Annotated[bool, "There are more already: ask again at once"]
    problems: Annotated[list[str], "What could not be read, and why"] = []


class LogInfo(Struct, rename="camel"):
    name: Annotated[str, "Its name"]
    description: Annotated[str, "What is logged in it"]
    entries: Annotated[int | None, "How many entries it has, where that is known"]
    size: Annotated[int | None, "Its size in bytes, where that is known"]


class LogList(Struct, rename="camel"):
    logs: Annotated[list[LogInfo], "The logs that may be read"]
    count: Annotated[int, "How many there are"]
    timestamp: Annotated[str, "When this was looked up"]


class LogStats(Struct, rename="camel"):
    """What a log consists of."""

    log_name: Annotated[str, "The log"]
    total_count: Annotated[int, "How many entries were counted"]
    total_is_exact: Annotated[bool, "Whether all were counted"]
    by_level: Annotated[dict[str, int], "How many there are of each level"]
    by_source: Annotated[dict[str, int], "How many there are of each source"]
    oldest: Annotated[str | None, "When the oldest was written"]
    newest: Annotated[str | None, "When the newest was written"]
    problems: Annotated[list[str], "What could not be read, and why"] = []


class FullEntry(Struct, rename="camel"):
    """An entry with everything that its log has about it."""

    entry: Annotated[EventEntry, "The entry"]
    fields: Annotated[dict[str, Any], "Everything else that its log has about it, by name"]


class TextMatch(Struct):
    """A line of a file with what was looked for."""

    line: Annotated[int, "The number of the line, from 1"]
    text: Annotated[str, "The line, cut if it is long"]


class FileRow(Struct, rename="camel"):
    path: Annotated[str, "Where it is"]
    name: Annotated[str, "Its name"]
    type: Annotated[str, "Whether it is a file, a folder, a link or the like"]
    size: Annotated[int | None, "Its size in bytes"] = None
    modified: Annotated[str | None, "When it was last written to"] = None
    matches: Annotated[list[TextMatch], "The lines with what was looked for"] = []


class FilePage(Struct, rename="camel"):
    """Files, a page of them."""

    files: Annotated[list[FileRow], "One page of them"]
    count: Annotated[int, "How many are on this page"]
    has_more: Annotated[bool, "Whether there is a next page"]
    next_cursor: Annotated[str | None, "Pass it as cursor for the next page"]
    total_count: Annotated[int | None, "How many there are in all, where that is known"] = None
    timed_out: Annotated[bool, "There was not enough time to look everywhere; the next page goes on"] = False
    used_index: Annotated[bool, "Whether an index was asked and not the disk"] = False
    problems: Annotated[list[str], "What could not be looked at, and why"] = []


class FileInfo(Struct, rename="camel"):
    """One file, folder or other thing, in the columns of osquery's `file`."""

    path: Annotated[str, "Where it is"]
    name: Annotated[str, "Its name"]
    type: Annotated[str, "Whether it is a file, a folder, a link or the like"]
    size: Annotated[int, "Its size in bytes"]
    mode: Annotated[str, "Its permissions, as `ls -l` shows them"]
    uid: Annotated[int, "The number of its owner"]
    gid: Annotated[int, "The number of its group"]
    owner: Annotated[str, "The name of its owner"]
    inode: Annotated[int, "Its number in the file system"]
    hard_links: Annotated[int, "How many names it has"]
    accessed: Annotated[str, "When it was last read"]
    modified: Annotated[str, "When it was last written to"]
    changed: Annotated[str, "When its permissions or names last changed"]
    created: Annotated[str | None, "When it was made, where that is known"]


class FilePart(Struct, rename="camel"):
    """Some of a file."""

    path: Annotated[str, "The file"]
    offset: Annotated[int, "The byte that this begins at"]
    length: Annotated[int, "How many bytes these are"]
    size: Annotated[int, "How many bytes the file has"]
    encoding: Annotated[Literal["utf-8", "utf-16", "base64"], "How the content is written"]
    content: Annotated[str, "What stands there"]
    next_offset: Annotated[int | None, "Where the next part begins; null at the end"]


class Checksum(Struct, rename="camel"):
    path: Annotated[str, "The file"]
    algorithm: Annotated[str, "How it was computed"]
    checksum: Annotated[str, "In hexadecimal digits"]
    size: Annotated[int, "The size of the file in bytes"]


class RegistryValue(Struct, rename="camel"):
    """A value; bytes are hexadecimal digits. The name "" is that of the default value."""

    name: Annotated[str, "Its name; empty for the default value"]
    type: Annotated[str, "Its type, as the registry calls it"]
    value: Annotated[RegistryData, "What it holds; bytes are hexadecimal digits"]
    size: Annotated[int, "Bytes, as they are stored"]
    offset: Annotated[int, "The byte that this part begins with"] = 0
    next_offset: Annotated[int | None, "Where the rest begins, for reg_read; null if this is all"] = None


class RegistryKey(Struct, rename="camel"):
    """Some of a key, by name: go on with nextCursor."""

    path: Annotated[str, "The key"]
    subkeys: Annotated[list[str], "The names of the keys in it"]
    values: Annotated[list[RegistryValue], "The values in it"]
    last_written: Annotated[str | None, "When it was last changed, where that is known"]
    has_more: Annotated[bool, "Whether there is more than is shown"]
    next_cursor: Annotated[str | None, "Pass it as cursor for the next page"] = None
    problems: Annotated[list[str], "What could not be read, and why"] = []


class RegistryRead(Struct, rename="camel"):
    """A value, or a part of it."""

    path: Annotated[str, "The key"]
    name: Annotated[str, "The name of the value; empty for the default value"]
    type: Annotated[str, "Its type, as the registry calls it"]
    value: Annotated[RegistryData, "What it holds; bytes are hexadecimal digits"]
    size: Annotated[int, "Bytes, as they are stored"]
    offset: Annotated[int, "The byte that this part begins with"]
    next_offset: Annotated[int | None, "Where the rest begins; null if this is all"]


class RegistryChange(Struct, rename="camel"):
    """What was written, or with dry_run what would be."""

    path: Annotated[str, "The key"]
    name: Annotated[str, "The name of the value; empty for the default value"]
    type: Annotated[str, "Its type, as the registry calls it"]
    before: Annotated[RegistryValue | None, "What was there before"]
    after: Annotated[RegistryData, "What it holds now; bytes are hexadecimal digits"]
    written: Annotated[bool, "Whether it was written; false in a dry run"]


class ProcessInfo(Struct):
    """A process. What this user may not know is None. Times are milliseconds of CPU; it began `start_time` seconds
    after 1970."""

    pid: Annotated[int, "Its number"]
    name: Annotated[str, "Its name"]
    path: Annotated[str | None, "The program that it runs"] = None
    cmdline: Annotated[str | None, "The words it was started with"] = None
    state: Annotated[str | None, "Whether it runs, sleeps, has stopped or the like"] = None
    username: Annotated[str | None, "Whose it is"] = None
    uid: Annotated[int | None, "The number of that user"] = None
    gid: Annotated[int | None, "The number of their group"] = None
    euid: Annotated[int | None, "The user whose rights it has"] = None
    egid: Annotated[int | None, "The group whose rights it has"] = None
    suid: Annotated[int | None, "The user whose rights it may take back"] = None
    sgid: Annotated[int | None, "The group whose rights it may take back"] = None
    on_disk: Annotated[int, "Whether its program is still there: 1, 0, or -1 if that is not known"] = -1
    resident_size: Annotated[int | None, "Bytes of it in memory"] = None
    total_size: Annotated[int | None, "Bytes it has reserved"] = None
    user_time: Annotated[int | None, "Milliseconds of CPU in its own code"] = None
    system_time: Annotated[int | None, "Milliseconds of CPU in the system's"] = None
    disk_bytes_read: Annotated[int | None, "Bytes it has read from disks"] = None
    disk_bytes_written: Annotated[int | None, "Bytes it has written to disks"] = None
    start_time: Annotated[int | None, "When it began, in seconds after 1970"] = None
    parent: Annotated[int | None, "The number of the process that started it"] = None
    threads: Annotated[int | None, "How many threads it has"] = None
    nice: Annotated[int | None, "How willingly it yields, from -20 to 19"] = None


class MachineInfo(Struct):
    """What is known of this machine."""

    hostname: Annotated[str, "Its name in the network"]
    computer_name: Annotated[str, "What its owner calls it"]
    cpu_type: Annotated[str, "The kind of its processor"]
    cpu_brand: Annotated[str, "What its maker calls the processor"]
    cpu_physical_cores: Annotated[int | None, "How many cores there are"]
    cpu_logical_cores: Annotated[int | None, "How many threads they run at once"]
    physical_memory: Annotated[int, "Bytes of memory"]
    available_memory: Annotated[int, "Bytes of memory that could be had"]
    hardware_vendor: Annotated[str, "Who made it"]
    hardware_model: Annotated[str, "Which model it is"]
    os_name: Annotated[str, "The operating system"]
    os_version: Annotated[str, "Its version"]
    os_platform: Annotated[str, "The family it belongs to"]
    os_build: Annotated[str, "Its build"]
    os_arch: Annotated[str, "What it is compiled for"]
    uptime_seconds: Annotated[int, "For how long it has been running"]
    load_average: Annotated[list[float], "How many processes wanted to run in the last 1, 5 and 15 minutes"]
    disk_total: Annotated[int, "Bytes on the disk of the system"]
    disk_free: Annotated[int, "Bytes of them that are free"]


class ProcessPage(Struct, rename="camel"):
    """Processes, in the columns of osquery."""

    processes: Annotated[list[ProcessInfo], "One page of them"]
    count: Annotated[int, "How many are on this page"]
    total_count: Annotated[int, "How many there are in all"]
    has_more: Annotated[bool, "Whether there are more behind this page"] = False
    next_cursor: Annotated[str | None, "Pass it as cursor for the next page"] = None
    problems: Annotated[list[str], "What could not be done, and why"] = []


class Health(Struct, rename="camel"):
    status: Annotated[Literal["ok", "degraded"], "Whether everything works"]
    levels: Annotated[dict[str, str], "What is allowed in each part"]
    privacy: Annotated[str, "What is hidden"]
    logs: Annotated[list[str], "The logs that may be read"]
    roots: Annotated[list[str], "The folders that may be looked at"]
    branches: Annotated[list[str], "The parts of the registry that may be looked at"]
    indexed_files: Annotated[int | None, "How many files the index knows, where there is one"]
    timestamp: Annotated[str, "When this was looked up"]


class AuditRecord(Struct, rename="camel"):
    number: Annotated[int, "Counts up"]
    time: Annotated[str, "When it was called"]
    tool: Annotated[str, "Which tool"]
    outcome: Annotated[str, "What came of it"]
    arguments: Annotated[dict[str, Any], "What it was given"]
    previous: Annotated[str, "The hash of the record before it"]
    hash: Annotated[str, "The hash of this one"] = ""


class AuditTrail(Struct, rename="camel"):
    records: Annotated[list[AuditRecord], "The last ones, newest last"]
