"""Settings sections about access, which apply to any Server.

They are part of the file named by `--config`, and of gateway.toml. Each section defines how it is read, which is pure,
and how it is applied to a Server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from portico._lazy import LazyModule
from portico.protocol.errors import UsageError
from portico.settings_file import locate_errors, read_tables, unknown_key

if TYPE_CHECKING:
    from portico.auth import settings as auth_settings
    from portico.server.results import settings as result_settings
    from portico.server.server import Server
else:
    auth_settings = LazyModule("portico.auth.settings")
    result_settings = LazyModule("portico.server.results.settings")


class AccessSection(Struct, frozen=True):
    """One section of the file. `read` takes its value and the directory of the file; it raises UsageError.

    Most files have few sections, so the module of each is imported only with its section.
    """

    read: Callable[[Any, Path], Any]
    apply: Callable[[Server, Any], None]
    # Value to apply when the section disappears from a reloaded file. None: the section cannot change while serving.
    without: Callable[[], Any] | None = None


# In the order of application. All but the first two require portico-gateway.
ACCESS_SECTIONS = ("auth", "results", "rule", "require", "limit", "policy_test", "audit")


def _section(name: str) -> AccessSection:
    if name == "auth":
        return AccessSection(
            lambda table, folder: auth_settings.parse_auth_settings(table, folder),
            lambda server, settings: auth_settings.apply(server, settings),
        )
    if name == "results":
        return AccessSection(
            lambda table, folder: result_settings.parse_result_settings(table, folder),
            lambda server, settings: result_settings.apply_result_settings(server, settings),
            lambda: None,
        )
    # Failing is deliberate: a server whose file has rules must not start without the package that
    # enforces them.
    from portico import plugins

    access_section: AccessSection = plugins.require_plugin("gateway", f"[{name}]").access_sections()[name]
    return access_section


class AccessSettings(Struct, frozen=True):
    """The sections of a file, each as its `read` returned it."""

    sections: dict[str, Any] = {}

    def __bool__(self) -> bool:
        return bool(self.sections)

    def without(self, name: str) -> AccessSettings:
        """Return the settings without a section."""
        return AccessSettings(
            {section_name: section for section_name, section in self.sections.items() if section_name != name}
        )


def read(table: Mapping[str, Any], folder: str | Path = ".") -> AccessSettings:
    """Read the access sections from the tables of a file; other tables are ignored. Raises UsageError."""
    return AccessSettings(
        {name: _section(name).read(table[name], Path(folder)) for name in ACCESS_SECTIONS if name in table}
    )


def configure_access(server: Server, settings: str | Path | Mapping[str, Any]) -> None:
    """Set rules, limits and other access settings of a server. Can be called while it is running.

    `settings` is the path of a file, `configure_access(server, "access.toml")`, or its contents,
    `configure_access(server, {"rule": [{"principal": "group:ops", "tool": "*"}]})`. Sections that it contains are
    replaced. Raises UsageError with the location of a mistake.
    """
    folder = Path(settings).parent if isinstance(settings, str | Path) else Path()
    tables = settings if isinstance(settings, Mapping) else read_tables(settings)
    for name in tables:
        if name not in ACCESS_SECTIONS:
            raise unknown_key("", name, ACCESS_SECTIONS)
    apply(server, read(tables, folder))


def read_file(path: str | Path) -> AccessSettings:
    """Return the access sections of a TOML file. Raises UsageError."""
    tables = read_tables(path)
    with locate_errors(path):
        return read(tables, Path(path).parent)


def apply(server: Server, settings: AccessSettings) -> None:
    """Apply the settings to a server. Raises UsageError for settings that do not fit it."""
    for name in ACCESS_SECTIONS:
        if name in settings.sections:
            try:
                _section(name).apply(server, settings.sections[name])
            except UsageError as mistake:
                raise UsageError(f"[{name}]: {mistake}") from None


def change(server: Server, before: AccessSettings, after: AccessSettings) -> None:
    """Apply the sections that differ. Raises UsageError, and changes nothing, if a section requires a restart."""
    others = [name for name in ACCESS_SECTIONS if before.sections.get(name) != after.sections.get(name)]
    # All checks before the first change, so that a rejected reload leaves the previous policy
    # complete.
    for name in others:
        if _section(name).without is None:
            raise UsageError(f"[{name}] changed; restart the server to apply it")
    for name in others:
        section = _section(name)
        assert section.without is not None
        section.apply(server, after.sections[name] if name in after.sections else section.without())
