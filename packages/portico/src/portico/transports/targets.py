"""Targets of a client: a URL, a command, an object in a module, an entry of an mcp.json, or a Handler."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from portico.compat.fastmcp.config_file import deployment_in, source_in
from portico.protocol.errors import UsageError
from portico.rpc.call import Handler
from portico.transports import importer
from portico.transports.short_urls import with_scheme

# Supported references: `${NAME}`, `${NAME:-default}`, `${env:NAME}` and `${file:PATH}`.
_REFERENCE = re.compile(r"\$\{(?:file:([^}]+)|(?:env:)?(\w+)(?::-([^}]*))?)\}")
MAX_SECRET_CHARS = 64 * 1024
# Tables that identify a gateway file. They do not occur in an mcp.json.
_GATEWAY_TABLES = ("gateway", "upstream", "view")


class MissingValue(UsageError):
    """A configuration refers to an environment variable that is not set, or to a file that cannot be read."""


class InProcessTarget(Struct, frozen=True):
    """Handler in this process."""

    handler: Handler

    @property
    def cache_key(self) -> str:
        return ""


class CommandTarget(Struct, frozen=True):
    """Command that starts a server as a child process."""

    words: tuple[str, ...]
    env: dict[str, str] | None = None
    cwd: str | None = None
    # Separates the cached lists of equal commands whose environment makes them different servers.
    cache_scope: str = ""

    @property
    def cache_key(self) -> str:
        return shlex.join(self.words) + (f"\0{self.cache_scope}" if self.cache_scope else "")


class UrlTarget(Struct, frozen=True):
    """Server that is already running, at a URL."""

    url: str
    headers: dict[str, str]
    # Whether an mcp.json requires the HTTP+SSE transport of 2024-11-05.
    sse: bool = False

    @property
    def cache_key(self) -> str:
        return self.url


Target = InProcessTarget | CommandTarget | UrlTarget


def configuration_kind(value: Any) -> Literal["gateway", "several"] | None:
    """Return the kind of a configuration.

    "gateway" is the path of a gateway file, "several" a configuration with several servers of which none is named. All
    other targets give None.
    """
    is_file = isinstance(value, str) and not importer.is_command_line(value.strip())
    if is_file and value.strip().endswith(".toml"):
        return "gateway"
    if is_file and value.strip().endswith(".json"):
        value = read_configuration(value.strip())
        if any(isinstance(value.get(name), Mapping) for name in _GATEWAY_TABLES):
            return "gateway"
    servers = _servers_in(value) if isinstance(value, Mapping) else None
    return "several" if servers is not None and len(servers) > 1 else None


def server_names(value: str) -> list[str]:
    """Return the names of the servers in an mcp.json."""
    return [str(name) for name in _servers_in(read_configuration(value.strip())) or ()]


def _servers_in(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the entries of an mcp.json (`mcpServers`, or VS Code's `servers`), or None if it has neither."""
    servers = document.get("mcpServers", document.get("servers"))
    return servers if isinstance(servers, Mapping) else None


def server_entries(configuration: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the enabled entries of a configuration by name. Raises `UsageError` if an entry is not an object."""
    entries: dict[str, Mapping[str, Any]] = {}
    for name, entry in (_servers_in(configuration) or {}).items():
        if not isinstance(entry, Mapping):
            raise UsageError(f"the entry {name!r} must be an object")
        if entry.get("disabled") is not True:
            entries[str(name)] = entry
    return entries


def parse_target(
    value: Any,
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Target:
    """Determine the kind of a target from its form, and add the given options to it."""
    result = _parse_value(value)
    if headers and not isinstance(result, UrlTarget):
        raise UsageError("headers can only be set for a server at a URL")
    if (env or cwd) and not isinstance(result, CommandTarget):
        raise UsageError("env and cwd can only be set for a command")
    if isinstance(result, CommandTarget):
        both = {**(result.env or {}), **(env or {})}
        return CommandTarget(result.words, both or None, cwd or result.cwd)
    if isinstance(result, UrlTarget):
        return UrlTarget(result.url, {**result.headers, **(headers or {})}, result.sse)
    return result


def _parse_value(value: Any) -> Target:
    if isinstance(value, str):
        return _parse_string(value)
    if isinstance(value, os.PathLike):
        return InProcessTarget(importer.import_server(os.fspath(value)))
    if isinstance(value, Mapping):
        return _parse_entry(_select_entry(value, "the configuration", ""), "the configuration")
    if isinstance(value, Sequence) and value and all(isinstance(word, str) for word in value):
        return CommandTarget(tuple(value))
    if callable(value):
        return InProcessTarget(value)
    raise UsageError(
        f"cannot connect to {value!r}: expected a URL, a command, a module:object, an mcp.json entry, a Server "
        "or a Handler"
    )


def _parse_string(text: str) -> Target:
    text = with_scheme(text.strip())
    if re.match(r"https?://", text, re.IGNORECASE):
        return UrlTarget(text, {})
    if not text:
        raise UsageError("the target must not be empty")
    # `mcp.json:name` selects one server of a file.
    path, _, name = text.partition(".json")
    is_command_line = importer.is_command_line(text)
    if not is_command_line and (text.endswith(".json") or name.startswith(":")):
        return _parse_config_file(f"{path}.json", name.removeprefix(":"))
    # The argument of a command may contain a colon; a command of a single word does not.
    if not is_command_line and importer.is_import_string(text):
        return InProcessTarget(importer.import_server(text))
    if not is_command_line:
        return CommandTarget((text,))
    try:
        return CommandTarget(tuple(shlex.split(text)))
    except ValueError as failure:
        raise UsageError(f"invalid command {text!r}: {failure}") from None


def _parse_config_file(path: str, name: str) -> Target:
    document = read_configuration(path)
    source = source_in(document, path)
    deployment = deployment_in(document, path)
    if source is None or deployment is None:
        return _parse_entry(_select_entry(document, path, name), path)
    if deployment.needs_process:
        # The deployment of the file sets an environment or a working directory, which are global to a process.
        return CommandTarget((sys.executable, "-m", "portico", "serve", os.path.abspath(path), "--transport", "stdio"))
    return InProcessTarget(importer.import_server(source))


def read_configuration(path: str) -> dict[str, Any]:
    """Return the object in a JSON file. Raises `UsageError` if it cannot be read or is not an object."""
    try:
        # Editors on Windows begin a file with a byte order mark.
        with open(path, encoding="utf-8-sig") as file:
            configuration = json.load(file)
    except FileNotFoundError:
        raise UsageError(f"file not found: {path}") from None
    except (OSError, ValueError) as failure:
        raise UsageError(f"cannot read {path}: {failure}") from None
    if not isinstance(configuration, dict):
        raise UsageError(f"{path} must contain a JSON object")
    return configuration


def _select_entry(config: Mapping[str, Any], where: str, name: str) -> Mapping[str, Any]:
    """Return one of the servers of a configuration, or the configuration itself if it is a single entry."""
    servers = _servers_in(config)
    if servers is None:
        return config
    if not servers:
        raise UsageError(f"{where} has no servers; `portico install json -- TARGET` prints an entry")
    names = ", ".join(map(str, servers))
    if name and name not in servers:
        raise UsageError(f"{where} has no server {name!r} (expected one of {names})")
    if not name and len(servers) != 1:
        raise UsageError(f"{where} has {len(servers)} servers; name one of them ({names})")
    entry = servers[name] if name else next(iter(servers.values()))
    if not isinstance(entry, Mapping):
        raise UsageError(f"{where}: the entry {name!r} must be an object")
    return entry


def _parse_entry(entry: Mapping[str, Any], where: str) -> Target:
    if isinstance(entry.get("url"), str) and isinstance(entry.get("command"), str):
        raise UsageError(f"{where}: a server entry must have a `command` or a `url`, not both")
    if isinstance(entry.get("url"), str):
        # Clients disagree on the key: VS Code and Claude write `type`, FastMCP writes `transport`.
        kind = entry.get("type", entry.get("transport"))
        return UrlTarget(_expand_variables(entry["url"]), _string_dict(entry.get("headers"), "headers"), kind == "sse")
    if isinstance(entry.get("command"), str):
        args, cwd = entry.get("args") or [], entry.get("cwd")
        if not isinstance(args, list) or not all(isinstance(word, str) for word in args):
            raise UsageError("`args` of a server entry must be a list of strings")
        if cwd is not None and not isinstance(cwd, str):
            raise UsageError("`cwd` of a server entry must be a string")
        words = [entry["command"], *args]
        return CommandTarget(
            tuple(map(_expand_variables, words)),
            _string_dict(entry.get("env"), "env") or None,
            _expand_variables(cwd) if cwd else None,
        )
    members = ", ".join(map(str, entry)) or "none"
    raise UsageError(
        f"{where}: a server entry must have a `command` or a `url`, each a string; its members are {members}"
    )


def _string_dict(table: Any, label: str) -> dict[str, str]:
    if table is None:
        return {}
    if not isinstance(table, Mapping) or not all(isinstance(value, str) for value in table.values()):
        raise UsageError(f"`{label}` of a server entry must be an object with string values")
    return {str(name): _expand_variables(value) for name, value in table.items()}


def _expand_variables(text: str) -> str:
    """Replace the references in a text with values of the environment and of files. Raises `MissingValue`."""
    return _REFERENCE.sub(_value_of, text)


def _value_of(reference: re.Match[str]) -> str:
    path, name, default = reference.groups()
    if path is not None:
        return read_secret("file", path.strip())
    # `${NAME:-default}`: unlike in a shell, a variable that is set but empty is used as it is.
    if default is not None and name not in os.environ:
        return default
    return read_secret("env", name)


def read_secret(kind: str, name: str) -> str:
    """Return the value of an environment variable ("env") or the contents of a small file ("file").

    Raises `MissingValue` if it is not set or cannot be read.
    """
    if kind == "env":
        value = os.environ.get(name)
        if value is None:
            raise MissingValue(f"the environment variable {name} is not set")
        return value
    try:
        with open(os.path.expanduser(name), encoding="utf-8") as file:
            # Limited, because a device such as /dev/zero would never end; stripped, because editors end files
            # with a newline.
            return file.read(MAX_SECRET_CHARS).strip()
    except (OSError, ValueError):
        raise MissingValue(f"cannot read the file {name}") from None
