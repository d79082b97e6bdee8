"""The sections of a file that apply to any Server: its access.

They stand in the file that `--config` names, and in a gateway.toml. Each section is a row here: how it is read, which
is pure, and how it is put on a Server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from portico._lazy import LazyModule
from portico.jsonschema.argument_issues import nearest
from portico.protocol.errors import UsageError

if TYPE_CHECKING:
    from portico import plugins
    from portico.auth import settings as auth_settings
    from portico.server.server import Server
else:
    plugins = LazyModule("portico.plugins")
    auth_settings = LazyModule("portico.auth.settings")


class AccessSection(Struct, frozen=True):
    """One name in the file. `read` takes what stands there and the folder of the file; it raises UsageError.

    Most files have few of them, and a start pays for no other: the module of each is loaded with its section.
    """

    read: Callable[[Any, Path], Any]
    apply: Callable[[Server, Any], None]
    # What is applied where the section is gone from a file that is read again. None: it cannot change while it serves.
    without: Callable[[], Any] | None = None


# In the order in which they are applied. All but the first need portico-gateway.
ACCESS_SECTIONS = ("auth", "rule", "require", "limit", "expect", "audit")


def _section(name: str) -> AccessSection:
    if name == "auth":
        return AccessSection(
            lambda said, folder: auth_settings.read(said, folder),
            lambda server, settings: auth_settings.apply(server, settings),
        )
    found: AccessSection = plugins.require_plugin("gateway", f"[{name}]").access_sections()[name]
    return found


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
        {name: _section(name).read(said[name], Path(folder)) for name in ACCESS_SECTIONS if name in said}
    )


def set_access(server: Server, said: str | Path | Mapping[str, Any]) -> None:
    """Set rules, limits and the like of a server: `set_access(server, "access.toml")`, or the contents of such a file:
    `set_access(server, {"rule": [{"who": "group:ops", "tool": "*"}]})`. At any time; what it names is replaced.

    Raises UsageError with what is wrong, and where.
    """
    folder = Path(said).parent if isinstance(said, str | Path) else Path()
    tables = said if isinstance(said, Mapping) else _tables(said)
    for name in tables:
        if name not in ACCESS_SECTIONS:
            close = nearest(name, ACCESS_SECTIONS)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(ACCESS_SECTIONS)}"
            raise UsageError(f"access has no {name!r}; {hint}")
    apply(server, read(tables, folder))


def _tables(path: str | Path) -> dict[str, Any]:
    # Only where there is a file.
    import tomllib

    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as failure:
        raise UsageError(f"{path} cannot be read: {getattr(failure, 'strerror', None) or failure}") from None


def read_file(path: str | Path) -> AccessSettings:
    """What a TOML file says of access."""
    said = _tables(path)
    try:
        return read(said, Path(path).parent)
    except UsageError as mistake:
        raise UsageError(f"{path}: {mistake}") from None


def apply(server: Server, said: AccessSettings) -> None:
    """Put all of it on a server. Raises UsageError for what does not fit it."""
    for name in ACCESS_SECTIONS:
        if name in said.sections:
            try:
                _section(name).apply(server, said.sections[name])
            except UsageError as mistake:
                raise UsageError(f"[{name}]: {mistake}") from None


def change(server: Server, before: AccessSettings, after: AccessSettings) -> None:
    """Apply what is other now. Raises UsageError, and changes nothing, for what takes a restart."""
    others = [name for name in ACCESS_SECTIONS if before.sections.get(name) != after.sections.get(name)]
    for name in others:
        if _section(name).without is None:
            raise UsageError(f"[{name}] is other now, and that takes a restart")
    for name in others:
        section = _section(name)
        assert section.without is not None
        section.apply(server, after.sections[name] if name in after.sections else section.without())
