"""What a client can be pointed at: a URL, a command, an object in a module, an entry of an mcp.json, or a Handler."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from portico.compat.fastmcp.config_file import source_in
from portico.protocol.errors import UsageError
from portico.rpc.call import Handler
from portico.transports import importer
from portico.transports.short_urls import with_scheme

# `${NAME}`, `${NAME:-default}` and `${env:NAME}`; `${file:PATH}`.
_REFERENCE = re.compile(r"\$\{(?:file:([^}]+)|(?:env:)?(\w+)(?::-([^}]*))?)\}")
MAX_SECRET_CHARS = 64 * 1024
# The tables of a gateway file, which are in no mcp.json.
_GATEWAY_TABLES = ("gateway", "upstream", "view")


class MissingValue(UsageError):
    """A configuration refers to an environment variable that is not set, or to a file that cannot be read."""


class Here(Struct, frozen=True):
    """A Handler in this process."""

    handler: Handler

    @property
    def key(self) -> str:
        return ""


class Command(Struct, frozen=True):
    """A child process."""

    words: tuple[str, ...]
    env: dict[str, str] | None = None
    cwd: str | None = None

    @property
    def key(self) -> str:
        return shlex.join(self.words)


class Url(Struct, frozen=True):
    """A server that is running already, at a URL."""

    url: str
    headers: dict[str, str]
    # What an mcp.json may insist on: the transport of 2024-11-05.
    sse: bool = False

    @property
    def key(self) -> str:
        return self.url


Target = Here | Command | Url


def configuration_kind(value: Any) -> Literal["gateway", "several"] | None:
    """Return "gateway" for the path of a gateway file, "several" for a configuration of several servers of which none
    is named, and None for every other target."""
    is_file = isinstance(value, str) and " " not in value.strip()
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
    """Return the entries of a configuration by name, without the disabled ones. Raises UsageError."""
    entries: dict[str, Mapping[str, Any]] = {}
    for name, entry in (_servers_in(configuration) or {}).items():
        if not isinstance(entry, Mapping):
            raise UsageError(f"the entry of {name!r} is no object")
        if entry.get("disabled") is not True:
            entries[str(name)] = entry
    return entries


def target_of(
    value: Any,
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Target:
    """Tell what a target is by its shape. What was given beside it is added to what it says itself."""
    found = _read(value)
    if headers and not isinstance(found, Url):
        raise UsageError("headers are for servers at a URL; this one is not")
    if (env or cwd) and not isinstance(found, Command):
        raise UsageError("env and cwd are for commands; this server is not started by us")
    if isinstance(found, Command):
        both = {**(found.env or {}), **(env or {})}
        return Command(found.words, both or None, cwd or found.cwd)
    if isinstance(found, Url):
        return Url(found.url, {**found.headers, **(headers or {})}, found.sse)
    return found


def _read(value: Any) -> Target:
    if isinstance(value, str):
        return _from_text(value)
    if isinstance(value, os.PathLike):
        return Here(importer.load(os.fspath(value)))
    if isinstance(value, Mapping):
        return _from_entry(_entry(value, "the configuration", ""))
    if isinstance(value, Sequence) and value and all(isinstance(word, str) for word in value):
        return Command(tuple(value))
    if callable(value):
        return Here(value)
    raise UsageError(
        f"cannot talk to {value!r}: not a URL, a command, a module:object, an mcp.json entry, a Server or a Handler"
    )


def _from_text(text: str) -> Target:
    text = with_scheme(text.strip())
    if re.match(r"https?://", text, re.IGNORECASE):
        return Url(text, {})
    if not text:
        raise UsageError("cannot talk to an empty target")
    path, _, name = text.partition(".json")
    if " " not in text and (text.endswith(".json") or name.startswith(":")):
        return _from_file(f"{path}.json", name.removeprefix(":"))
    # A colon could be part of a command's word; a command that is only one word has none.
    if " " not in text and importer.is_named(text):
        return Here(importer.load(text))
    try:
        return Command(tuple(shlex.split(text)))
    except ValueError as failure:
        raise UsageError(f"the command {text!r} cannot be read: {failure}") from None


def _from_file(path: str, name: str) -> Target:
    document = read_configuration(path)
    source = source_in(document, path)
    if source is not None:
        return Here(importer.load(source))
    return _from_entry(_entry(document, path, name))


def read_configuration(path: str) -> dict[str, Any]:
    """Return the object in a JSON file. Raises UsageError if there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            said = json.load(file)
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}") from None
    except (OSError, ValueError) as failure:
        raise UsageError(f"{path} cannot be read: {failure}") from None
    if not isinstance(said, dict):
        raise UsageError(f"{path} is no configuration: it holds no object")
    return said


def _entry(said: Mapping[str, Any], where: str, name: str) -> Mapping[str, Any]:
    """Return one of the servers of a configuration, or the entry itself."""
    servers = _servers_in(said)
    if servers is None:
        return said
    names = ", ".join(map(str, servers)) or "none"
    if name and name not in servers:
        raise UsageError(f"{where} has no server {name!r}; it has {names}")
    if not name and len(servers) != 1:
        raise UsageError(f"{where} has {len(servers)} servers: say which one ({names})")
    entry = servers[name] if name else next(iter(servers.values()))
    if not isinstance(entry, Mapping):
        raise UsageError(f"{where}: the entry of {name!r} is no object")
    return entry


def _from_entry(entry: Mapping[str, Any]) -> Target:
    if isinstance(entry.get("url"), str):
        kind = entry.get("type", entry.get("transport"))
        return Url(_filled(entry["url"]), _texts(entry.get("headers"), "headers"), kind == "sse")
    if isinstance(entry.get("command"), str):
        args, cwd = entry.get("args") or [], entry.get("cwd")
        if not isinstance(args, list) or not all(isinstance(word, str) for word in args):
            raise UsageError("`args` of a server's entry is a list of texts")
        if cwd is not None and not isinstance(cwd, str):
            raise UsageError("`cwd` of a server's entry is a text")
        words = [entry["command"], *args]
        return Command(
            tuple(map(_filled, words)), _texts(entry.get("env"), "env") or None, _filled(cwd) if cwd else None
        )
    raise UsageError("a server's entry has a `command` or a `url`")


def _texts(said: Any, what: str) -> dict[str, str]:
    if said is None:
        return {}
    if not isinstance(said, Mapping) or not all(isinstance(value, str) for value in said.values()):
        raise UsageError(f"`{what}` of a server's entry is an object of texts")
    return {str(name): _filled(value) for name, value in said.items()}


def _filled(text: str) -> str:
    """Replace the references in a text by what the environment and files have. Raises MissingValue."""
    return _REFERENCE.sub(_value_of, text)


def _value_of(reference: re.Match[str]) -> str:
    path, name, default = reference.groups()
    if path is not None:
        return read_secret("file", path.strip())
    if default is not None and name not in os.environ:
        return default
    return read_secret("env", name)


def read_secret(kind: str, name: str) -> str:
    """Return the value of an environment variable ("env") or the text of a small file ("file").

    Raises MissingValue if it is not set or cannot be read.
    """
    if kind == "env":
        value = os.environ.get(name)
        if value is None:
            raise MissingValue(f"the environment variable {name} is not set")
        return value
    try:
        with open(os.path.expanduser(name), encoding="utf-8") as file:
            return file.read(MAX_SECRET_CHARS).strip()
    except (OSError, ValueError):
        raise MissingValue(f"the file {name} cannot be read") from None
