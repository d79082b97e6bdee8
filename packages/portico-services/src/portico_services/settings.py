"""Contents of a portico.toml. A profile is a file of the same format."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from portico.extend import ArgumentErrorMode
from portico.server.settings import ServerSettings, merge_tables, parse_settings_file, read_tables
from portico.settings_file import Table, locate_errors, unknown_key

# `[compat.target]`: compat section of the server that is the TARGET of `portico serve`, not a built-in service.
TARGET_SECTION = "target"


class CompatSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one service, `[compat.NAME]` in portico.toml. The defaults change nothing."""

    # Tools to list: a list of names, or a table that maps names to new names.
    tools: list[str] | dict[str, str] | None = None
    # Descriptions that replace the original ones, by original tool name.
    descriptions: dict[str, str] = field(default_factory=dict)
    # New names of URI schemes.
    uri_schemes: dict[str, str] = field(default_factory=dict)
    # How invalid arguments are reported, overriding the server: as a tool result, as a protocol error, or by protocol
    # version. None: as in `[server]`.
    argument_errors: ArgumentErrorMode | None = None
    # Reject arguments that are only valid after coercion, overriding the server.
    strict_arguments: bool = False
    # Whether successful results contain `isError: false`.
    include_is_error: Literal["always", "on_failure"] = "always"
    # Prefix of every error text.
    error_prefix: str = ""
    # Use the short form of errors that have one, with the cause and the remedy in parentheses.
    short_errors: bool = False
    # Add success, status, data, error and explanation to results up to 2025-03-26.
    envelope: bool = False
    # Prefix of an `errorCode` that errors in an envelope get: `MCP-` for `MCP-ToolExecutionError`.
    error_code_prefix: str = ""
    # List tools as `module_name.tool_name`.
    dotted_names: bool = False
    # Over HTTP: path that accepts bare calls, `{"tool_name": …, "arguments": …}`, with the credentials and the size
    # limit of the endpoint.
    call_path: Annotated[str, Meta(pattern=r"^/[a-z0-9/_-]+$")] | None = None
    # Whether to log the tool, outcome and duration of every call (`portico.contracts`).
    log_calls: bool = False
    # Calls per second of each tool with external effects; further calls are rejected. None: no limit.
    rate_limit: Annotated[float, Meta(gt=0)] | None = None
    # Calls of such a tool that may come at once.
    rate_burst: Annotated[int, Meta(ge=1)] = 10
    # Add `type: "text"` to the contents of resources up to 2025-03-26.
    typed_resource_contents: bool = False
    # Use number instead of integer in schemas, and omit null from optional types.
    simple_schemas: bool = False

    def map_uri(self, uri: str) -> str:
        """Return the URI with its new scheme."""
        scheme, mark, rest = uri.partition("://")
        return f"{self.uri_schemes.get(scheme, scheme)}{mark}{rest}" if mark else uri

    def scheme_aliases(self, schemes: Mapping[str, str]) -> dict[str, str]:
        """Return the URI schemes that are accepted but not listed, with the listed scheme of each."""
        moved = {name: self.uri_schemes.get(listed, listed) for name, listed in schemes.items()} | self.uri_schemes
        return {name: listed for name, listed in moved.items() if name != listed}


class SettingsFile(ServerSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings file including the sections of the services."""

    # Options of the built-in services, by service.
    services: dict[str, Table] = field(default_factory=dict)
    # Names and formats of another server, by service; `target` for your own server.
    compat: dict[str, CompatSection] = field(default_factory=dict)


def load_settings_file(path: str | Path, service_names: Collection[str]) -> Table:
    """Return the tables of a settings file. `service_names` are the existing services. Raises UsageError for invalid
    settings.
    """
    tables = read_tables(path)
    settings = parse_settings_file(path, tables, SettingsFile)
    with locate_errors(path):
        # The Struct accepts any table name here, so the names are checked separately, with a suggestion for typos.
        for table, names, allowed in (
            ("services", settings.services, tuple(service_names)),
            ("compat", settings.compat, (*service_names, TARGET_SECTION)),
        ):
            for name in names:
                if name not in allowed:
                    raise unknown_key(table, name, allowed)
    return tables


def merge_settings(*tables: Mapping[str, Any]) -> SettingsFile:
    """Return the merged settings of several files. Later files take precedence."""
    return merge_tables(SettingsFile, *tables)
