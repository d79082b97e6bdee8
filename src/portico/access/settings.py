"""The sections of a file that apply to any Server: its access.

They stand in the file that `--config` names, and in a gateway.toml. Each section is a row here: how it is read, which
is pure, and how it is put on a Server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from portico.access import authorization, tables
from portico.access.audit import audit
from portico.access.audit import settings as audit_settings
from portico.server.server import Server
from portico.wire.errors import UsageError


class AccessSection(Struct, frozen=True):
    """One name in the file. `read` takes what stands there and the folder of the file; it raises UsageError."""

    read: Callable[[Any, Path], Any]
    apply: Callable[[Server, Any], None]


# In the order in which they are applied.
SECTIONS: dict[str, AccessSection] = {
    "auth": AccessSection(authorization.read, authorization.apply),
    "rule": AccessSection(tables.read_rules, tables.apply_rules),
    "require": AccessSection(tables.read_requirements, tables.apply_requirements),
    "limit": AccessSection(tables.read_limits, tables.apply_limits),
    "audit": AccessSection(audit_settings.read, audit.apply),
}


class AccessSettings(Struct, frozen=True):
    """The sections that were there, each as it was read."""

    sections: dict[str, Any] = {}

    def __bool__(self) -> bool:
        return bool(self.sections)


def read(said: Mapping[str, Any], folder: str | Path = ".") -> AccessSettings:
    """What the tables of a file say of access; other tables are not looked at. Raises UsageError."""
    return AccessSettings(
        {name: section.read(said[name], Path(folder)) for name, section in SECTIONS.items() if name in said}
    )


def apply(server: Server, said: AccessSettings) -> None:
    """Put all of it on a server. Raises UsageError for what does not fit it."""
    for name, section in SECTIONS.items():
        if name in said.sections:
            try:
                section.apply(server, said.sections[name])
            except UsageError as mistake:
                raise UsageError(f"[{name}]: {mistake}") from None
