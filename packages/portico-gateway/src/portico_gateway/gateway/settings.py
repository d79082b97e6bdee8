"""What the file of a gateway says: a gateway.toml, or the mcp.json that clients have already. Nothing is opened.

`${env:NAME}` and `${file:PATH}` stand for secrets. Their values are kept only to be masked in what is told.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from msgspec import Struct, field

from portico._lazy import LazyModule
from portico._options import check_options, read_seconds
from portico.protocol.errors import UsageError
from portico.protocol.versions import Revision
from portico.secret_references import Secrets
from portico.server.policy import settings as access
from portico.server.policy.settings import AccessSettings
from portico.server.providers.naming import LONGEST_NAME, PREFIX, folded_alias, outward
from portico.transports.targets import MissingValue, Target, Url, target_of
from portico_gateway.gateway.client_handlers import AnswerSettings, answers_of
from portico_gateway.gateway.name_filter import name_filter
from portico_gateway.gateway.tool_pinning import PINS_FILE_NAME, NewTools, PinMode
from portico_gateway.gateway.views import ViewSettings, checked_views, view_of

if TYPE_CHECKING:
    from portico_gateway.credentials import upstream_auth_settings
    from portico_gateway.gateway import openapi_upstream
else:
    upstream_auth_settings = LazyModule("portico_gateway.credentials.upstream_auth_settings")
    openapi_upstream = LazyModule("portico_gateway.gateway.openapi_upstream")

_LONGEST_SECONDS = 1e7

# What [gateway] says for all upstreams that say nothing else.
_SHARED = ("prefix", "longest_name", "pins", "new_tools", "answers")

FaceName = Literal["all", "search", "code", "auto"]
Isolation = Literal["shared", "principal", "session"]


class UpstreamOptions(TypedDict, total=False):
    """What can be said of an upstream besides where it is: the keywords of `gateway.add`, and of `[upstream.x]`."""

    # What it is called on the outside: before its names, and whether only some are shown, or some by other names.
    prefix: str
    longest_name: int
    include: Sequence[str]
    exclude: Sequence[str]
    rename: Mapping[str, str]
    descriptions: Mapping[str, str]
    # How long a call may take, how many may go on at once, and how many wait.
    timeout: float | str
    concurrency: int
    queue: int
    # Who shares a connection to a server that has sessions; how many connections there may be; when idle ones end.
    isolation: Isolation
    lanes: int
    idle: float | str
    # The revision to speak, where it is not to be found out.
    revision: Revision
    # Which credential it is shown: a table with a `kind`, and what that needs.
    auth: Mapping[str, Any]
    # The client's headers that go on to a URL: their names, or under which other names.
    forward: Sequence[str] | Mapping[str, str]
    # What the gateway answers itself when the upstream asks.
    answers: Mapping[str, Any]
    # What happens to a tool that is not as it was when it was approved, and to one that is new since.
    pins: PinMode
    new_tools: NewTools


class _UpstreamPlace(TypedDict, total=False):
    """Where an upstream of a gateway.toml is."""

    url: str
    # The document of an API that is no MCP server: its path, or a table with it.
    openapi: str | Mapping[str, Any]
    command: Sequence[str] | str
    args: Sequence[str]
    target: str
    headers: Mapping[str, str]
    env: Mapping[str, str]
    cwd: str
    type: str
    disabled: bool


class _GatewayTable(TypedDict, total=False):
    name: str
    version: str
    title: str
    description: str
    instructions: str
    prefix: str
    longest_name: int
    pins: PinMode
    new_tools: NewTools
    lock: str
    answers: Mapping[str, Any]
    face: FaceName
    always: Sequence[str]
    code: Mapping[str, Any]


class UpstreamSettings(Struct, frozen=True, kw_only=True):
    """An upstream: what it is called here, where it is, and how it is treated."""

    alias: str
    target: Target | None
    # Why there is no target, such as a secret that is missing.
    problem: str = ""
    prefix: str = PREFIX
    longest_name: int = LONGEST_NAME
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    rename: dict[str, str] = field(default_factory=dict)
    descriptions: dict[str, str] = field(default_factory=dict)
    timeout: float = 60.0
    concurrency: int = 64
    queue: int = 256
    isolation: Isolation = "session"
    lanes: int = 20
    idle: float = 600.0
    revision: Revision | None = None
    auth: dict[str, Any] | None = None
    # By the names that they have from the client, in lower case.
    forward: dict[str, str] = field(default_factory=dict)
    answers: AnswerSettings | None = None
    pins: PinMode = "off"
    new_tools: NewTools = "hold"

    def forwarded(self, headers: Mapping[bytes, bytes] | None) -> tuple[tuple[str, str], ...]:
        """Of the headers of a client's request, those that go on, as they are to be called."""
        if headers is None or not self.forward:
            return ()
        given = ((name, headers.get(source.encode())) for source, name in self.forward.items())
        return tuple((name, value.decode("latin-1")) for name, value in given if value is not None)

    def shows(self, name: str) -> bool:
        """Return whether a tool, prompt or URI of the upstream is shown at all."""
        return name_filter(self.include, self.exclude).shows(name)

    @property
    def outward_prefix(self) -> str:
        """What its names begin with, but for those that are renamed."""
        return self.prefix.replace("{alias}", folded_alias(self.alias))

    def may_show_as(self, outward_name: str) -> bool:
        """Return whether a tool or prompt of the upstream may have this outward name, by what alone is configured."""
        prefix = self.outward_prefix
        return (bool(prefix) and outward_name.startswith(prefix)) or outward_name in self.rename.values()

    def outward(self, name: str) -> str:
        return self.rename.get(name) or outward(self.alias, name, self.prefix, self.longest_name)


class GatewaySettings(Struct, frozen=True, kw_only=True):
    """A whole file."""

    about: dict[str, Any] = field(default_factory=dict)
    upstreams: dict[str, UpstreamSettings] = field(default_factory=dict)
    views: dict[str, ViewSettings] = field(default_factory=dict)
    # What is shown of all tools where it is served, and which of them by their own names.
    face: FaceName | None = None
    always: tuple[str, ...] = ()
    # The ceilings of scripts, where they can be run.
    code: dict[str, Any] = field(default_factory=dict)
    # The file of the pins.
    lock: Path | None = None
    # What the file says of who may come in and do what.
    access: AccessSettings = AccessSettings()


def read(path: str | Path, secrets: Secrets) -> GatewaySettings:
    """What a gateway.toml or an mcp.json says. Raises UsageError with what is wrong, and where."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as failure:
        raise UsageError(f"{path} cannot be read: {getattr(failure, 'strerror', None) or failure}") from None
    try:
        said = json.loads(text) if Path(path).suffix == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as failure:
        raise UsageError(f"{path} cannot be read: {failure}") from None
    try:
        return settings_of(said, secrets, Path(path).parent)
    except UsageError as mistake:
        raise UsageError(f"{path}: {mistake}") from None


def settings_of(said: Any, secrets: Secrets, folder: Path = Path()) -> GatewaySettings:
    """The settings in a file's tables; an mcp.json has its servers in `mcpServers` or `servers`.

    `folder` is that of the file.
    """
    if not isinstance(said, Mapping):
        raise UsageError("it holds no table")
    servers = said.get("mcpServers", said.get("servers"))
    if isinstance(servers, Mapping):
        found = {alias: _of_entry(alias, entry, secrets) for alias, entry in servers.items()}
        upstreams = _named_apart({alias: one for alias, one in found.items() if one is not None})
        return GatewaySettings(upstreams=upstreams, lock=folder / PINS_FILE_NAME)
    unknown = sorted(set(said) - {"gateway", "upstream", "view", *access.ACCESS_SECTIONS})
    if unknown:
        raise UsageError(f"there is no [{unknown[0]}]; there are [gateway], [upstream.NAME] and [view.NAME]")
    about = _table("gateway", said.get("gateway", {}), _GatewayTable)
    lock = about.pop("lock", PINS_FILE_NAME)
    face, always = about.pop("face", None), tuple(about.pop("always", ()))
    code = dict(about.pop("code", {}))
    shared: dict[str, Any] = {name: about.pop(name) for name in _SHARED if name in about}
    upstreams = {
        alias: upstream_of(alias, {**shared, **_is_table(f"upstream.{alias}", table)}, secrets, folder)
        for alias, table in _is_table("upstream", said.get("upstream", {})).items()
        if not (isinstance(table, Mapping) and table.get("disabled") is True)
    }
    views = {
        name: view_of(name, _is_table(f"view.{name}", table))
        for name, table in _is_table("view", said.get("view", {})).items()
    }
    return GatewaySettings(
        about=about,
        upstreams=_named_apart(upstreams),
        views=checked_views(views),
        face=face,
        always=always,
        code=code,
        lock=folder / lock,
        access=access.read(said, folder),
    )


def _of_entry(alias: str, entry: Any, secrets: Secrets) -> UpstreamSettings | None:
    """An entry of an mcp.json. Other programs have members of their own in it, which mean nothing here."""
    if not isinstance(entry, Mapping):
        raise UsageError(f"the entry of {alias!r} is no object")
    if entry.get("disabled") is True:
        return None
    own = _is_table(f"portico of {alias!r}", entry.get("portico", {}))
    return upstream_of(
        alias, {**{k: v for k, v in entry.items() if k in _UpstreamPlace.__annotations__}, **own}, secrets
    )


def upstream_of(alias: str, table: Mapping[str, Any], secrets: Secrets, folder: Path = Path()) -> UpstreamSettings:
    """An upstream of these settings; a secret that is missing is a problem of this one alone."""
    place = {name: value for name, value in table.items() if name in _UpstreamPlace.__annotations__}
    options = {name: value for name, value in table.items() if name not in place}
    problem = _fill_auth(options, secrets)
    what = f"upstream.{alias}"
    check_options(what, options, UpstreamOptions)
    check_options(what, place, _UpstreamPlace)
    target = None
    try:
        target = _api_target(what, place, options, secrets, folder) or _target(what, place, secrets)
    except _Missing as missing:
        problem = str(missing)
    return settings_for(alias, target, options, problem)


def settings_for(alias: str, target: Target | None, options: Mapping[str, Any], problem: str = "") -> UpstreamSettings:
    """Settings with the options of `gateway.add`."""
    if not alias or len(alias) > 64:
        raise UsageError(f"{alias!r} is no name for an upstream: it has 1 to 64 characters")
    check_options(f"upstream.{alias}", options, UpstreamOptions)
    given: dict[str, Any] = {
        name: tuple(value) if name in ("include", "exclude") else value for name, value in options.items()
    }
    for name in ("timeout", "idle"):
        if name in given:
            given[name] = read_seconds(f"upstream.{alias}: {name}", given[name], _LONGEST_SECONDS)
    for name in ("longest_name", "concurrency", "lanes"):
        if given.get(name, 64) < (16 if name == "longest_name" else 1):
            raise UsageError(f"upstream.{alias}: {name} is {given[name]}, which is too small")
    if "auth" in given:
        upstream_auth_settings.check(f"upstream.{alias}", given["auth"])
        given["auth"] = dict(given["auth"])
        if not hasattr(target, "url") and target is not None:
            raise UsageError(f"upstream.{alias}: auth is for servers at a URL")
    for name in ("rename", "descriptions"):
        given[name] = dict(given.get(name, {}))
    given["forward"] = _forwarded(f"upstream.{alias}", target, given.get("forward", ()))
    if "answers" in given:
        given["answers"] = answers_of(f"upstream.{alias}", given["answers"])
    return UpstreamSettings(alias=alias, target=target, problem=problem, **given)


def _fill_auth(options: dict[str, Any], secrets: Secrets) -> str:
    """Put the secrets into `auth`; a sentence if one is missing."""
    try:
        if isinstance(options.get("auth"), Mapping):
            options["auth"] = secrets.filled(options["auth"])
    except UsageError as missing:
        return str(missing)
    return ""


_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# What the client shows to the gateway is for the gateway; and what is for one hop has no business on the next.
_OWN = frozenset({"authorization", "proxy-authorization", "cookie", "dpop"})
_HOP = frozenset(
    {"host", "connection", "content-length", "content-type", "transfer-encoding", "accept", "te", "upgrade"}
)


def _forwarded(what: str, target: Target | None, said: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    pairs = dict(said) if isinstance(said, Mapping) else {name: name for name in said}
    if pairs and target is not None and not isinstance(target, Url):
        raise UsageError(f"{what}: forward is for an upstream with a url")
    for source, name in pairs.items():
        if source.lower() in _OWN:
            raise UsageError(f"{what}: forward has {source!r}, which the client shows to the gateway and to no other")
        for one in (source, name):
            if not _HEADER.fullmatch(one) or one.lower() in _HOP or one.lower().startswith("mcp-"):
                raise UsageError(f"{what}: forward has {one!r}, which is no header that can go on")
    return {source.lower(): name for source, name in pairs.items()}


class _Missing(UsageError):
    """A secret, or a variable, that is not there."""


def _api_target(
    what: str, place: Mapping[str, Any], options: Mapping[str, Any], secrets: Secrets, folder: Path
) -> Target | None:
    """What an upstream with `openapi` is; None: it has none."""
    if "openapi" not in place:
        return None
    try:
        filled = secrets.filled(dict(place))
    except UsageError as missing:
        raise _Missing(str(missing)) from None
    seconds = read_seconds(f"{what}: timeout", options["timeout"], _LONGEST_SECONDS) if "timeout" in options else None
    return openapi_upstream.api_target(what, filled, seconds, folder)


def _target(what: str, place: Mapping[str, Any], secrets: Secrets) -> Target:
    ways = [name for name in ("url", "command", "target") if name in place]
    if len(ways) != 1:
        raise UsageError(f"{what} needs one of url, command and target; it has {' and '.join(ways) or 'none'}")
    try:
        filled = secrets.filled(dict(place))
    except UsageError as missing:
        raise _Missing(str(missing)) from None
    if "target" in filled:
        return _loaded_target(filled["target"])
    if not isinstance(filled.get("command", ""), str):
        words = [*filled["command"], *filled.get("args", ())]
        return target_of(words, env=filled.get("env"), cwd=filled.get("cwd"))
    try:
        return target_of(filled)
    except MissingValue as missing:
        raise _Missing(str(missing)) from None
    except UsageError as mistake:
        raise UsageError(f"{what}: {mistake}") from None


# What was loaded by its name: a file that is read again for another reason changes nothing.
_loaded: dict[tuple[str, str, int], Target] = {}
_MOST_LOADED = 256


def _loaded_target(text: Any) -> Target:
    if not isinstance(text, str):
        return target_of(text)
    with contextlib.suppress(OSError):
        key = (os.getcwd(), text, os.stat(text.partition(".py")[0] + ".py").st_mtime_ns if ".py" in text else 0)
        if key not in _loaded:
            if len(_loaded) >= _MOST_LOADED:
                _loaded.clear()
            _loaded[key] = target_of(text)
        return _loaded[key]
    return target_of(text)


def _named_apart(upstreams: dict[str, UpstreamSettings]) -> dict[str, UpstreamSettings]:
    seen: dict[str, str] = {}
    for alias in upstreams:
        other = seen.setdefault(folded_alias(alias), alias)
        if other != alias:
            raise UsageError(f"the upstreams {other!r} and {alias!r} look the same before a name; call one otherwise")
    return upstreams


def _is_table(what: str, said: Any) -> Mapping[str, Any]:
    if not isinstance(said, Mapping):
        raise UsageError(f"{what} is no table")
    return said


def _table(what: str, said: Any, known: type) -> dict[str, Any]:
    check_options(what, _is_table(what, said), known)
    return dict(said)
