"""Configuration of a gateway: a gateway.toml, or an mcp.json of an MCP client. Nothing is opened.

`${env:NAME}` and `${file:PATH}` refer to secrets. Their values are retained to mask them in logs and errors.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from msgspec import Struct, field

from portico._lazy import LazyModule
from portico._options import check_table, parse_duration
from portico.caching import LruCache
from portico.protocol.errors import UsageError
from portico.protocol.header_params import TOKEN_PATTERN
from portico.protocol.versions import ProtocolVersion
from portico.secret_references import SecretResolver
from portico.server.policy import settings as access
from portico.server.policy.settings import AccessSettings
from portico.server.providers.naming import MAX_NAME_CHARS, PREFIX, exposed_name, normalize_alias
from portico.server.results.settings import check_tokens
from portico.settings_file import locate_errors, read_json, read_tables, unknown_key, wrong_value
from portico.transports.targets import MissingValue, Target, UrlTarget, parse_target
from portico_gateway.gateway.client_handlers import ClientHandlerSettings, parse_client_handlers
from portico_gateway.gateway.name_filter import name_filter
from portico_gateway.gateway.tool_pinning import PINS_FILE_NAME, NewToolPolicy, PinningMode
from portico_gateway.gateway.view_settings import ViewSettings, check_view_paths, parse_view

if TYPE_CHECKING:
    from portico_gateway.credentials import upstream_auth_settings
    from portico_gateway.gateway import openapi_upstream
else:
    upstream_auth_settings = LazyModule("portico_gateway.credentials.upstream_auth_settings")
    openapi_upstream = LazyModule("portico_gateway.gateway.openapi_upstream")

# About four months. A larger value is almost always a unit mistake, such as milliseconds.
_MAX_DURATION_SECONDS = 1e7

# Keys of [gateway] that are defaults for all upstreams.
_UPSTREAM_DEFAULT_KEYS = ("prefix", "max_name_length", "pinning", "new_tools", "client_handlers")

ToolExposure = Literal["all", "search", "code", "auto"]
Isolation = Literal["shared", "principal", "session"]


class UpstreamOptions(TypedDict, total=False):
    """Options of an upstream in addition to its location: keywords of `Gateway.add_upstream` and keys of
    `[upstream.x]`.
    """

    # Prefix of the exposed names of tools and prompts; `{alias}` stands for the alias.
    prefix: str
    # Longest exposed name in characters, at least 16; longer ones are truncated with a digest.
    max_name_length: int
    # Patterns of names to expose; all if empty.
    include: Sequence[str]
    # Patterns of names to hide.
    exclude: Sequence[str]
    # Exposed names, by the upstream's own name.
    rename: Mapping[str, str]
    # Descriptions that replace the upstream's, by its own name of the tool.
    descriptions: Mapping[str, str]
    # Timeout of a call.
    timeout: float | str
    # Maximum concurrent calls, at least 1.
    max_concurrency: int
    # Maximum calls that wait for one of these; further calls are rejected.
    max_queued: int
    # Callers that share a connection to a server with sessions: all, or all of a principal or of a client session.
    isolation: Isolation
    # Maximum connections to the upstream, at least 1.
    max_connections: int
    # Time after which an unused connection is closed.
    idle_timeout: float | str
    # Protocol version to use. None: negotiated.
    protocol_version: ProtocolVersion
    # Credential for an upstream with a `url`.
    auth: Mapping[str, Any]
    # Client headers to forward to a `url`: a list of names, or a table with new names. `Authorization` and cookies are
    # rejected.
    forward_headers: Sequence[str] | Mapping[str, str]
    # Server-to-client requests that the gateway answers itself.
    client_handlers: Mapping[str, Any]
    # What happens to tools that changed since their approval: nothing, a warning, or they are hidden.
    pinning: PinningMode
    # With `pinning = "enforce"`: whether new tools are exposed before they are approved.
    new_tools: NewToolPolicy
    # Budget of a tool's result in estimated tokens; 0: no limit, otherwise at least 500. None: the budget of the
    # gateway.
    max_result_tokens: int


class _UpstreamLocation(TypedDict, total=False):
    """Keys that locate an upstream of a gateway.toml."""

    # URL of a server over HTTP, or the base URL of an API with `openapi`. An upstream has one of `url`, `command`,
    # `target` and `openapi`.
    url: str
    # OpenAPI document of an HTTP API: its path, or a table with the path and a filter.
    openapi: str | Mapping[str, Any]
    # Program of a server on stdio: its name, or a list with its arguments.
    command: Sequence[str] | str
    # Further arguments of the program.
    args: Sequence[str]
    # Server in this process: `module:server` or `file.py:server`.
    target: str
    # Headers of every request to the URL; values may be `${env:NAME}` or `${file:PATH}`.
    headers: Mapping[str, str]
    # Environment variables of the process; values may be `${env:NAME}` or `${file:PATH}`.
    env: Mapping[str, str]
    # Working directory of the process.
    cwd: str
    # Transport of a `url`; `sse` is the transport of 2024-11-05. None: Streamable HTTP.
    type: str
    # Whether to skip this upstream.
    disabled: bool


class _GatewayOptions(TypedDict, total=False):
    # Name in the gateway's server info. None: the name of the file, without its suffix.
    name: str
    # Version in the gateway's server info.
    version: str
    # Display name in the gateway's server info.
    title: str
    # Description in the gateway's server info.
    description: str
    # Instructions that clients give to the model.
    instructions: str
    # Default `prefix` of the upstreams.
    prefix: str
    # Default `max_name_length` of the upstreams.
    max_name_length: int
    # Default `pinning` of the upstreams.
    pinning: PinningMode
    # Default `new_tools` of the upstreams.
    new_tools: NewToolPolicy
    # File of the approved definitions, relative to the settings file.
    pins_file: str
    # Default `client_handlers` of the upstreams.
    client_handlers: Mapping[str, Any]
    # Whether to list `find_tools` and `call_tool` instead of all tools; `"auto"`: only for large catalogs.
    tool_search: bool | Literal["auto"]
    # Whether to list `find_tools` and `run` instead of all tools; not together with `tool_search`. Needs
    # portico-services.
    code_mode: bool
    # Exposed names of tools that tool search and code mode always list.
    always_visible: Sequence[str]
    # Limits and permissions of scripts in code mode.
    code_limits: Mapping[str, Any]


class UpstreamSettings(Struct, frozen=True, kw_only=True):
    """Settings of an upstream: its alias, location and options."""

    alias: str
    target: Target | None
    # Reason why there is no target, such as a missing secret.
    problem: str = ""
    prefix: str = PREFIX
    max_name_length: int = MAX_NAME_CHARS
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    rename: dict[str, str] = field(default_factory=dict)
    descriptions: dict[str, str] = field(default_factory=dict)
    timeout: float = 60.0
    max_concurrency: int = 64
    max_queued: int = 256
    isolation: Isolation = "session"
    max_connections: int = 20
    idle_timeout: float = 600.0
    protocol_version: ProtocolVersion | None = None
    auth: dict[str, Any] | None = None
    # Client header in lower case → forwarded header.
    forward_headers: dict[str, str] = field(default_factory=dict)
    client_handlers: ClientHandlerSettings | None = None
    pinning: PinningMode = "off"
    new_tools: NewToolPolicy = "require_approval"
    # None: the budget of the gateway.
    max_result_tokens: int | None = None
    # Whether a cached catalog is served without connecting, until the first call. Set by the hub.
    is_lazy: bool = False

    def forwarded_headers(self, headers: Mapping[bytes, bytes] | None) -> tuple[tuple[str, str], ...]:
        """Return the headers of a client's request to forward, under their new names."""
        if headers is None or not self.forward_headers:
            return ()
        values = ((name, headers.get(source.encode())) for source, name in self.forward_headers.items())
        return tuple((name, value.decode("latin-1")) for name, value in values if value is not None)

    def includes(self, name: str) -> bool:
        """Return whether a tool, prompt or URI of the upstream is exposed."""
        return name_filter(self.include, self.exclude).shows(name)

    @property
    def exposed_prefix(self) -> str:
        """Return the prefix of all exposed names that are not renamed."""
        return self.prefix.replace("{alias}", normalize_alias(self.alias))

    def may_show_as(self, outward_name: str) -> bool:
        """Return whether a component of the upstream may have this exposed name, judging by the configuration alone."""
        prefix = self.exposed_prefix
        return (bool(prefix) and outward_name.startswith(prefix)) or outward_name in self.rename.values()

    def exposed_name(self, name: str) -> str:
        """Return the exposed name of a tool or prompt."""
        return self.rename.get(name) or exposed_name(self.alias, name, self.prefix, self.max_name_length)


class GatewaySettings(Struct, frozen=True, kw_only=True):
    """Settings of a configuration file."""

    about: dict[str, Any] = field(default_factory=dict)
    upstreams: dict[str, UpstreamSettings] = field(default_factory=dict)
    views: dict[str, ViewSettings] = field(default_factory=dict)
    # How tools are exposed to clients, and the tools that are always listed.
    tool_exposure: ToolExposure | None = None
    always_visible: tuple[str, ...] = ()
    # Limits of scripts in code mode.
    code_limits: dict[str, Any] = field(default_factory=dict)
    # File that contains the pins.
    pins_file: Path | None = None
    # Sections about authentication and policy.
    access: AccessSettings = AccessSettings()


def load_settings(path: str | Path, secrets: SecretResolver) -> GatewaySettings:
    """Load a gateway.toml or an mcp.json. Raises UsageError with the location of the mistake."""
    tables = read_json(path) if Path(path).suffix == ".json" else read_tables(path)
    with locate_errors(path):
        return parse_settings(tables, secrets, Path(path).parent)


def parse_settings(data: Any, secrets: SecretResolver, base_dir: Path = Path()) -> GatewaySettings:
    """Parse the tables of a configuration file; an mcp.json has its servers in `mcpServers` or `servers`.

    Paths are relative to `base_dir`, the directory of the file. Raises UsageError.
    """
    if not isinstance(data, Mapping):
        raise UsageError(f"expected a table, got {type(data).__name__}")
    # Clients use two spellings: `mcpServers` (Claude, Cursor) and `servers` (VS Code).
    servers = data.get("mcpServers", data.get("servers"))
    if isinstance(servers, Mapping):
        result = {alias: _parse_mcp_json_entry(alias, entry, secrets) for alias, entry in servers.items()}
        upstreams = _check_prefix_conflicts(
            {alias: settings for alias, settings in result.items() if settings is not None}
        )
        return GatewaySettings(upstreams=upstreams, pins_file=base_dir / PINS_FILE_NAME)
    sections = ("gateway", "upstream", "view", *access.ACCESS_SECTIONS)
    for name in data:
        if name not in sections:
            raise unknown_key("", name, sections)
    about = _parse_table("gateway", data.get("gateway", {}), _GatewayOptions)
    pins_file = about.pop("pins_file", PINS_FILE_NAME)
    tool_exposure = _parse_tool_exposure(about.pop("tool_search", False), about.pop("code_mode", False))
    always_visible, code_limits = tuple(about.pop("always_visible", ())), dict(about.pop("code_limits", {}))
    shared: dict[str, Any] = {name: about.pop(name) for name in _UPSTREAM_DEFAULT_KEYS if name in about}
    upstreams = {
        alias: parse_upstream(alias, {**shared, **_require_table(f"upstream.{alias}", table)}, secrets, base_dir)
        for alias, table in _require_table("upstream", data.get("upstream", {})).items()
        if not (isinstance(table, Mapping) and table.get("disabled") is True)
    }
    views = {
        name: parse_view(name, _require_table(f"view.{name}", table))
        for name, table in _require_table("view", data.get("view", {})).items()
    }
    return GatewaySettings(
        about=about,
        upstreams=_check_prefix_conflicts(upstreams),
        views=check_view_paths(views),
        tool_exposure=tool_exposure,
        always_visible=always_visible,
        code_limits=code_limits,
        pins_file=base_dir / pins_file,
        access=access.read(data, base_dir),
    )


def _parse_tool_exposure(tool_search: bool | Literal["auto"], code_mode: bool) -> ToolExposure | None:
    """Return how tools are exposed. Raises UsageError if both modes are enabled: each replaces the list of tools."""
    if code_mode and tool_search:
        raise UsageError("gateway: set tool_search or code_mode, not both")
    if code_mode:
        return "code"
    return "auto" if tool_search == "auto" else "search" if tool_search else None


def _parse_mcp_json_entry(alias: str, entry: Any, secrets: SecretResolver) -> UpstreamSettings | None:
    """Parse an entry of an mcp.json, or return None if it is disabled. Members of other programs are ignored."""
    if not isinstance(entry, Mapping):
        raise UsageError(f"the entry of {alias!r} must be an object")
    if entry.get("disabled") is True:
        return None
    own = _require_table(f"portico of {alias!r}", entry.get("portico", {}))
    return parse_upstream(
        alias, {**{k: v for k, v in entry.items() if k in _UpstreamLocation.__annotations__}, **own}, secrets
    )


def parse_upstream(
    alias: str, table: Mapping[str, Any], secrets: SecretResolver, base_dir: Path = Path()
) -> UpstreamSettings:
    """Parse the settings of an upstream. A missing secret disables this upstream only."""
    location = {name: value for name, value in table.items() if name in _UpstreamLocation.__annotations__}
    options = {name: value for name, value in table.items() if name not in location}
    # A missing secret disables one upstream instead of the whole gateway: the others must survive a deployment
    # mistake. A wrong key, in contrast, is an error in the file.
    problem = _resolve_auth_secrets(options, secrets)
    label = f"upstream.{alias}"
    check_table(label, options, UpstreamOptions)
    check_table(label, location, _UpstreamLocation)
    target = None
    try:
        target = _parse_openapi_target(label, location, options, secrets, base_dir) or _parse_target(
            label, location, secrets
        )
    except MissingValue as missing:
        problem = str(missing)
    return make_upstream_settings(alias, target, options, problem)


def make_upstream_settings(
    alias: str, target: Target | None, options: Mapping[str, Any], problem: str = ""
) -> UpstreamSettings:
    """Return the settings for the options of `Gateway.add_upstream`. Raises UsageError if they are invalid."""
    if not alias or len(alias) > 64:
        raise UsageError(f"the alias of an upstream must have 1 to 64 characters, got {alias!r}")
    check_table(f"upstream.{alias}", options, UpstreamOptions)
    fields: dict[str, Any] = {
        name: tuple(value) if name in ("include", "exclude") else value for name, value in options.items()
    }
    for name in ("timeout", "idle_timeout"):
        if name in fields:
            fields[name] = parse_duration(f"upstream.{alias}: {name}", fields[name], _MAX_DURATION_SECONDS)
    for name, minimum in (("max_name_length", 16), ("max_concurrency", 1), ("max_connections", 1)):
        if fields.get(name, minimum) < minimum:
            raise UsageError(f"upstream.{alias}: {name} must be at least {minimum}, got {fields[name]}")
    if "max_result_tokens" in fields:
        check_tokens(f"upstream.{alias}: max_result_tokens", fields["max_result_tokens"])
    if "auth" in fields:
        upstream_auth_settings.validate_upstream_auth(f"upstream.{alias}", fields["auth"])
        fields["auth"] = dict(fields["auth"])
        # Credentials travel in HTTP headers; a child process gets its secrets in `env`.
        if not hasattr(target, "url") and target is not None:
            raise UsageError(f"upstream.{alias}: auth requires an upstream with a url")
    for name in ("rename", "descriptions"):
        fields[name] = dict(fields.get(name, {}))
    fields["forward_headers"] = _validate_forward_headers(
        f"upstream.{alias}", target, fields.get("forward_headers", ())
    )
    if "client_handlers" in fields:
        fields["client_handlers"] = parse_client_handlers(f"upstream.{alias}", fields["client_handlers"])
    return UpstreamSettings(alias=alias, target=target, problem=problem, **fields)


def _resolve_auth_secrets(options: dict[str, Any], secrets: SecretResolver) -> str:
    """Resolve the secrets in `auth`. Return the problem if one is missing, else an empty string."""
    try:
        if isinstance(options.get("auth"), Mapping):
            options["auth"] = secrets.resolve_all(options["auth"])
    except UsageError as missing:
        return str(missing)
    return ""


_HEADER = re.compile(TOKEN_PATTERN)
# Credentials for the gateway must not reach an upstream, and hop-by-hop headers apply to one connection only.
_CREDENTIAL_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie", "dpop"})
_HOP_BY_HOP_HEADERS = frozenset(
    {"host", "connection", "content-length", "content-type", "transfer-encoding", "accept", "te", "upgrade"}
)


def _validate_forward_headers(
    label: str, target: Target | None, headers: Sequence[str] | Mapping[str, str]
) -> dict[str, str]:
    """Return the forwarded headers as a mapping. Raises UsageError for credentials, hop-by-hop and MCP headers."""
    pairs = dict(headers) if isinstance(headers, Mapping) else {name: name for name in headers}
    if pairs and target is not None and not isinstance(target, UrlTarget):
        raise UsageError(f"{label}: forward_headers requires an upstream with a url")
    for source, name in pairs.items():
        # Forwarding the client's token would be token passthrough, which the specification forbids (2026-07-28,
        # Authorization, Access Token Privilege Restriction).
        if source.lower() in _CREDENTIAL_HEADERS:
            raise UsageError(f"{label}: forward_headers must not contain {source!r}, a credential for the gateway")
        for item in (source, name):
            if not _HEADER.fullmatch(item) or item.lower() in _HOP_BY_HOP_HEADERS or item.lower().startswith("mcp-"):
                raise UsageError(f"{label}: forward_headers contains {item!r}, which cannot be forwarded")
    return {source.lower(): name for source, name in pairs.items()}


def _parse_openapi_target(
    label: str, location: Mapping[str, Any], options: Mapping[str, Any], secrets: SecretResolver, folder: Path
) -> Target | None:
    """Return the target of an upstream with `openapi`, or None."""
    if "openapi" not in location:
        return None
    try:
        filled = secrets.resolve_all(dict(location))
    except UsageError as missing:
        raise MissingValue(str(missing)) from None
    seconds = (
        parse_duration(f"{label}: timeout", options["timeout"], _MAX_DURATION_SECONDS) if "timeout" in options else None
    )
    return openapi_upstream.load_openapi_target(label, filled, seconds, folder)


def _parse_target(label: str, location: Mapping[str, Any], secrets: SecretResolver) -> Target:
    kinds = [name for name in ("url", "command", "target") if name in location]
    if len(kinds) != 1:
        raise UsageError(f"{label} needs exactly one of url, command and target; got {' and '.join(kinds) or 'none'}")
    try:
        filled = secrets.resolve_all(dict(location))
    except UsageError as missing:
        raise MissingValue(str(missing)) from None
    if "target" in filled:
        return _load_target(filled["target"])
    if not isinstance(filled.get("command", ""), str):
        words = [*filled["command"], *filled.get("args", ())]
        return parse_target(words, env=filled.get("env"), cwd=filled.get("cwd"))
    try:
        return parse_target(filled)
    except MissingValue:
        raise
    except UsageError as mistake:
        raise UsageError(f"{label}: {mistake}") from None


# Targets loaded by name. A reload of the configuration must not load an unchanged module again.
_target_cache: LruCache[tuple[str, str, int], Target] = LruCache(256)


def _load_target(text: Any) -> Target:
    if not isinstance(text, str):
        return parse_target(text)
    with contextlib.suppress(OSError):
        # The modification time is part of the key, so that an edited file is loaded again.
        key = (os.getcwd(), text, os.stat(text.partition(".py")[0] + ".py").st_mtime_ns if ".py" in text else 0)
        if key not in _target_cache:
            _target_cache[key] = parse_target(text)
        return _target_cache[key]
    return parse_target(text)


def _check_prefix_conflicts(upstreams: dict[str, UpstreamSettings]) -> dict[str, UpstreamSettings]:
    seen: dict[str, str] = {}
    for alias in upstreams:
        # Prefixes decide which upstream receives a call. Two upstreams with one prefix could impersonate each other's
        # tools.
        other = seen.setdefault(normalize_alias(alias), alias)
        if other != alias:
            raise UsageError(f"the upstreams {other!r} and {alias!r} have the same prefix; rename one of them")
    return upstreams


def _require_table(label: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise wrong_value("", label, "a table", value)
    return value


def _parse_table(label: str, value: Any, options_type: type) -> dict[str, Any]:
    check_table(label, _require_table(label, value), options_type)
    return dict(value)
