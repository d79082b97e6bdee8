"""`[audit]` of a file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from portico.protocol.errors import UsageError
from portico_gateway.audit.sinks import SinkAddress, parse_sink

_PERIOD = re.compile(r"(\d{1,9})\s*(s|m|h|d|w)")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


class AuditSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is recorded, where it is kept, and for how long."""

    # Whether records are kept in a store: that of the server, or the one that a URL names.
    store: bool | str = True
    # Where the key and the last checkpoint are: the data directory unless said otherwise.
    data: str | None = None
    # Where records are sent besides: `file:/var/log/audit.jsonl?format=ocsf`, `syslog+tls://siem:6514?format=cef`.
    sinks: tuple[str, ...] = ()
    # By their digest, as they are (cut, and without secrets), or not at all.
    arguments: Literal["hashed", "shown", "none"] = "hashed"
    # Arguments that are shown nevertheless: of all tools, or by a pattern for `owner.name`.
    fields: tuple[str, ...] | dict[str, tuple[str, ...]] = ()
    # What becomes of calls when records cannot be written and no more can wait.
    on_full: Literal["drop", "refuse"] = "drop"
    most_waiting: Annotated[int, Meta(ge=1)] = 100_000
    # For how long records are kept; None: for ever.
    keep: str | None = None
    # Whether calls on stdio are recorded, lists, and completions.
    stdio: bool = False
    lists: bool = False
    completions: bool = False

    @property
    def shown_fields(self) -> dict[str, tuple[str, ...]]:
        return self.fields if isinstance(self.fields, dict) else {"*": self.fields} if self.fields else {}

    @property
    def keep_seconds(self) -> int | None:
        return None if self.keep is None else seconds_of(self.keep)

    @property
    def sink_addresses(self) -> list[SinkAddress]:
        return [parse_sink(one) for one in self.sinks]


def seconds_of(period: str) -> int:
    """Of `400d`, `12h`, `30m`, `90s`, `2w`. Raises UsageError."""
    found = _PERIOD.fullmatch(period.strip())
    if found is None or int(found[1]) == 0:
        raise UsageError(f"{period[:50]!r} is no period of time: write 400d, 12h, 30m or 90s")
    return int(found[1]) * _UNIT_SECONDS[found[2]]


def read(said: Any, folder: Path) -> AuditSettings:
    """What stands in the section. Paths of sinks and of the data directory may be relative to the file."""
    try:
        settings = msgspec.convert(said, AuditSettings)
    except msgspec.ValidationError as mistake:
        raise UsageError(f"[audit]: {str(mistake).replace('`$.', '`').replace('`', chr(39))}") from None
    try:
        _ = settings.keep_seconds, settings.sink_addresses
    except UsageError as mistake:
        raise UsageError(f"[audit]: {mistake}") from None
    if not settings.store and not settings.sinks:
        raise UsageError("[audit]: with store = false there has to be a sink")
    return settings
