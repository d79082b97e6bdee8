"""`Client`: a connection to one MCP server over any transport and any supported protocol version."""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from types import UnionType
from typing import TYPE_CHECKING, Any, Self, cast

from msgspec import UNSET, Raw
from msgspec.structs import replace

from portico._options import validated_kwargs
from portico.client import results
from portico.client.cache import ResponseCache
from portico.client.input_handlers import (
    FORM_ONLY,
    ElicitationHandler,
    ElicitationMode,
    InputHandlers,
    InvalidHandlerResult,
    Roots,
    SamplingHandler,
)
from portico.client.notifications import LogHandler, MessageHandler, NotificationDispatcher
from portico.client.pagination import ListPaginator
from portico.client.requests import CallProgress, ProgressHandler, RequestSession
from portico.client.results import CallToolResult, OutputValidationError, T
from portico.client.subscriptions import ChangeListener
from portico.client.tasks import RemoteTask, create_remote_task
from portico.client.tool_metadata import ToolMetadataCache
from portico.protocol import notifications
from portico.protocol.capabilities import TASK_TOOL_CALLS, has_capability
from portico.protocol.client_features import ElicitResult
from portico.protocol.completion import Completion
from portico.protocol.content import EmptyResult, ResourceContents
from portico.protocol.errors import HeaderMismatch, MissingClientCapability, PorticoError, ProtocolError, UsageError
from portico.protocol.jsonrpc import encode
from portico.protocol.meta import CLIENT_CAPABILITIES_META_KEY, Implementation, LogLevel, ServerCapabilities
from portico.protocol.prompts import GetPromptResult, Prompt
from portico.protocol.resources import Resource, ResourceTemplate
from portico.protocol.subscriptions import SubscriptionFilter
from portico.protocol.tasks import EXTENSION
from portico.protocol.tools import ReceivedToolResult, Tool
from portico.protocol.versions import SUPPORTED_PROTOCOL_VERSIONS, V2025_06_18, V2025_11_25, ProtocolVersion
from portico.rpc.call import Call, Handler
from portico.transports.base import TraceCallback
from portico.transports.handshake import ClientIdentity
from portico.transports.http_client.base import AuthenticatedTransport
from portico.transports.http_client.pool import HttpConnectionPool
from portico.transports.targets import Target, configuration_kind, parse_target
from portico.transports.upstream import DEFAULT_RETRIES, DEFAULT_TIMEOUT_SECONDS, Upstream

if TYPE_CHECKING:
    from portico.client.auth import ClientAuth
    from portico.client.multi_server import ServerGroup
    from portico.transports.http_client.oauth import LoginCallback

CLOSE_TIMEOUT_SECONDS = 2.0

log = logging.getLogger("portico")


def _sender(auth: ClientAuth, target: Target, browser: LoginCallback | None) -> AuthenticatedTransport | None:
    # OAuth modules are imported only by clients that use authentication.
    if auth is None:
        return None
    from portico.client import auth as authorization

    return authorization.create_sender(auth, target, browser)


def _text_of(value: Any) -> str:
    """Return a prompt argument as a string, which is the only type the protocol has for it (server/prompts, Getting a
    Prompt).
    """
    return value if isinstance(value, str) else encode(value).decode()


class Client:
    """A client of one MCP server: `async with Client(target) as client: …`.

    The client opens a connection, negotiates the protocol version, and reconnects when the connection breaks. It is
    also a Handler: `server.mount(client)` mounts the remote server in another one.

    * **target** – the server to connect to: a URL, a command (a list of words, or one string), a `module:object` or
      `file.py:object`, an mcp.json (`file.json:name`, or all of its servers) or an entry of one, a gateway file
      (`gateway.toml`), a Server or any Handler.
    * **protocol_version** – the protocol version to use, for example to see a server as an older client does. Default:
      the newest version that both sides support.
    * **ignore_capabilities** – whether to send requests for features that the server did not declare. By default such
      a request raises MethodNotFound and is not sent.
    * **client_name**, **client_version** – the client info sent to the server.
    * **sampling_handler** – handles sampling requests: receives the params, returns a string or a
      `CreateMessageResult`. Every handler may be `async`.
    * **elicitation_handler** – handles elicitation requests: receives the params, returns the fields of the form
      (accepted), None (declined) or an `ElicitResult`.
    * **elicitation_modes** – the modes that the elicitation handler supports: "form", "url", or both.
    * **sampling_tools** – whether the sampling handler supports tool use.
    * **roots** – the directories that the server may work in, as paths, `file://` URIs or Roots.
    * **log_handler** – receives each log message of the server.
    * **log_level** – the lowest level that the server should send. With a `log_handler` the default is "debug" at
      2026-07-28, where a server sends no logs unless requested; older servers choose their own default.
    * **progress_handler** – receives `(progress, total, message)` of every call without its own `progress_handler`.
    * **message_handler** – receives every notification of the server: its method and its undecoded params.
    * **timeout** – the seconds that a request may take, including retries; None for no limit.
    * **max_retries** – how often a request that did not reach the server is sent again.
    * **trust_annotations** – whether to call a tool again when the connection breaks during its call, if the tool is
      annotated as read-only or idempotent. Any server can claim that, so use it only with servers that you trust.
    * **validate_results** – whether structured results are validated against the tool's output schema.
    * **extensions** – the protocol extensions to declare, with their settings.
    * **principal** – the caller identity, for a Server or Handler in this process.
    * **env**, **cwd** – the environment variables and the working directory of a command.
    * **headers** – HTTP headers to send with every request to a URL.
    * **auth** – a bearer token, "oauth" to log in with a browser, or a Grant or OAuth of `portico.auth`.
    * **open_browser** – shows the login page and returns the URL that it redirected to. Default: the user's browser.
    * **ssl_context** – the SSLContext for `https` URLs.
    * **on_message_bytes** – is called for every message with "sent" or "received" and the bytes.
    """

    @validated_kwargs
    def __init__(
        self,
        target: Handler | Sequence[str] | str | Mapping[str, Any],
        *,
        protocol_version: ProtocolVersion | None = None,
        ignore_capabilities: bool = False,
        client_name: str = "portico",
        client_version: str = "0",
        sampling_handler: SamplingHandler | None = None,
        elicitation_handler: ElicitationHandler | None = None,
        elicitation_modes: Collection[ElicitationMode] = FORM_ONLY,
        sampling_tools: bool = False,
        roots: Roots | None = None,
        log_handler: LogHandler | None = None,
        log_level: LogLevel | None = None,
        progress_handler: ProgressHandler | None = None,
        message_handler: MessageHandler | None = None,
        timeout: float | None = DEFAULT_TIMEOUT_SECONDS,
        max_retries: int = DEFAULT_RETRIES,
        trust_annotations: bool = False,
        validate_results: bool = True,
        extensions: dict[str, Any] | None = None,
        principal: Any = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        headers: Mapping[str, str] | None = None,
        auth: ClientAuth = None,
        open_browser: LoginCallback | None = None,
        ssl_context: ssl.SSLContext | None = None,
        on_message_bytes: TraceCallback | None = None,
    ) -> None:
        if protocol_version is not None and protocol_version not in SUPPORTED_PROTOCOL_VERSIONS:
            raise UsageError(
                f"unknown protocol version {protocol_version!r} (expected one of "
                f"{', '.join(SUPPORTED_PROTOCOL_VERSIONS)})"
            )
        self.timeout = timeout
        self.input_handlers = InputHandlers(
            sampling_handler,
            elicitation_handler,
            roots,
            elicitation_modes=elicitation_modes,
            sampling_tools=sampling_tools,
        )
        able = replace(self.input_handlers.capabilities, extensions=extensions or None)
        # Servers with an initialize handshake ignore this level: they receive `log_level` through logging/setLevel.
        identity = ClientIdentity(
            Implementation(client_name, client_version), able, log_level or (None if log_handler is None else "debug")
        )
        wants_logs = log_handler is not None or message_handler is not None
        self._servers = self._server_group(target, identity, wants_logs, ssl_context)
        # The tools and prompts whose servers must be connected when the client opens; None for all servers.
        self.awaited: Collection[str] | None = None
        resolved_target = parse_target(
            target if self._servers is None else self._servers, env=env, cwd=cwd, headers=headers
        )
        self._validate = validate_results
        self._trusts_annotations = trust_annotations
        self._upstream = Upstream(
            resolved_target,
            self._answer_server,
            identity,
            protocol_version=protocol_version,
            ignore_capabilities=ignore_capabilities,
            timeout=timeout,
            retries=max_retries,
            auth=_sender(auth, resolved_target, open_browser),
            pool_factory=partial(HttpConnectionPool, ssl_context),
            principal=principal,
            trace=on_message_bytes,
            on_reconnected=self._on_reconnected,
            on_missed_messages=self._on_missed_messages,
        )
        self._progress = progress_handler
        self._log_level = log_level
        self._tokens = count(1)
        self._subscribed: dict[str, int] = {}
        self._cache = ResponseCache(time.monotonic)
        self._notifications = NotificationDispatcher(
            self._cache,
            log_handler,
            message_handler,
            lambda: self._tool_metadata.clear(),
            lambda: self._upstream.modern,
        )
        # Notifications that arrive during a request take the same path as all others.
        self._requests = RequestSession(
            self._upstream, self.input_handlers, self._cache, self._notifications.dispatch, timeout
        )
        self._lists = ListPaginator(self._upstream, self._requests, self._cache)
        self._tool_metadata = ToolMetadataCache(self._lists, self._requests)

    def _server_group(
        self, target: Any, identity: ClientIdentity, wants_logs: bool, tls: ssl.SSLContext | None
    ) -> ServerGroup | None:
        """Return the servers of a multi-server configuration or the gateway of a gateway file; None for a single
        server.
        """
        kind = configuration_kind(target)
        if kind == "gateway":
            from portico import plugins

            gateway = plugins.require_plugin("gateway", "a gateway file as target")
            return cast("ServerGroup", gateway.load_gateway_for_client(target.strip()))
        if kind is None:
            return None
        from portico.client import multi_server

        callbacks = multi_server.ClientCallbacks(
            identity,
            self._answer_question,
            lambda params: self._notifications.dispatch(notifications.LOG_MESSAGE, params),
            wants_logs,
        )
        return multi_server.MultiServer.load(
            target, callbacks, timeout=self.timeout, pool=partial(HttpConnectionPool, tls)
        )

    # Server metadata

    @property
    def protocol_version(self) -> ProtocolVersion:
        return self._upstream.handshake.protocol_version

    @property
    def server_info(self) -> Implementation | None:
        return self._upstream.handshake.server

    @property
    def server_capabilities(self) -> ServerCapabilities:
        return self._upstream.handshake.capabilities

    @property
    def instructions(self) -> str | None:
        return self._upstream.handshake.instructions

    @property
    def is_stateless(self) -> bool:
        """Return whether the server speaks 2026-07-28."""
        return self._upstream.modern

    @property
    def upstream(self) -> Upstream:
        """Return the underlying connection."""
        return self._upstream

    @property
    def missing_servers(self) -> dict[str, str]:
        """Return why servers of a multi-server configuration (`Client("mcp.json")`) did not answer, by server name."""
        return {} if self._servers is None else self._servers.missing_upstreams(self.awaited)

    # Opening and closing; both may be called from any task

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Keep the client open while a server has it mounted. A client that is already open stays open afterwards."""
        if self._upstream.is_open:
            yield
            return
        async with self:
            yield

    async def connect(self) -> None:
        """Open the connection and negotiate the protocol version. Raises `UsageError` if the client is already open."""
        if self._upstream.is_open:
            raise UsageError("the client is already open")
        try:
            async with self._connected_servers():
                await self._upstream.open()
            await self._send_log_level()
        except BaseException:
            await self.close()
            raise

    @asynccontextmanager
    async def _connected_servers(self) -> AsyncIterator[None]:
        """Wait up to the timeout for the servers of a configuration, and log a warning for each that did not answer.

        Most programs list tools once, so the list must not depend on which server starts first.
        """
        if self._servers is None:
            yield
            return
        async with self._servers.lifespan():
            await self._servers.connect_upstreams(self.timeout, self.awaited)
            for alias, reason in self.missing_servers.items():
                log.warning("%s is not available: %s", alias, reason)
            yield

    async def close(self) -> None:
        """Close the connection and stop all listeners."""
        for listener in list(self._notifications.listeners):
            await listener.close(unsubscribe=False)
        await self._upstream.close()
        self._notifications.close()

    async def _on_reconnected(self) -> None:
        """Restore the log level and subscriptions on a new connection: the new server process does not know them."""
        # Another process may serve other tools, and its lists have a new life time.
        self._cache.clear()
        self._tool_metadata.clear()
        if not self._upstream.modern:
            await self._send_log_level()
            for uri in list(self._subscribed):
                try:
                    await self._requests.send_and_decode("resources/subscribe", {"uri": uri})
                except ProtocolError as failure:
                    log.warning("%s: could not subscribe to %s again: %s", self._requests.name, uri[:200], failure)
        for listener in list(self._notifications.listeners):
            listener.mark_reconnected()

    def _on_missed_messages(self) -> None:
        """Mark all listeners as disconnected: notifications may be missed until the next request reconnects."""
        self._tool_metadata.clear()
        for listener in list(self._notifications.listeners):
            listener.mark_disconnected()

    async def _send_log_level(self) -> None:
        """Send the configured log level, unless the server does not declare logging."""
        level = self._log_level
        if level is not None and self.server_capabilities.logging is not None:
            await self.set_log_level(level)

    # Requests and notifications from the server

    def _answer_server(self, call: Call) -> Any:
        if call.id is None:
            self._notifications.dispatch(call.method, call.params)
            return None
        return EmptyResult() if call.method == "ping" else self._answer_question(call, self.protocol_version)

    async def _answer_question(self, call: Call, revision: ProtocolVersion) -> Any:
        """Answer a server-to-client request of a session.

        An invalid handler result has no caller to be raised to, so it is logged and the request is cancelled.
        """
        try:
            return await self.input_handlers.handle(call.method, call.params, revision)
        except InvalidHandlerResult as mistake:
            log.error("%s: %s", self._requests.name, mistake)
            return ElicitResult("cancel")

    # Requests to the server

    async def __call__(self, call: Call) -> Any:
        """Forward a Call to the server and return its undecoded result.

        Notifications of the call go to its Reply. Server-to-client requests of a session are answered by this client's
        handlers.
        """
        return await self._upstream(call)

    async def notify(self, method: str, params: Any = None) -> None:
        """Send a notification."""
        await self._upstream(Call(method=method, params=Raw(b"" if params is None else encode(params))))

    async def request(
        self, method: str, params: dict[str, Any], *, timeout: float | None = None, idempotent: bool | None = None
    ) -> Raw:
        """Send any request and return the undecoded result. Input requests of the server are answered on the way.

        `idempotent`: whether to send the request again when the connection breaks. Default: yes, except for tools/call.
        """
        return await self._requests.send(method, params, timeout, idempotent)

    # Tools

    async def call_tool(
        self,
        name: str,
        arguments: dict[str, Any] | None = None,
        *,
        timeout: float | None = None,
        progress_handler: ProgressHandler | None = None,
        raise_on_error: bool = True,
        result_type: type[T] | UnionType | None = None,
        idempotent: bool | None = None,
    ) -> CallToolResult[T]:
        """Call a tool and return its result.

        Raises `ToolError` if the tool reports an error, unless `raise_on_error` is False.

        `result_type`: the type of `result.data`. `idempotent`: whether the tool may be called again when the connection
        breaks during the call; default: no, or the tool's annotations with `trust_annotations`.
        """
        # 2025-11-25 lets a tool require task execution; a plain call of it would be rejected.
        if not self._upstream.modern and await self._task_support(name, timeout) == "required":
            task = await self.start_task(name, arguments, timeout=timeout)
            return await task.result(
                timeout=self._requests.effective_timeout(timeout),
                result_type=result_type,
                raise_on_error=raise_on_error,
            )
        params: dict[str, Any] = {"name": name, "arguments": arguments or {}}
        if idempotent is None:
            metadata = self._tool_metadata.entries.get(name) if self._trusts_annotations else None
            # Annotations are hints from the server (server/tools: "untrusted unless they come from trusted
            # servers").
            idempotent = metadata is not None and metadata.repeatable
        handler = progress_handler or self._progress
        progress = None if handler is None else CallProgress(next(self._tokens), handler)
        try:
            result = await self._requests.send_and_decode(
                "tools/call", params, timeout, idempotent=idempotent, progress=progress
            )
        except HeaderMismatch:
            if not self._upstream.modern:
                raise
            # The headers follow the tool's input schema, so a mismatch means that the schema has changed
            # (basic/transports).
            await self.list_tools(refresh=True)
            result = await self._requests.send_and_decode(
                "tools/call", params, timeout, idempotent=idempotent, progress=progress
            )
        # A tool of the tasks extension that must run as a task refuses callers that do not declare the
        # extension.
        except MissingClientCapability as missing:
            if EXTENSION not in missing.required_extensions:
                raise
            task = await self.start_task(name, arguments, timeout=timeout)
            return await task.result(
                timeout=self._requests.effective_timeout(timeout),
                result_type=result_type,
                raise_on_error=raise_on_error,
            )
        return await self._read(name, result, result_type, raise_on_error, timeout)

    async def _read(
        self, tool: str, received: ReceivedToolResult, returns: Any, raise_on_error: bool, timeout: float | None = None
    ) -> CallToolResult[Any]:
        """Convert a received tool result; raise `ToolError` if it is an error and `raise_on_error` is set."""
        promised = self._tool_metadata.entries.get(tool)
        if promised is None and received.structured_content is not UNSET and (self._validate or returns is None):
            promised = await self._tool_metadata.get(tool, timeout)
        read = partial(
            results.parse_tool_result, received, returns, name=f"{self._requests.name}: {tool}", validate=self._validate
        )
        try:
            result = read(promised)
        except OutputValidationError:
            # The server may have been upgraded since its tools were listed, so validate against a fresh schema.
            self._tool_metadata.clear()
            result = read(await self._tool_metadata.get(tool, timeout, refresh=True) or promised)
        if result.is_error and raise_on_error:
            raise results.tool_error(result)
        return result

    # Tasks

    async def start_task(
        self,
        name: str,
        arguments: dict[str, Any] | None = None,
        *,
        ttl: float | None = None,
        timeout: float | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> RemoteTask:
        """Start a tool call as a task and return a handle: `task.result()` waits for it, `task.id` finds it again
        later.

        If the server does not support tasks, or the tool does not run as one, this is a plain call and the returned
        task is already finished.

        `ttl`: the seconds that the server should retain the task; at 2026-07-28 the server decides. `meta`: further
        members of the `_meta` of the call.
        """
        params: dict[str, Any] = {"name": name, "arguments": arguments or {}}
        if meta:
            params["_meta"] = dict(meta)
        if self.is_stateless:
            params["_meta"] = {**(meta or {}), **self._declare_extension(EXTENSION)}
        elif await self._task_support(name, timeout) in ("optional", "required"):
            params["task"] = {} if ttl is None else {"ttl": int(ttl * 1000)}
        response = await self._requests.send("tools/call", params, timeout, None, ("complete", "task"))
        return create_remote_task(self, name, response)

    async def _task_support(self, name: str, timeout: float | None) -> str:
        """Return the task support of a tool: "forbidden", "optional" or "required".

        The server must declare tasks, then the tool (2025-11-25, basic/utilities/tasks, Tool-Level Negotiation).
        """
        if self.server_capabilities.tasks is None or self.protocol_version != V2025_11_25:
            return "forbidden"
        if not has_capability(self.server_capabilities, TASK_TOOL_CALLS):
            return "forbidden"
        promised = await self._tool_metadata.get(name, timeout)
        return "forbidden" if promised is None else promised.task_support

    def task(self, id: str, tool: str = "") -> RemoteTask:
        """Return a handle for a task that was started earlier, possibly by another process."""
        return RemoteTask(self, id, tool)

    def _declare_extension(self, extension: str) -> dict[str, Any]:
        """Return the `_meta` that declares an extension for one request, in addition to the client's capabilities."""
        return {CLIENT_CAPABILITIES_META_KEY: self._upstream.client_identity.with_extension(extension)}

    # Lists: `list_…` returns all entries, `iter_…` yields them page by page

    async def list_tools(self, *, refresh: bool = False) -> list[Tool]:
        """Return all tools. `refresh`: bypass the cache."""
        tools = await self._lists.fetch_all("tools/list", "tools", refresh=refresh)
        self._tool_metadata.set_all(tools)
        return tools

    async def list_resources(self) -> list[Resource]:
        """Return all resources."""
        return await self._lists.fetch_all("resources/list", "resources")

    async def list_resource_templates(self) -> list[ResourceTemplate]:
        """Return all resource templates."""
        return await self._lists.fetch_all("resources/templates/list", "resource_templates")

    async def list_prompts(self) -> list[Prompt]:
        """Return all prompts."""
        return await self._lists.fetch_all("prompts/list", "prompts")

    def iter_tools(self) -> AsyncIterator[Tool]:
        """Iterate over the tools, fetching pages as needed."""
        return self._lists.iter_items("tools/list", "tools")

    def iter_resources(self) -> AsyncIterator[Resource]:
        """Iterate over the resources, fetching pages as needed."""
        return self._lists.iter_items("resources/list", "resources")

    def iter_resource_templates(self) -> AsyncIterator[ResourceTemplate]:
        """Iterate over the resource templates, fetching pages as needed."""
        return self._lists.iter_items("resources/templates/list", "resource_templates")

    def iter_prompts(self) -> AsyncIterator[Prompt]:
        """Iterate over the prompts, fetching pages as needed."""
        return self._lists.iter_items("prompts/list", "prompts")

    # Other requests

    async def ping(self) -> None:
        """Check that the server answers. 2026-07-28 has no ping, so server/discover is sent instead."""
        await self._requests.send_and_decode("server/discover" if self._upstream.modern else "ping", {})

    async def read_resource(self, uri: str) -> list[ResourceContents]:
        """Return the contents of a resource."""
        response = await self._requests.send_cached("resources/read", {"uri": uri})
        return response.contents  # type: ignore[no-any-return]

    async def get_prompt(self, name: str, arguments: Mapping[str, Any] | None = None) -> GetPromptResult:
        """Return a prompt rendered with these arguments. Values that are not strings are sent as JSON."""
        texts = {key: _text_of(value) for key, value in (arguments or {}).items()}
        result = await self._requests.send_and_decode("prompts/get", {"name": name, "arguments": texts})
        return result  # type: ignore[no-any-return]

    async def complete(
        self, ref: dict[str, str], argument: str, value: str, context: dict[str, str] | None = None
    ) -> Completion:
        """Return completions for an argument of `{"type": "ref/prompt", "name": …}` or `{"type": "ref/resource", "uri":
        …}`.

        `context`: the arguments that are already set. Protocol versions before 2025-06-18 cannot carry it.
        """
        params: dict[str, Any] = {"ref": ref, "argument": {"name": argument, "value": value}}
        if context is not None and self.protocol_version >= V2025_06_18:
            params["context"] = {"arguments": context}
        result = await self._requests.send_and_decode("completion/complete", params)
        return result.completion  # type: ignore[no-any-return]

    async def set_log_level(self, level: LogLevel) -> None:
        """Set the lowest log level that the server sends: for the session, or at 2026-07-28 with every request."""
        self._log_level = level
        self._upstream.set_log_level(level)
        if not self._upstream.modern:
            await self._requests.send_and_decode("logging/setLevel", {"level": level})

    async def subscribe(self, uri: str) -> None:
        """Subscribe to updates of a resource. Raises `UsageError` at 2026-07-28, which has `listen` instead."""
        if self._upstream.modern:
            raise UsageError("2026-07-28 has no resources/subscribe: use `listen`")
        # Several listeners may subscribe to one resource; the server sees one subscription.
        self._subscribed[uri] = self._subscribed.get(uri, 0) + 1
        if self._subscribed[uri] > 1:
            return
        try:
            await self._requests.send_and_decode("resources/subscribe", {"uri": uri})
        except BaseException:
            self._release(uri)
            raise

    async def unsubscribe(self, uri: str) -> None:
        """Cancel a subscription of `subscribe`."""
        if self._upstream.modern:
            raise UsageError("2026-07-28 has no resources/unsubscribe: leave the `listen` block")
        if self._release(uri):
            await self._requests.send_and_decode("resources/unsubscribe", {"uri": uri})

    def _release(self, uri: str) -> bool:
        """Release one subscription and return whether it was the client's last one for this resource."""
        left = self._subscribed.pop(uri, 1) - 1
        if left > 0:
            self._subscribed[uri] = left
        return left <= 0

    async def _unsubscribe_quietly(self, uri: str) -> None:
        """Unsubscribe if the connection is open. The server is not restarted for it, and the wait is short."""
        if self._release(uri) and not self._upstream.modern and not self._upstream.transport.closed:
            try:
                await self._requests.send_and_decode("resources/unsubscribe", {"uri": uri}, CLOSE_TIMEOUT_SECONDS)
            except PorticoError as failure:
                log.debug("%s: %s", self._requests.name, failure)

    @validated_kwargs
    def listen(
        self,
        filter: SubscriptionFilter | None = None,
        *,
        tools: bool = False,
        prompts: bool = False,
        resources: bool = False,
        uris: Sequence[str] = (),
    ) -> ChangeListener:
        """Listen for changes: `async with client.listen(tools=True) as changes: async for change in changes: …`.

        `tools`, `prompts`, `resources`: listen for changes of these lists. `uris`: listen for updates of these
        resources. `filter`: a complete subscription filter instead of the other parameters.
        """
        filter = filter or SubscriptionFilter(tools, prompts, resources, list(uris) or None)
        return ChangeListener(
            self._upstream,
            filter,
            self._notifications.listeners,
            self._notifications.dispatch,
            self.subscribe,
            self._unsubscribe_quietly,
            self.timeout,
        )
