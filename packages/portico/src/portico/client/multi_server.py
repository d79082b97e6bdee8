"""Several servers as the target of one client: `Client("mcp.json")` or `Client({"mcpServers": {…}})`.

A MultiServer is a Server that mounts a connection to each of them. The names of a server's tools and prompts get its
own name as prefix (`weather_forecast`), as do its URIs (`data://weather/…`). Servers connect concurrently and in the
background: one that does not answer hides none of the others.
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

from portico._options import check_options, read_seconds
from portico.protocol import jsonrpc, notifications
from portico.protocol.content import EmptyResult
from portico.protocol.errors import (
    URL_ELICITATION_REQUIRED,
    Error,
    InvalidParams,
    MethodNotFound,
    MissingCapability,
    ProtocolError,
    ResourceNotFound,
    ToolError,
    TransportError,
    UsageError,
)
from portico.protocol.lifecycle import DiscoverResult
from portico.protocol.meta import LOG_LEVELS
from portico.protocol.methods import LASTING, METHODS, asked_by
from portico.protocol.tasks import EXTENSION
from portico.protocol.versions import MODERN, REVISIONS, Revision
from portico.rpc.attribution import attribute, attribute_all, attribute_data, attribute_tasks
from portico.rpc.call import Call
from portico.server.providers.base import Mounts
from portico.server.providers.naming import LONGEST_NAME, PREFIX, folded_alias, outward
from portico.server.registry.catalog import KINDS
from portico.server.registry.service import Answer
from portico.server.server import Server
from portico.transports.handshake import ClientIdentity
from portico.transports.http_client.pool import Pool
from portico.transports.targets import MissingValue, Target, read_configuration, server_entries, target_of
from portico.transports.upstream import TIMEOUT_SECONDS, Upstream

# How long a connection attempt may take at least, however short the timeout of the client is.
MIN_CONNECT_SECONDS = TIMEOUT_SECONDS
MAX_TIMEOUT_SECONDS = 1e7
# A list of all servers is answered within the client's timeout, so each server gets less than that.
LIST_TIMEOUT_SHARE = 0.8
# The pause before a server is tried again that lists are to include; for listeners it doubles up to the maximum.
RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 30.0

log = logging.getLogger("portico")

_members = msgspec.json.Decoder(dict[str, Raw])


class ServerGroup(Protocol):
    """A Handler for several servers, which a client connects to when it opens: a MultiServer, or a gateway."""

    async def __call__(self, call: Call, /) -> Any: ...

    def lifespan(self) -> AbstractAsyncContextManager[Any]: ...

    async def connect_upstreams(self, seconds: float | None, names: Collection[str] | None = None) -> None:
        """Wait for at most `seconds` until every server has answered or failed; with `names`, only those to which
        these tools and prompts belong."""

    def missing_upstreams(self, names: Collection[str] | None = None) -> dict[str, str]:
        """Return by name why a server is missing; of all, or of those to which these tools and prompts belong."""


class ClientCallbacks(Struct, frozen=True):
    """What the connections of a MultiServer need of the client."""

    identity: ClientIdentity
    # Answers a request of a server that speaks this protocol version.
    answer: Callable[[Call, Revision], Awaitable[Any]]
    # Takes the params of a log message.
    log: Callable[[Raw], None]
    # Whether the user handles log messages.
    wants_logs: bool = False


# Entries


class _ServerOptions(TypedDict, total=False):
    """The members of an entry, and of its `portico` table, that a client understands."""

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
    protocol_version: Revision
    revision: Revision
    timeout: float | str


class ServerEntry(Struct, frozen=True, kw_only=True):
    """One server of a configuration."""

    name: str
    target: Target | None
    # Why there is no target, such as an environment variable that is not set.
    problem: str = ""
    # The text before its tools and prompts: empty, or a prefix with `_` at its end.
    prefix: str = ""
    protocol_version: Revision | None = None
    timeout: float | None = None

    def owns(self, names: Collection[str]) -> bool:
        """Return whether any of these names has the prefix of this server."""
        return bool(self.prefix) and any(name.startswith(self.prefix) for name in names)


def read_entries(configuration: Mapping[str, Any]) -> list[ServerEntry]:
    """Return the servers of a configuration. Raises UsageError for an invalid one, or one that needs a gateway."""
    entries = [_read_entry(name, entry) for name, entry in server_entries(configuration).items()]
    names: dict[str, str] = {}
    for entry in entries:
        other = names.setdefault(entry.prefix, entry.name) if entry.prefix else entry.name
        if other != entry.name:
            raise UsageError(f"the servers {other!r} and {entry.name!r} have the same prefix {entry.prefix!r}")
    return entries


def _read_entry(name: str, entry: Mapping[str, Any]) -> ServerEntry:
    what = f"server {name!r}"
    table = entry.get("portico", {})
    if not isinstance(table, Mapping):
        raise UsageError(f"{what}: portico must be an object, got {type(table).__name__}")
    known = _EntryOptions.__annotations__
    needs_gateway = [*(option for option in table if option not in known), *({"openapi"} & entry.keys())]
    if needs_gateway:
        raise UsageError(
            f"{what}: the option {needs_gateway[0]!r} needs a gateway (portico-gateway). "
            f"A client supports {', '.join(sorted(known))}."
        )
    # Other programs have members of their own in an entry; those are ignored.
    options = {option: entry[option] for option in _ServerOptions.__annotations__ if option in entry}
    options.update(table)
    check_options(what, options, _EntryOptions)
    target, problem = None, ""
    try:
        target = _read_target(what, options)
    except MissingValue as missing:
        # That is the problem of this server alone.
        problem = str(missing)
    for option in ("protocol_version", "revision"):
        if option in options and options[option] not in REVISIONS:
            versions = ", ".join(REVISIONS)
            raise UsageError(f"{what}: {option!r} must be one of {versions}, got {options[option]!r}")
    seconds = options.get("timeout")
    return ServerEntry(
        name=name,
        target=target,
        problem=problem,
        prefix=_read_prefix(what, name, options.get("prefix", PREFIX)),
        protocol_version=options.get("protocol_version", options.get("revision")),
        timeout=None if seconds is None else read_seconds(f"{what}: timeout", seconds, MAX_TIMEOUT_SECONDS),
    )


def _read_target(what: str, options: Mapping[str, Any]) -> Target:
    places = [option for option in ("url", "command", "target") if option in options]
    if len(places) != 1:
        raise UsageError(f"{what} needs one of url, command and target, got {' and '.join(places) or 'none'}")
    if "target" in options:
        return target_of(options["target"])
    command = options.get("command")
    if command is not None and not command:
        raise UsageError(f"{what}: command must not be empty")
    if isinstance(command, list):
        options = {**options, "command": command[0], "args": [*command[1:], *(options.get("args") or ())]}
    try:
        return target_of(options)
    except MissingValue:
        raise
    except UsageError as mistake:
        raise UsageError(f"{what}: {mistake}") from None


def _read_prefix(what: str, name: str, pattern: str) -> str:
    if not name or len(name) > LONGEST_NAME:
        raise UsageError(f"the name of a server must have 1 to {LONGEST_NAME} characters, got {name!r}")
    prefix = pattern.replace("{alias}", folded_alias(name))
    if prefix and not prefix.endswith("_"):
        raise UsageError(f"{what}: prefix must be empty or end with '_', got {pattern!r}; others need a gateway")
    return prefix


# Connections


class ServerConnection:
    """A Handler over the connection to one server, which is made in the background.

    Calls wait for it; lists do not, and leave out a server that is not there. `on_connected` is called when it answers
    for the first time, and whenever it was restarted.
    """

    def __init__(
        self,
        entry: ServerEntry,
        client: ClientCallbacks,
        timeout: float | None,
        pool: Callable[[], Pool],
        on_connected: Callable[[], None],
    ) -> None:
        self.entry = entry
        self.is_connected = False
        self.is_closed = True
        # Why the last attempt to connect, or to read a list, has failed.
        self.problem = entry.problem
        self._client = client
        self._timeout = timeout
        self._on_connected = on_connected
        self._connecting: asyncio.Task[None] | None = None
        self._began = self._failed_at = float("-inf")
        # The tools and prompts whose names are too long, or have characters that models do not accept.
        self._own_names: dict[str, str] = {}
        self._upstream: Upstream | None = None
        if entry.target is not None:
            self._upstream = Upstream(
                entry.target,
                self._answer,
                client.identity,
                revision=entry.protocol_version,
                # The client has a timeout for each call.
                timeout=entry.timeout,
                pool=pool,
                on_reopened=self._on_reopened,
            )

    # Connecting

    def begin(self) -> asyncio.Task[None] | None:
        """Start to connect, unless it is connected. Returns the task that connects."""
        if self.is_connected or self.is_closed or self._upstream is None:
            return None
        if self._connecting is None or self._connecting.done():
            self._began = time.monotonic()
            self._connecting = asyncio.get_running_loop().create_task(self._connect(self._upstream))
        return self._connecting

    async def _connect(self, upstream: Upstream) -> None:
        seconds = None if self._timeout is None else max(self._timeout, MIN_CONNECT_SECONDS)
        try:
            async with asyncio.timeout(seconds):
                await upstream.open()
                await self._request_logs(upstream)
        except Error as failure:
            self._fail(str(failure))
        except TimeoutError:
            self._fail(f"no answer within {seconds:g} s")
        except Exception as failure:
            # A server in this process may fail in any way.
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
        """Request every log message of a session: which of them the client wants may change later."""
        if self._client.wants_logs and not upstream.modern and upstream.greeting.capabilities.logging is not None:
            with contextlib.suppress(ProtocolError):
                await upstream(Call(method="logging/setLevel", params=Raw(b'{"level":"debug"}'), id=0))

    async def _on_reopened(self) -> None:
        if self._upstream is not None:
            await self._request_logs(self._upstream)
        self._on_connected()

    def missing_reason(self, seconds: float | None) -> str:
        """Return why the server is missing, or an empty text."""
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

    # Answering

    async def __call__(self, call: Call) -> Any:
        if call.method in KINDS:
            return await self._list(call)
        if call.method in LASTING:
            return await self._listen(call)
        upstream = self._upstream
        if not self.is_connected or upstream is None:
            upstream = await self._connected(self._timeout)
        if self._own_names and call.method in ("tools/call", "prompts/get"):
            call = self._with_own_name(call)
        try:
            result = await upstream(call)
        except ProtocolError as failure:
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
        asked = asked_by(call.method, result)
        return result if asked is None else attribute_all(self.entry.name, asked)

    async def _connected(self, seconds: float | None) -> Upstream:
        """Return the connection. An attempt to connect is waited for until `seconds` after its start, so that a server
        that never answers delays only the first call. Raises ToolError."""
        task = self.begin()
        if task is not None:
            left = None if seconds is None else max(0.0, self._began + seconds - time.monotonic())
            await asyncio.wait([task], timeout=left)
        if not self.is_connected or self._upstream is None:
            raise self._refusal(self.missing_reason(self._timeout))
        return self._upstream

    def _refusal(self, reason: str) -> ToolError:
        name = self.entry.name
        text = f"{name} does not answer: {reason}"
        return ToolError(text, kind="ToolExecutionError", details={"upstream": name}, retryable=True)

    async def _listen(self, call: Call) -> Any:
        """Report the changes of the server until the connection is closed. It is tried again while it is not there."""
        pause = RETRY_SECONDS
        while True:
            began = time.monotonic()
            try:
                upstream = await self._connected(None)
                return await upstream(call)
            except (TransportError, ToolError) as failure:
                if self.is_closed:
                    raise
                log.debug("%s is listened to again: %s", self.entry.name, failure)
            if time.monotonic() - began > MAX_RETRY_SECONDS:
                pause = RETRY_SECONDS
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_RETRY_SECONDS)

    # Lists

    async def _list(self, call: Call) -> Any:
        """Return a page of a list. Raises MethodNotFound, which mounts take for an empty list, if there is none now."""
        upstream = self._upstream
        if not self.is_connected or upstream is None:
            if time.monotonic() - self._failed_at > RETRY_SECONDS:
                self.begin()
            raise MethodNotFound(f"{self.entry.name} is not connected")
        try:
            seconds = None if self._timeout is None else LIST_TIMEOUT_SHARE * self._timeout
            async with asyncio.timeout(seconds):
                result = await upstream(call)
            result = self._with_outward_names(call.method, result)
        except MethodNotFound:
            raise
        except (Error, TimeoutError, msgspec.DecodeError, RecursionError) as failure:
            self.problem = str(failure) or f"no answer to {call.method} in time"
            log.warning("%s is not listed: %s", self.entry.name, self.problem)
            raise MethodNotFound(f"{self.entry.name} is not listed: {self.problem}") from None
        self.problem = ""
        return result

    def _with_outward_names(self, method: str, result: Any) -> Any:
        """Return a list with short names for those that models do not accept: together with the prefix they are the
        names that a gateway has for them."""
        prefix = self.entry.prefix
        if KINDS[method] not in ("tool", "prompt"):
            return result
        page = msgspec.json.decode(jsonrpc.encode(result), type=METHODS[method].result)
        member = method.partition("/")[0]
        entries, own_names = [], {}
        for entry in getattr(page, member):
            name = outward(self.entry.name, entry.name, prefix)
            if name != prefix + entry.name and name.startswith(prefix):
                own_names[name.removeprefix(prefix)] = entry.name
                entry = replace(entry, name=name.removeprefix(prefix))
            entries.append(entry)
        self._own_names.update(own_names)
        return replace(page, **{member: entries}) if own_names else result

    def _with_own_name(self, call: Call) -> Call:
        own = self._own_names.get(call.typed().name)
        if own is None:
            return call
        params: dict[str, Any] = {**_members.decode(call.params), "name": own}
        return replace(call, params=Raw(jsonrpc.encode(params)))

    # Requests and notifications of the server

    def _answer(self, call: Call) -> Any:
        if call.id is None:
            if call.method == notifications.MESSAGE:
                self._log(call.params)
            return None
        return EmptyResult() if call.method == "ping" else self._answer_request(call)

    def _log(self, params: Raw) -> None:
        wanted = self._client.identity.log_level
        with contextlib.suppress(InvalidParams):
            level = METHODS[notifications.MESSAGE].decode(params).level
            if wanted is not None and LOG_LEVELS[level] >= LOG_LEVELS[wanted]:
                self._client.log(params)

    async def _answer_request(self, call: Call) -> Any:
        assert self._upstream is not None
        if call.params:
            call = replace(call, params=attribute(self.entry.name, call.method, call.params))
        # The time that a user takes to answer is not part of the call's.
        with self._upstream.unhurried():
            return await self._client.answer(call, self._upstream.greeting.revision)


def _attributed_task(name: str, result: Any) -> Any:
    """Return the state of a task with the name of its server in each request for input."""
    if type(result) is not Raw or b'"inputRequests"' not in bytes(result):
        return result
    state = _members.decode(result)
    requests = attribute_tasks(name, msgspec.json.decode(state["inputRequests"])) if "inputRequests" in state else {}
    return Raw(jsonrpc.encode({**state, "inputRequests": requests}))


def _requires_task(failure: ProtocolError, call: Call) -> bool:
    """Return whether a server refuses a plain call because the tool runs only as a task, and the client cannot start
    one through us."""
    if isinstance(failure, MissingCapability):
        return EXTENSION in failure.extensions and (call.revision or MODERN) < MODERN
    # 2025-11-25, basic/utilities/tasks, Tool-Level Negotiation.
    return isinstance(failure, MethodNotFound)


# All of them


class _ServerMounts(Mounts):
    """Mounts whose resources can also be read by their own URIs, such as those in the text of a result."""

    async def read(self, call: Call, uri: str) -> Any:
        try:
            return await super().read(call, uri)
        except ResourceNotFound as unknown:
            for mount in self._mounts:
                if not mount.target.is_connected:
                    continue
                with contextlib.suppress(Error):
                    return await mount.delegate(call, "uri", uri)
            raise unknown


class MultiServer(Server):
    """The servers of a configuration as one. See the module."""

    def __init__(
        self,
        entries: Collection[ServerEntry],
        client: ClientCallbacks,
        *,
        name: str = "servers",
        timeout: float | None = TIMEOUT_SECONDS,
        pool: Callable[[], Pool] = Pool,
    ) -> None:
        super().__init__(name)
        self.others = self.mounts = _ServerMounts(self.subscriptions.publish_everywhere)
        # How long the client waited when it opened, for the reason why a server is missing.
        self._connect_seconds: float | None = None
        self._connections = [ServerConnection(entry, client, timeout, pool, self._lists_changed) for entry in entries]
        for connection in self._connections:
            self.mount(connection, connection.entry.prefix.removesuffix("_") or None)
        # Mounts would be closed one after the other.
        self.lifespans.add("connections", self._connections_lifespan)

    @classmethod
    def load(cls, configuration: str | Mapping[str, Any], client: ClientCallbacks, **options: Any) -> MultiServer:
        """Return the servers of a configuration: the path of an mcp.json, or its content. Raises UsageError."""
        if isinstance(configuration, Mapping):
            return cls(read_entries(configuration), client, **options)
        path = configuration.strip()
        document = read_configuration(path)
        try:
            entries = read_entries(document)
        except UsageError as mistake:
            raise UsageError(f"{path}: {mistake}") from None
        return cls(entries, client, name=Path(path).stem, **options)

    def _own_answers(self) -> dict[str, Answer]:
        return {**super()._own_answers(), "server/discover": self._discover}

    def _discover(self, call: Call) -> DiscoverResult:
        """Declare the tasks extension, for tasks of 2026-07-28 are passed on: see `start`. It is not a capability of
        this server, so that clients poll: changes of tasks are not relayed."""
        result = self.methods.discover(call)
        if call.client is None:
            # The session of a handshake version asks by itself; tasks of 2025-11-25 are not passed on.
            return result
        return replace(result, capabilities=replace(result.capabilities, extensions={EXTENSION: {}}))

    def start(self, call: Call) -> Any:
        able = call.capabilities.extensions
        if able is not None and EXTENSION in able:
            # Mounts pass on the tasks of those who look after them, as the client does.
            call.reply.follows = True
        return super().start(call)

    @asynccontextmanager
    async def _connections_lifespan(self) -> AsyncIterator[None]:
        for connection in self._connections:
            connection.is_closed = False
        try:
            yield
        finally:
            await asyncio.gather(*(connection.close() for connection in self._connections))

    async def connect_upstreams(self, seconds: float | None, names: Collection[str] | None = None) -> None:
        """Connect to all servers concurrently, and wait for at most `seconds` until each has answered or failed.

        `names`: connect only to the servers to which these tools and prompts belong.
        """
        tasks = [task for connection in self._owners(names) if (task := connection.begin()) is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        self._connect_seconds = seconds

    def missing_upstreams(self, names: Collection[str] | None = None) -> dict[str, str]:
        """Return by name why a server is missing; of all, or of those to which these tools and prompts belong."""
        owners = self._owners(names)
        return {one.entry.name: reason for one in owners if (reason := one.missing_reason(self._connect_seconds))}

    def _owners(self, names: Collection[str] | None) -> list[ServerConnection]:
        """Return the servers to which any of these names belongs by its prefix; all, if no prefix tells."""
        if names is None:
            return self._connections
        found = [one for one in self._connections if one.entry.owns(names)]
        return found or (self._connections if names else [])
