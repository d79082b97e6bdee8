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

    # Built-in services to serve, as with `--services`. None: all that work on this machine.
    services: list[str] | None = None
    # Whether to add tools that enable and disable services, as with `--service-admin`.
    service_admin: bool = False
    # Over HTTP on loopback: serve every local user without a token, as with `--no-auth`.
    no_auth: bool = False
    # How strictly the initialize handshake is enforced. None: `"auto"`, by protocol version.
    lifecycle: Literal["auto", "strict", "lenient"] | None = None
    # Largest accepted message. None: 4 MiB.
    max_message_size: Annotated[int, Meta(ge=1)] | None = None
    # Whether to list `find_tools` and `call_tool` instead of all tools; `"auto"`: only for large catalogs.
    tool_search: bool | Literal["auto"] = False
    # Whether to list `find_tools` and `run` instead of all tools; not together with `tool_search`.
    code_mode: bool = False
    # Names of tools that tool search and code mode always list.
    always_visible: list[str] = []
    # Limits and permissions of scripts in code mode.
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

    # Name in the server's info.
    name: Text | None = None
    # Version in the server's info.
    version: Text | None = None
    # Display name in the server's info.
    title: str | None = None
    # Description in the server's info.
    description: str | None = None
    # URL of a page about the server, in the server's info.
    website_url: str | None = None
    # Instructions that clients give to the model.
    instructions: str | None = None
    # How invalid arguments are reported: as a tool result, as a protocol error, or by protocol version.
    argument_errors: Literal["auto", "result", "protocol"] | None = None
    # Whether to reject arguments that only fit after a conversion, such as the string "5" for a number.
    strict_arguments: bool | None = None
    # Capabilities to advertise instead of all; requests for others are not answered. `false` removes one, `listChanged
    # = false` its notifications.
    capabilities: dict[str, Table | bool] | None = None
    # Members to add to the error data of an unknown tool.
    unknown_tool: Table | None = None
    # Members to add to the error data of an unknown prompt; `number` replaces the error code at 2024-11-05.
    unknown_prompt: Table | None = None
    # Whether the data of every error has `details`, a sentence.
    error_details: bool = False


class ServerSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Contents of a settings file. Unknown keys are errors, because an ignored setting protects nothing."""

    # One line for `portico profiles list`.
    description: str = ""
    # Metadata and capabilities of the server.
    server: ServerSection = field(default_factory=ServerSection)
    # Defaults of command-line options.
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
