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
    # How invalid arguments are reported, overriding the server: as a protocol error or a tool result.
    argument_errors: ArgumentErrorMode | None = None
    # Reject arguments that are only valid after coercion, overriding the server.
    strict_arguments: bool = False
    # Whether successful results contain `isError: false`.
    include_is_error: Literal["always", "on_failure"] = "always"
    # Prefix of every error text.
    error_prefix: str = ""
    # Use the short form of errors that have one.
    short_errors: bool = False
    # Add success, status, data, error and explanation to results without structured content.
    envelope: bool = False
    # Prefix of an `errorCode` in the envelope: `MCP-ToolExecutionError`.
    error_code_prefix: str = ""
    # List tools by their dotted names.
    dotted_names: bool = False
    # HTTP path that accepts bare calls by contract: `{"tool_name", "arguments"}`.
    call_path: Annotated[str, Meta(pattern=r"^/[a-z0-9/_-]+$")] | None = None
    # Log every call.
    log_calls: bool = False
    # Rate limit in calls per second, and burst, of each tool with external effects; None for no limit.
    rate_limit: Annotated[float, Meta(gt=0)] | None = None
    rate_burst: Annotated[int, Meta(ge=1)] = 10
    # Add `type: "text"` to the contents of resources, up to LAST_ENVELOPE_VERSION.
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

    services: dict[str, Table] = field(default_factory=dict)
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
