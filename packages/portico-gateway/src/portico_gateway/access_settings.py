"""The sections of a file that apply to any Server: its access.

They stand in the file that `--config` names, and in a gateway.toml. Each section is a row here: how it is read, which
is pure, and how it is put on a Server.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from portico._lazy import load_module
from portico.protocol.errors import UsageError
from portico.server.server import Server


class AccessSection(Struct, frozen=True):
    """One name in the file. `read` takes what stands there and the folder of the file; it raises UsageError.

    Most files have few of them, and a start pays for no other: each is a module, loaded when its section is there.
    """

    read: Callable[[Any, Path], Any]
    apply: Callable[[Server, Any], None]
    # What is applied where the section is gone from a file that is read again. None: it cannot change while it serves.
    without: Callable[[], Any] | None = None


def _later(module: str, function: str) -> Callable[..., Any]:
    return lambda *given: getattr(load_module(module), function)(*given)


_TABLES, _EXPECTATIONS = "portico_gateway.policy.settings", "portico_gateway.policy.policy_tests"


def _no_tables() -> Any:
    return load_module(_TABLES).NO_TABLES


# In the order in which they are applied.
SECTIONS: dict[str, AccessSection] = {
    "auth": AccessSection(
        _later("portico_gateway.auth_settings", "read"), _later("portico_gateway.auth_settings", "apply")
    ),
    "rule": AccessSection(_later(_TABLES, "read_rules"), _later(_TABLES, "apply_rules"), _no_tables),
    "require": AccessSection(_later(_TABLES, "read_requirements"), _later(_TABLES, "apply_requirements"), _no_tables),
    "limit": AccessSection(_later(_TABLES, "read_limits"), _later(_TABLES, "apply_limits"), _no_tables),
    "expect": AccessSection(
        _later(_EXPECTATIONS, "read_expectations"), _later(_EXPECTATIONS, "apply_expectations"), _no_tables
    ),
    "audit": AccessSection(
        _later("portico_gateway.audit.settings", "read"), _later("portico_gateway.audit.hook", "apply")
    ),
}

# Their names, for those who read the rest of such a file.
ACCESS_SECTIONS = frozenset(SECTIONS)


class AccessSettings(Struct, frozen=True):
    """The sections that were there, each as it was read."""

    sections: dict[str, Any] = {}

    def __bool__(self) -> bool:
        return bool(self.sections)

    def without(self, name: str) -> AccessSettings:
        """Return the same settings without a section."""
        return AccessSettings({one: section for one, section in self.sections.items() if one != name})


def read(said: Mapping[str, Any], folder: str | Path = ".") -> AccessSettings:
    """What the tables of a file say of access; other tables are not looked at. Raises UsageError."""
    return AccessSettings(
        {name: section.read(said[name], Path(folder)) for name, section in SECTIONS.items() if name in said}
    )


def read_file(path: str | Path) -> AccessSettings:
    """What a TOML file says of access."""
    try:
        said = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as failure:
        raise UsageError(f"{path} cannot be read: {getattr(failure, 'strerror', None) or failure}") from None
    try:
        return read(said, Path(path).parent)
    except UsageError as mistake:
        raise UsageError(f"{path}: {mistake}") from None


def apply(server: Server, said: AccessSettings) -> None:
    """Put all of it on a server. Raises UsageError for what does not fit it."""
    for name, section in SECTIONS.items():
        if name in said.sections:
            try:
                section.apply(server, said.sections[name])
            except UsageError as mistake:
                raise UsageError(f"[{name}]: {mistake}") from None


def change(server: Server, before: AccessSettings, after: AccessSettings) -> None:
    """Apply what is other now. Raises UsageError, and changes nothing, for what takes a restart."""
    others = [name for name in SECTIONS if before.sections.get(name) != after.sections.get(name)]
    for name in others:
        if SECTIONS[name].without is None:
            raise UsageError(f"[{name}] is other now, and that takes a restart")
    for name in others:
        section = SECTIONS[name]
        assert section.without is not None
        section.apply(server, after.sections[name] if name in after.sections else section.without())
