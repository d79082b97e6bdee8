"""Several servers as the target of one client: `Client("mcp.json")` or `Client({"mcpServers": {…}})`.

A MultiServer is a Server that mounts a connection to each of them. Tool and prompt names are prefixed with the server
name (`weather_forecast`), as are URIs (`data://weather/…`). Servers connect concurrently and in the background: a
server that does not answer does not hide the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, TypedDict

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from portico._options import parse_duration, validate_options
from portico.protocol import jsonrpc, notifications
from portico.protocol.content import EmptyResult
from portico.protocol.errors import (
    URL_ELICITATION_REQUIRED,
    InvalidParams,
    MethodNotFound,
    MissingClientCapability,
    PorticoError,
    ProtocolError,
    ResourceNotFound,
    ToolError,
    TransportError,
    UsageError,
)
from portico.protocol.jsonrpc import object_decoder
from portico.protocol.lifecycle import DiscoverResult
from portico.protocol.meta import LOG_LEVEL_RANKS
from portico.protocol.methods import LONG_LIVED_METHODS, METHODS, as_input_required
from portico.protocol.tasks import EXTENSION
from portico.protocol.versions import FIRST_MODERN_VERSION, SUPPORTED_PROTOCOL_VERSIONS, ProtocolVersion
from portico.rpc.attribution import attribute, attribute_all, attribute_data, attribute_tasks
from portico.rpc.call import Call
from portico.server.providers.base import MountedProviders
from portico.server.providers.naming import MAX_NAME_CHARS, PREFIX, exposed_name, normalize_alias
from portico.server.registry.catalog import KIND_BY_METHOD
from portico.server.server import Server
from portico.transports.handshake import ClientIdentity
from portico.transports.http_client.pool import HttpConnectionPool
from portico.transports.targets import MissingValue, Target, parse_target, read_configuration, server_entries
from portico.transports.upstream import DEFAULT_TIMEOUT_SECONDS, Upstream

# The minimum time for a connection attempt, even if the client's timeout is shorter.
MIN_CONNECT_SECONDS = DEFAULT_TIMEOUT_SECONDS
MAX_TIMEOUT_SECONDS = 1e7
# A list over all servers must be complete within the client's timeout, so each server gets a share of it.
LIST_TIMEOUT_SHARE = 0.8
# The pause before lists try a disconnected server again. For listeners it doubles up to the maximum.
RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 30.0

log = logging.getLogger("portico")


class ServerGroup(Protocol):
    """A Handler over several servers that a client connects when it opens: a MultiServer or a gateway."""

    async def __call__(self, call: Call, /) -> Any: ...

    def lifespan(self) -> AbstractAsyncContextManager[Any]: ...

    async def connect_upstreams(self, seconds: float | None, names: Collection[str] | None = None) -> None:
        """Wait up to `seconds` until every server has answered or failed.

        `names`: wait only for the servers that these tools and prompts belong to.
        """

    def missing_upstreams(self, names: Collection[str] | None = None) -> dict[str, str]:
        """Return why servers are missing, by name.

        `names`: report only the servers that these tools and prompts belong to.
        """


class ClientCallbacks(Struct, frozen=True):
    """The callbacks and identity that the connections of a MultiServer need from the client."""

    identity: ClientIdentity
    # Answers a server-to-client request of a server with this protocol version.
    answer: Callable[[Call, ProtocolVersion], Awaitable[Any]]
    # Receives the params of a log message.
    log: Callable[[Raw], None]
    # Whether the client has a log handler.
    wants_logs: bool = False


# Entries


class _ServerOptions(TypedDict, total=False):
    """The members of an entry, and of its `portico` table, that a client supports."""

    url: str
    command: str | list[str]
    args: list[str]
    target: str
    headers: Mapping[str, str]
    env: Mapping[str, str]
    cwd: str
    type: str
    disabled: bool


class _EntryOptions(_ServerOptions, total=False):
    prefix: str
    protocol_version: ProtocolVersion
    timeout: float | str


class ServerEntry(Struct, frozen=True, kw_only=True):
    """One server of a configuration."""

    name: str
    target: Target | None
    # Why `target` is None, for example an unset environment variable.
    problem: str = ""
    # The prefix of its tools and prompts: empty, or ending with `_`.
    prefix: str = ""
    protocol_version: ProtocolVersion | None = None
    timeout: float | None = None

    def owns(self, names: Collection[str]) -> bool:
        """Return whether any of these names has the prefix of this server."""
        return bool(self.prefix) and any(name.startswith(self.prefix) for name in names)


def read_entries(configuration: Mapping[str, Any]) -> list[ServerEntry]:
    """Parse the servers of a configuration. Raises UsageError if it is invalid or needs a gateway."""
    entries = [_read_entry(name, entry) for name, entry in server_entries(configuration).items()]
    names: dict[str, str] = {}
    for entry in entries:
        # Two servers with one prefix could not be told apart by name, and one would shadow tools of the other.
        other = names.setdefault(entry.prefix, entry.name) if entry.prefix else entry.name
        if other != entry.name:
            raise UsageError(f"the servers {other!r} and {entry.name!r} have the same prefix {entry.prefix!r}")
    return entries


def _read_entry(name: str, entry: Mapping[str, Any]) -> ServerEntry:
    label = f"server {name!r}"
    table = entry.get("portico", {})
    if not isinstance(table, Mapping):
        raise UsageError(f"{label}: portico must be an object, got {type(table).__name__}")
    option_names = _EntryOptions.__annotations__
    needs_gateway = [*(option for option in table if option not in option_names), *({"openapi"} & entry.keys())]
    if needs_gateway:
        raise UsageError(
            f"{label}: the option {needs_gateway[0]!r} needs a gateway (portico-gateway). "
            f"A client supports {', '.join(sorted(option_names))}."
        )
    # Other programs add their own members to an entry; they are ignored.
    options = {option: entry[option] for option in _ServerOptions.__annotations__ if option in entry}
    options.update(table)
    validate_options(label, options, _EntryOptions)
    target, problem = None, ""
    try:
        target = _read_target(label, options)
    except MissingValue as missing:
        # A missing value affects this server only.
        problem = str(missing)
    version = options.get("protocol_version")
    if version is not None and version not in SUPPORTED_PROTOCOL_VERSIONS:
        versions = ", ".join(SUPPORTED_PROTOCOL_VERSIONS)
        raise UsageError(f"{label}: protocol_version must be one of {versions}, got {version!r}")
    seconds = options.get("timeout")
    return ServerEntry(
        name=name,
        target=target,
        problem=problem,
        prefix=_read_prefix(label, name, options.get("prefix", PREFIX)),
        protocol_version=version,
        timeout=None if seconds is None else parse_duration(f"{label}: timeout", seconds, MAX_TIMEOUT_SECONDS),
    )


def _read_target(label: str, options: Mapping[str, Any]) -> Target:
    locations = [option for option in ("url", "command", "target") if option in options]
    if len(locations) != 1:
        raise UsageError(f"{label} needs one of url, command and target, got {' and '.join(locations) or 'none'}")
    if "target" in options:
        return parse_target(options["target"])
    command = options.get("command")
    if command is not None and not command:
        raise UsageError(f"{label}: command must not be empty")
    # VS Code and others write a string and `args`; a list as in gateway files is accepted as well.
    if isinstance(command, list):
        options = {**options, "command": command[0], "args": [*command[1:], *(options.get("args") or ())]}
    try:
        return parse_target(options)
    except MissingValue:
        raise
    except UsageError as mistake:
        raise UsageError(f"{label}: {mistake}") from None


def _read_prefix(label: str, name: str, pattern: str) -> str:
    if not name or len(name) > MAX_NAME_CHARS:
        raise UsageError(f"the name of a server must have 1 to {MAX_NAME_CHARS} characters, got {name!r}")
    prefix = pattern.replace("{alias}", normalize_alias(name))
    if prefix and not prefix.endswith("_"):
        raise UsageError(f"{label}: prefix must be empty or end with '_', got {pattern!r}; others need a gateway")
    return prefix


# Connections


class ServerConnection:
    """A Handler over the connection to one server, which connects in the background.

    Calls wait for the connection. Lists do not wait and omit a disconnected server. `on_connected` is called when the
    server answers for the first time and after every restart.
    """

    def __init__(
        self,
        entry: ServerEntry,
        client: ClientCallbacks,
        timeout: float | None,
        pool: Callable[[], HttpConnectionPool],
        on_connected: Callable[[], None],
    ) -> None:
        self.entry = entry
        self.is_connected = False
        self.is_closed = True
        # Why the last attempt to connect or to read a list failed.
        self.problem = entry.problem
        self._client = client
        self._timeout = timeout
        self._on_connected = on_connected
        self._connecting: asyncio.Task[None] | None = None
        self._connected_at = self._failed_at = float("-inf")
        # Original names of tools and prompts whose names are too long or contain characters that models do not accept.
        self._own_names: dict[str, str] = {}
        self._upstream: Upstream | None = None
        if entry.target is not None:
            self._upstream = Upstream(
                entry.target,
                self._answer_server,
                client.identity,
                protocol_version=entry.protocol_version,
                # No default here: the client already applies a timeout to each call.
                timeout=entry.timeout,
                pool_factory=pool,
                on_reconnected=self._on_reopened,
            )

    # Connecting

    def begin(self) -> asyncio.Task[None] | None:
        """Start connecting unless connected, and return the connecting task or None."""
        if self.is_connected or self.is_closed or self._upstream is None:
            return None
        if self._connecting is None or self._connecting.done():
            self._connected_at = time.monotonic()
            self._connecting = asyncio.get_running_loop().create_task(self._connect(self._upstream))
        return self._connecting

    async def _connect(self, upstream: Upstream) -> None:
        # Starting a process with `npx` or `uvx` may download packages first, so short call timeouts do not
        # apply.
        seconds = None if self._timeout is None else max(self._timeout, MIN_CONNECT_SECONDS)
        try:
            async with asyncio.timeout(seconds):
                await upstream.open()
                await self._request_logs(upstream)
        except PorticoError as failure:
            self._fail(str(failure))
        except TimeoutError:
            self._fail(f"no answer within {seconds:g} s")
        except Exception as failure:
            # A server in this process may raise any exception.
            log.exception("error while connecting to %s", self.entry.name)
            self._fail(f"{type(failure).__name__}: {failure}")
        else:
            self.is_connected, self.problem = True, ""
            self._on_connected()
            return
        await upstream.close()

    def _fail(self, problem: str) -> None:
        self.problem, self._failed_at = problem, time.monotonic()

    async def _request_logs(self, upstream: Upstream) -> None:
        """Request all log messages of a session: the client may change its level later, and filters them itself."""
        if self._client.wants_logs and not upstream.modern and upstream.handshake.capabilities.logging is not None:
            with contextlib.suppress(ProtocolError):
                await upstream(Call(method="logging/setLevel", params=Raw(b'{"level":"debug"}'), id=0))

    async def _on_reopened(self) -> None:
        if self._upstream is not None:
            await self._request_logs(self._upstream)
        self._on_connected()

    def missing_reason(self, seconds: float | None) -> str:
        """Return why the server is missing, or an empty string."""
        if self.problem or self.is_connected:
            return self.problem
        return "no answer yet" if seconds is None else f"no answer within {seconds:g} s"

    async def close(self) -> None:
        self.is_closed = True
        task, self._connecting = self._connecting, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        self.is_connected, self.problem = False, self.entry.problem
        if self._upstream is not None:
            await self._upstream.close()

    # Calls

    async def __call__(self, call: Call) -> Any:
        if call.method in KIND_BY_METHOD:
            return await self._list(call)
        if call.method in LONG_LIVED_METHODS:
            return await self._listen(call)
        upstream = self._upstream
        if not self.is_connected or upstream is None:
            upstream = await self._wait_connected(self._timeout)
        if self._own_names and call.method in ("tools/call", "prompts/get"):
            call = self._with_own_name(call)
        try:
            result = await upstream(call)
        except ProtocolError as failure:
            # The user must see which server asks for a URL to be opened: all servers share one client.
            if failure.code == URL_ELICITATION_REQUIRED:
                failure.data = attribute_data(self.entry.name, failure.data)
            if call.method == "tools/call" and _requires_task(failure, call):
                raise ToolError(
                    f"This tool of {self.entry.name} runs only as a task, which needs a gateway (portico-gateway) or a "
                    f"client of {self.entry.name} alone."
                ) from None
            raise
        except TransportError as failure:
            raise self._refusal(str(failure)) from None
        if call.method == "tasks/get":
            return _attributed_task(self.entry.name, result)
        input_required = as_input_required(call.method, result)
        return result if input_required is None else attribute_all(self.entry.name, input_required)

    async def _wait_connected(self, seconds: float | None) -> Upstream:
        """Wait for the connection and return it. Raises ToolError if the server is not connected in time.

        The wait ends `seconds` after the attempt started, so a server that never answers delays only the first call.
        """
        task = self.begin()
        if task is not None:
            left = None if seconds is None else max(0.0, self._connected_at + seconds - time.monotonic())
            await asyncio.wait([task], timeout=left)
        if not self.is_connected or self._upstream is None:
            raise self._refusal(self.missing_reason(self._timeout))
        return self._upstream

    def _refusal(self, reason: str) -> ToolError:
        name = self.entry.name
        text = f"{name} does not answer: {reason}"
        return ToolError(text, error_type="ToolExecutionError", details={"upstream": name}, retryable=True)

    async def _listen(self, call: Call) -> Any:
        """Report the server's changes until the connection is closed, reconnecting with increasing pauses."""
        pause = RETRY_SECONDS
        while True:
            started_at = time.monotonic()
            try:
                upstream = await self._wait_connected(None)
                return await upstream(call)
            except (TransportError, ToolError) as failure:
                if self.is_closed:
                    raise
                log.debug("listening to %s again: %s", self.entry.name, failure)
            if time.monotonic() - started_at > MAX_RETRY_SECONDS:
                pause = RETRY_SECONDS
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_RETRY_SECONDS)

    # Lists

    async def _list(self, call: Call) -> Any:
        """Return a page of a list.

        Raises MethodNotFound, which mounts treat as an empty list, if the server is not connected or fails.
        """
        upstream = self._upstream
        if not self.is_connected or upstream is None:
            # Lists are requested often; a server that is down must not be started again for each of them.
            if time.monotonic() - self._failed_at > RETRY_SECONDS:
                self.begin()
            raise MethodNotFound(f"{self.entry.name} is not connected")
        try:
            # A part of the timeout, so that one slow server does not make the list of all others fail.
            seconds = None if self._timeout is None else LIST_TIMEOUT_SHARE * self._timeout
            async with asyncio.timeout(seconds):
                result = await upstream(call)
            result = self._with_outward_names(call.method, result)
        except MethodNotFound:
            raise
        except (PorticoError, TimeoutError, msgspec.DecodeError, RecursionError) as failure:
            self.problem = str(failure) or f"no response to {call.method} in time"
            log.warning("cannot list %s: %s", self.entry.name, self.problem)
            raise MethodNotFound(f"cannot list {self.entry.name}: {self.problem}") from None
        self.problem = ""
        return result

    def _with_outward_names(self, method: str, result: Any) -> Any:
        """Return a list page in which names that models do not accept are replaced.

        With the prefix, the new names equal those that a gateway exposes.
        """
        prefix = self.entry.prefix
        if KIND_BY_METHOD[method] not in ("tool", "prompt"):
            return result
        page = msgspec.json.decode(jsonrpc.encode(result), type=METHODS[method].result)
        member = method.partition("/")[0]
        entries, own_names = [], {}
        for entry in getattr(page, member):
            name = exposed_name(self.entry.name, entry.name, prefix)
            if name != prefix + entry.name and name.startswith(prefix):
                own_names[name.removeprefix(prefix)] = entry.name
                entry = replace(entry, name=name.removeprefix(prefix))
            entries.append(entry)
        self._own_names.update(own_names)
        return replace(page, **{member: entries}) if own_names else result

    def _with_own_name(self, call: Call) -> Call:
        own = self._own_names.get(call.decode_params().name)
        if own is None:
            return call
        params: dict[str, Any] = {**object_decoder.decode(call.params), "name": own}
        return replace(call, params=Raw(jsonrpc.encode(params)))

    # Requests and notifications from the server

    def _answer_server(self, call: Call) -> Any:
        if call.id is None:
            if call.method == notifications.LOG_MESSAGE:
                self._log(call.params)
            return None
        return EmptyResult() if call.method == "ping" else self._answer_request(call)

    def _log(self, params: Raw) -> None:
        log_level = self._client.identity.log_level
        with contextlib.suppress(InvalidParams):
            level = METHODS[notifications.LOG_MESSAGE].decode(params).level
            if log_level is not None and LOG_LEVEL_RANKS[level] >= LOG_LEVEL_RANKS[log_level]:
                self._client.log(params)

    async def _answer_request(self, call: Call) -> Any:
        assert self._upstream is not None
        if call.params:
            call = replace(call, params=attribute(self.entry.name, call.method, call.params))
        # The time that a user needs to answer does not count towards the timeout of the call.
        with self._upstream.pause_timeouts():
            return await self._client.answer(call, self._upstream.handshake.protocol_version)


def _attributed_task(name: str, result: Any) -> Any:
    """Return the state of a task with the server's name added to each input request."""
    if type(result) is not Raw or b'"inputRequests"' not in bytes(result):
        return result
    state = object_decoder.decode(result)
    requests = attribute_tasks(name, msgspec.json.decode(state["inputRequests"])) if "inputRequests" in state else {}
    return Raw(jsonrpc.encode({**state, "inputRequests": requests}))


def _requires_task(failure: ProtocolError, call: Call) -> bool:
    """Return whether a server rejects a plain call because the tool runs only as a task, which this client cannot
    start.
    """
    if isinstance(failure, MissingClientCapability):
        return (
            EXTENSION in failure.required_extensions
            and (call.protocol_version or FIRST_MODERN_VERSION) < FIRST_MODERN_VERSION
        )
    # 2025-11-25, basic/utilities/tasks, Tool-Level Negotiation.
    return isinstance(failure, MethodNotFound)


# The group


class _ServerMounts(MountedProviders):
    """Mounts whose resources can also be read by their original URIs, such as URIs in the text of a result."""

    async def read(self, call: Call, uri: str) -> Any:
        try:
            return await super().read(call, uri)
        except ResourceNotFound as unknown:
            for mount in self._mounts:
                # Never connect for this: the URI may belong to any server, and most of them do not know it.
                if not mount.target.is_connected:
                    continue
                with contextlib.suppress(PorticoError):
                    return await mount.forward(call, "uri", uri)
            raise unknown


class MultiServer(Server):
    """The servers of a configuration as one Server; see the module docstring."""

    def __init__(
        self,
        entries: Collection[ServerEntry],
        client: ClientCallbacks,
        *,
        name: str = "servers",
        timeout: float | None = DEFAULT_TIMEOUT_SECONDS,
        pool: Callable[[], HttpConnectionPool] = HttpConnectionPool,
    ) -> None:
        super().__init__(name)
        self.provider = _ServerMounts(self.subscriptions.broadcast, self.lifespans)
        # How long the client waited on opening; reported as the reason why a server is missing.
        self._connect_seconds: float | None = None
        self._connections = [ServerConnection(entry, client, timeout, pool, self._lists_changed) for entry in entries]
        for connection in self._connections:
            self.mount(connection, connection.entry.prefix.removesuffix("_") or None)
        # Mounts are closed one after the other; the connections are closed concurrently.
        self.lifespans.add("connections", self._connections_lifespan)

    @classmethod
    def load(cls, configuration: str | Mapping[str, Any], client: ClientCallbacks, **options: Any) -> MultiServer:
        """Load the servers of a configuration: the path of an mcp.json, or its content. Raises UsageError."""
        if isinstance(configuration, Mapping):
            return cls(read_entries(configuration), client, **options)
        path = configuration.strip()
        document = read_configuration(path)
        try:
            entries = read_entries(document)
        except UsageError as mistake:
            raise UsageError(f"{path}: {mistake}") from None
        return cls(entries, client, name=Path(path).stem, **options)

    def _discover(self, call: Call) -> DiscoverResult:
        """Declare the tasks extension, because tasks of 2026-07-28 are forwarded (see `start`).

        It is not declared as a capability of this server, so that clients poll: task notifications are not forwarded.
        """
        result = self.methods.discover(call)
        if call.client is None:
            # Sessions with a handshake send this request themselves; tasks of 2025-11-25 are not forwarded.
            return result
        return replace(result, capabilities=replace(result.capabilities, extensions={EXTENSION: {}}))

    def start(self, call: Call) -> Any:
        able = call.capabilities.extensions
        if able is not None and EXTENSION in able:
            # Mounts forward tasks only for callers that track them, as the client does.
            call.reply.tracks_tasks = True
        return self._discover(call) if call.method == "server/discover" else super().start(call)

    @asynccontextmanager
    async def _connections_lifespan(self) -> AsyncIterator[None]:
        for connection in self._connections:
            connection.is_closed = False
        try:
            yield
        finally:
            await asyncio.gather(*(connection.close() for connection in self._connections))

    async def connect_upstreams(self, seconds: float | None, names: Collection[str] | None = None) -> None:
        """Connect to all servers concurrently and wait up to `seconds` until each has answered or failed.

        `names`: connect only to the servers that these tools and prompts belong to.
        """
        tasks = [task for connection in self._owners(names) if (task := connection.begin()) is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        self._connect_seconds = seconds

    def missing_upstreams(self, names: Collection[str] | None = None) -> dict[str, str]:
        """Return why servers are missing, by name.

        `names`: report only the servers that these tools and prompts belong to.
        """
        owners = self._owners(names)
        return {owner.entry.name: reason for owner in owners if (reason := owner.missing_reason(self._connect_seconds))}

    def _owners(self, names: Collection[str] | None) -> list[ServerConnection]:
        """Return the servers whose prefix matches one of these names; all servers if none matches."""
        if names is None:
            return self._connections
        connections = [connection for connection in self._connections if connection.entry.owns(names)]
        return connections or (self._connections if names else [])
