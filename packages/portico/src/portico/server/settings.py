"""The settings file named by `--config`: how a server is served, and its metadata.

Other packages add tables to it. `portico.server.policy.settings` reads the tables about access.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from msgspec import Meta, Struct, field

from portico import settings_file
from portico.plugins import install_command
from portico.protocol.errors import UsageError
from portico.protocol.meta import ServerCapabilities
from portico.server.policy.settings import ACCESS_SECTIONS
from portico.settings_file import Table, convert, locate, locate_errors, unknown_key

Text = Annotated[str, Meta(min_length=1)]


class ServeSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `[serve]` table: defaults for command-line options."""

    services: list[str] | None = None
    service_admin: bool = False
    # Over HTTP on loopback: serve every local user without a token.
    no_auth: bool = False
    lifecycle: Literal["auto", "strict", "lenient"] | None = None
    max_message_size: Annotated[int, Meta(ge=1)] | None = None
    # "auto" enables tool search for large tool lists.
    tool_search: bool | Literal["auto"] = False
    code_mode: bool = False
    # Tools that tool search always lists.
    always_visible: list[str] = []
    # Options of code mode: what scripts may do.
    code_limits: Table = {}
    # Over HTTP: protocol version to assume for clients that never send `initialize`.
    default_protocol_version: Literal["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] | None = None

    @property
    def tool_exposure(self) -> Literal["search", "code", "auto"] | None:
        """Return how tools are exposed, or None for the complete list. Raises UsageError if both are set."""
        if self.tool_search and self.code_mode:
            raise UsageError("[serve] set tool_search or code_mode, not both")
        if self.code_mode:
            return "code"
        return "auto" if self.tool_search == "auto" else "search" if self.tool_search else None


class ServerSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The `[server]` table: metadata and capabilities of the served server. An empty string removes a value."""

    name: Text | None = None
    version: Text | None = None
    title: str | None = None
    description: str | None = None
    website_url: str | None = None
    instructions: str | None = None
    argument_errors: Literal["auto", "result", "protocol"] | None = None
    # Reject arguments that only fit after a repair, such as the string "5" for a number.
    strict_arguments: bool | None = None
    # Advertise only these capabilities; others are not answered either. `false` removes one.
    capabilities: dict[str, Table | bool] | None = None
    # Additional members for the error data of an unknown tool.
    unknown_tool: Table | None = None
    # The same for an unknown prompt. A `number` member replaces the error code at 2024-11-05.
    unknown_prompt: Table | None = None
    # Whether the data of every error has `details`, a sentence.
    error_details: bool = False


class ServerSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Contents of a settings file. Unknown keys are errors, because an ignored setting protects nothing."""

    description: str = ""
    server: ServerSection = field(default_factory=ServerSection)
    serve: ServeSection = field(default_factory=ServeSection)


SettingsT = TypeVar("SettingsT", bound=ServerSettings)


def read_settings(path: str | Path) -> ServerSettings:
    """Return the settings of a file for a user's own server. Raises UsageError."""
    tables = read_tables(path)
    services = sorted({"services", "compat"} & tables.keys())
    if services:
        raise UsageError(
            f"{locate(path, services[0])}: [{services[0]}] is for the built-in services, which need portico-services: "
            f"{install_command('services')}"
        )
    return parse_settings_file(path, tables, ServerSettings)


def read_tables(path: str | Path) -> Table:
    """Return the tables of a file, except those about access. Raises UsageError."""
    return {name: part for name, part in settings_file.read_tables(path).items() if name not in ACCESS_SECTIONS}


def parse_settings_file(path: str | Path, tables: Table, kind: type[SettingsT]) -> SettingsT:
    """Return the settings of one file. Raises UsageError with the line and the key."""
    with locate_errors(path):
        return merge_tables(kind, tables)


def merge_tables(kind: type[SettingsT], *tables: Mapping[str, Any]) -> SettingsT:
    """Return the settings merged from several files; later files override earlier ones. Raises SettingsError."""
    merged: Table = {}
    for table in tables:
        merged = _deep_merge(merged, table)
    settings = convert(merged, kind)
    capability_names = ServerCapabilities.__struct_fields__
    for name in settings.server.capabilities or {}:
        if name not in capability_names:
            raise unknown_key("server.capabilities", name, capability_names)
    return settings


def _deep_merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> Table:
    """Merge tables recursively; non-table values of `above` replace values of `below`."""
    merged = {**below, **above}
    for name, part in above.items():
        if isinstance(part, dict) and isinstance(below.get(name), dict):
            merged[name] = _deep_merge(below[name], part)
    return merged
