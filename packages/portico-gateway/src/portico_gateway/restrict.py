"""Access for a server that is put together in Python: the tables of a file, or the file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from portico.jsonschema.argument_issues import nearest
from portico.protocol.errors import UsageError
from portico.server.server import Server
from portico_gateway import access_settings


def set_access(server: Server, said: str | Path | Mapping[str, Any]) -> None:
    """Put rules, limits and the like on a server: `set_access(server, "access.toml")`, or what would stand in the file:
    `set_access(server, {"rule": [{"who": "group:ops", "tool": "*"}]})`. At any time; what it names is replaced.

    Raises UsageError with what is wrong, and where.
    """
    folder = Path(said).parent if isinstance(said, str | Path) else Path()
    tables = said if isinstance(said, Mapping) else _tables(said)
    for name in tables:
        if name not in access_settings.SECTIONS:
            close = nearest(name, access_settings.SECTIONS)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(access_settings.SECTIONS)}"
            raise UsageError(f"access has no {name!r}; {hint}")
    access_settings.apply(server, access_settings.read(tables, folder))


def _tables(path: str | Path) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as failure:
        raise UsageError(f"{path} cannot be read: {getattr(failure, 'strerror', None) or failure}") from None
