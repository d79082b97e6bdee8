"""The hub's settings file, and how a server is started for a host."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from msgspec import Struct, field

from portico._options import check_table, parse_duration
from portico.protocol.errors import UsageError
from portico.secret_references import SecretResolver
from portico.server.results.settings import check_tokens
from portico.settings_file import locate_errors, read_tables, unknown_key, wrong_value
from portico_gateway.hub.stateless_servers import is_stateless

SETTINGS_NAME = "hub.toml"
# A process that serves one session loses its state with its end, so it is stopped late.
DEFAULT_IDLE_SECONDS = 1800.0
# Hosts have their own timeouts and cancel calls; the hub only ends calls that no host can still wait for.
DEFAULT_TIMEOUT_SECONDS = 4 * 3600.0
MAX_DURATION_SECONDS = 1e7

# Variables that a shared process gets from the host, in addition to those of its configuration: those that it needs
# to run. They are part of the key under which it is shared.
_SHARED_VARIABLES = frozenset(
    (
        *("HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER"),
        *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
        *("SSL_CERT_DIR", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"),
    )
)


class _ServerTable(TypedDict, total=False):
    # Program of the server, for `portico connect NAME` without a command.
    command: str
    # Arguments of the program; requires `command`.
    args: list[str]
    # Environment variables of the process; values may be `${env:NAME}` or `${file:PATH}`.
    env: Mapping[str, str]
    # Working directory of the process; `~` is the home directory.
    cwd: str
    # Whether hosts with equal settings share one process. None: as in the shipped list of stateless servers.
    shared: bool
    # Time after which a process without calls is stopped.
    idle_timeout: float | str
    # Longest time for one call.
    timeout: float | str
    # Budget of a tool's result in estimated tokens; 0: no limit, otherwise at least 500. None: the budget of gateways.
    max_result_tokens: int


class HubServerSettings(Struct, frozen=True, kw_only=True):
    """A `[server.NAME]` table. Without a command, it applies to the command of the host's configuration."""

    command: tuple[str, ...] | None = None
    env: dict[str, str] = field(default_factory=dict)
    cwd: str | None = None
    # None: as in the table of stateless servers.
    shared: bool | None = None
    idle_timeout: float = DEFAULT_IDLE_SECONDS
    timeout: float = DEFAULT_TIMEOUT_SECONDS
    # Budget of a tool's result in estimated tokens; 0 for no limit, None for the budget of gateways.
    max_result_tokens: int | None = None


class AttachRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """The first line of a bridge: the servers, and how the host would have started them."""

    protocol: int
    names: list[str]
    variables: list[str]
    command: list[str] | None
    cwd: str
    environment: dict[str, str]
    # Whether the working directory is part of the host's configuration.
    has_cwd: bool
    pid: int


class ServerCommand(Struct, frozen=True):
    """How the process of a server is started."""

    name: str
    words: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    is_shared: bool
    settings: HubServerSettings
    # Values of the configuration, on which the lists of the server may depend.
    cache_scope: str

    @property
    def key(self) -> tuple[Any, ...]:
        """Return the key under which a process may be shared: hosts get the same one only if all of it is equal."""
        return self.name, self.words, tuple(sorted(self.env.items())), self.cwd, self.settings.timeout


def load_settings(directory: str) -> dict[str, HubServerSettings]:
    """Return the servers of the hub's settings file by name. Raises UsageError if it is invalid."""
    path = Path(directory, SETTINGS_NAME)
    if not path.exists():
        return {}
    tables = read_tables(path)
    with locate_errors(path):
        for name in tables:
            if name != "server":
                raise unknown_key("", name, ("server",))
        servers = tables.get("server", {})
        if not isinstance(servers, dict):
            raise wrong_value("", "server", "a table", servers)
        secrets = SecretResolver()
        return {name: _parse_server(name, table, secrets) for name, table in servers.items()}


def _parse_server(name: str, table: Any, secrets: SecretResolver) -> HubServerSettings:
    section = f"server.{name}"
    if not isinstance(table, dict):
        raise wrong_value("server", name, "a table", table)
    check_table(section, table, _ServerTable)
    if "args" in table and "command" not in table:
        raise UsageError(f"{section}: args requires a command")
    if "max_result_tokens" in table:
        check_tokens(f"{section}: max_result_tokens", table["max_result_tokens"])
    command = (table["command"], *table.get("args", ())) if "command" in table else None
    durations = {
        key: parse_duration(f"{section}: {key}", table[key], MAX_DURATION_SECONDS)
        for key in ("idle_timeout", "timeout")
        if key in table
    }
    cwd = table.get("cwd")
    return HubServerSettings(
        command=command,
        env=secrets.resolve_all(table.get("env", {})),
        cwd=None if cwd is None else os.path.abspath(os.path.expanduser(cwd)),
        shared=table.get("shared"),
        max_result_tokens=table.get("max_result_tokens"),
        **durations,
    )


def resolve_servers(request: AttachRequest, servers: Mapping[str, HubServerSettings]) -> list[ServerCommand]:
    """Return how to start the servers that a bridge asks for. Raises UsageError."""
    if len(set(request.names)) != len(request.names):
        raise UsageError("server names must be unique")
    if request.command == []:
        raise UsageError("the command must not be empty")
    return [_resolve(name, request, servers) for name in request.names]


def _resolve(name: str, request: AttachRequest, servers: Mapping[str, HubServerSettings]) -> ServerCommand:
    settings = servers.get(name, HubServerSettings())
    words = request.command if request.command is not None else settings.command
    if words is None:
        # Only needed here.
        from difflib import get_close_matches

        suggestion = next(iter(get_close_matches(name, servers, n=1)), None)
        hint = (
            f"did you mean {suggestion!r}?" if suggestion else f"add [server.{name}] with a command to {SETTINGS_NAME}"
        )
        raise UsageError(f"unknown server {name!r}; {hint}")
    cwd = settings.cwd or request.cwd
    is_known = request.command is not None and is_stateless(words, cwd, request.environment.get("PATH", ""))
    is_shared = is_known if settings.shared is None else settings.shared
    named = {name: request.environment[name] for name in request.variables if name in request.environment}
    configured = {**named, **settings.env}
    if is_shared and is_known and settings.cwd is None and not request.has_cwd:
        # The servers of the table do not depend on the directory, so that windows in two projects can share one.
        cwd = os.path.expanduser("~")
    inherited = request.environment
    if is_shared:
        inherited = {key: value for key, value in inherited.items() if key in _SHARED_VARIABLES or key[:3] == "LC_"}
    return ServerCommand(
        name,
        tuple(words),
        {**inherited, **configured},
        cwd,
        is_shared,
        settings,
        repr(sorted(configured.items())),
    )
