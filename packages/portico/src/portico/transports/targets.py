"""What a client can be pointed at: a URL, a command, an object in a module, an entry of an mcp.json, or a Handler."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from portico.compat.fastmcp.config_file import source_in
from portico.protocol.errors import UsageError
from portico.rpc.call import Handler
from portico.transports import importer
from portico.transports.short_urls import with_scheme

_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


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


def names_several(value: Any) -> bool:
    """Whether a target is a configuration of several servers, and none of them is named."""
    if isinstance(value, str) and value.strip().endswith(".json") and " " not in value.strip():
        value = _read_file(value.strip())
    servers = value.get("mcpServers", value.get("servers")) if isinstance(value, Mapping) else None
    return isinstance(servers, Mapping) and len(servers) > 1


def server_names(value: str) -> list[str]:
    """Return the names of the servers in an mcp.json."""
    said = _read_file(value.strip())
    return [str(name) for name in said.get("mcpServers", said.get("servers")) or ()]


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
    document = _read_file(path)
    source = source_in(document, path)
    if source is not None:
        return Here(importer.load(source))
    return _from_entry(_entry(document, path, name))


def _read_file(path: str) -> dict[str, Any]:
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
    """One server of those that a configuration has (`mcpServers`, or VS Code's `servers`), or the entry itself."""
    servers = said.get("mcpServers", said.get("servers"))
    if not isinstance(servers, Mapping):
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
    """`${NAME}` and `${NAME:-otherwise}` stand for what the environment has."""

    def value(found: re.Match[str]) -> str:
        known = os.environ.get(found[1], found[2])
        if known is None:
            raise UsageError(f"the configuration wants the environment variable {found[1]}, which is not set")
        return known

    return _VARIABLE.sub(value, text)
