"""`[audit]` section."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from portico.protocol.errors import UsageError
from portico.settings_file import SettingsError, convert
from portico_gateway.audit.sinks import SinkAddress, parse_sink

_PERIOD = re.compile(r"(\d{1,9})\s*(s|m|h|d|w)")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


class AuditSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the audit log: content, destinations and retention."""

    # Where records are stored: `true` for the server's store if it is PostgreSQL, otherwise `audit.db` in the data
    # directory; a URL; `false` for sinks only.
    store: bool | str = True
    # Directory of the key and the last checkpoint. None: the data directory.
    data_dir: str | None = None
    # Additional destinations: `file:/path`, `syslog://`, `syslog+tls://` and `syslog+udp://`, each with
    # `?format=jsonl`, `ocsf` or `cef`.
    sinks: tuple[str, ...] = ()
    # How arguments are recorded: as a digest, as text (truncated and redacted), or not at all. A digest lets an auditor
    # confirm a known value without storing personal data.
    arguments: Literal["hashed", "redacted", "omitted"] = "hashed"
    # Arguments that are recorded as text in any case: names for all tools, or names by a pattern of `owner.name`.
    logged_arguments: tuple[str, ...] | dict[str, tuple[str, ...]] = ()
    # What happens to calls while records cannot be written and the queue is full: they run unrecorded and are counted,
    # or they are rejected.
    on_overflow: Literal["drop", "reject"] = "drop"
    # Records that may wait for the store. The default covers a short outage without dropping or rejecting calls.
    max_pending: Annotated[int, Meta(ge=1)] = 100_000
    # Period after which records are removed, such as `400d`, `12h` or `2w`. None: never.
    retention: str | None = None
    # Whether calls on stdio are recorded.
    include_stdio: bool = False
    # Whether list requests are recorded.
    include_lists: bool = False
    # Whether completion requests are recorded.
    include_completions: bool = False

    @property
    def logged_argument_map(self) -> dict[str, tuple[str, ...]]:
        names = self.logged_arguments
        return names if isinstance(names, dict) else {"*": names} if names else {}

    @property
    def retention_seconds(self) -> int | None:
        return None if self.retention is None else parse_duration(self.retention)

    @property
    def sink_addresses(self) -> list[SinkAddress]:
        return [parse_sink(sink) for sink in self.sinks]


def parse_duration(period: str) -> int:
    """Parse a period such as `400d`, `12h`, `30m`, `90s` or `2w` into seconds. Raises UsageError."""
    match = _PERIOD.fullmatch(period.strip())
    if match is None or int(match[1]) == 0:
        raise UsageError(f"invalid period {period[:50]!r}: expected a form such as 400d, 12h, 30m or 90s")
    return int(match[1]) * _UNIT_SECONDS[match[2]]


def parse_audit_settings(table: Any, base_dir: Path) -> AuditSettings:
    """Parse the `[audit]` section. Raises SettingsError if it is invalid."""
    settings = convert(table, AuditSettings, "audit")
    try:
        # Parse both now, so that a mistake is reported at start and not when the first record is due.
        _ = settings.retention_seconds, settings.sink_addresses
    except UsageError as mistake:
        raise SettingsError(f"[audit] {mistake}", "audit") from None
    if not settings.store and not settings.sinks:
        raise SettingsError("[audit] sinks: expected at least one sink with store = false", "audit")
    return settings
