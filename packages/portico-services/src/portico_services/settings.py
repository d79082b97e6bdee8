"""What a portico.toml says. A profile is a file of the same kind."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from msgspec import field

from portico import UsageError
from portico.server.settings import ServerSettings, Table, checked, merged, place, read_tables
from portico_services.profiles.settings import ServiceShape

# `[shapes.own]`: the shape of a server that is no service of ours.
OWN = "own"


class ServeSettings(ServerSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole file, with the settings of the services."""

    services: dict[str, Table] = field(default_factory=dict)
    shapes: dict[str, ServiceShape] = field(default_factory=dict)


def read(path: str | Path, known: Collection[str]) -> Table:
    """Return the tables of a file. Raises UsageError for one that makes no sense. `known`: the services there are."""
    tables = read_tables(path)
    settings = checked(path, tables, ServeSettings, {"shapes": ServiceShape})
    unknown = [f"services.{name}" for name in settings.services if name not in known]
    unknown += [f"shapes.{name}" for name in settings.shapes if name not in known and name != OWN]
    if unknown:
        services = ", ".join(known)
        raise UsageError(f"{place(path, unknown[0])}: unknown {', '.join(unknown)}; the services are {services}")
    return tables


def of(*tables: Mapping[str, Any]) -> ServeSettings:
    """Return the settings of several files together. Those of a later file replace those of the others."""
    return merged(ServeSettings, *tables)
