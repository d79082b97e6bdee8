"""The Client: talks to a server, wherever it is and whatever revision it speaks."""

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

from portico._lazy import LazyModule
from portico._options import explained
from portico.client import results
from portico.client.cache import Cache
from portico.client.input_handlers import (
    FORMS,
    ElicitationHandler,
    ElicitationMode,
    Inputs,
    Roots,
    SamplingHandler,
    UnfitAnswer,
)
from portico.client.notifications import Hearing, LogHandler, MessageHandler
from portico.client.pagination import Lists
from portico.client.requests import CallProgress, ProgressHandler, Requests
from portico.client.results import BrokenPromise, CallToolResult, T
from portico.client.subscriptions import ChangeListener
from portico.client.tasks import RemoteTask, handle
from portico.client.tool_metadata import Promises
from portico.protocol import notifications
from portico.protocol.capabilities import TASK_CALLS, declares
from portico.protocol.client_features import ElicitResult
from portico.protocol.completion import Completion
from portico.protocol.content import Contents, EmptyResult
from portico.protocol.errors import Error, HeaderMismatch, MissingCapability, ProtocolError, UsageError
from portico.protocol.jsonrpc import encode
from portico.protocol.meta import CLIENT_CAPABILITIES, Implementation, LogLevel, ServerCapabilities
from portico.protocol.prompts import GetPromptResult, Prompt
from portico.protocol.resources import Resource, ResourceTemplate
from portico.protocol.subscriptions import Filter
from portico.protocol.tasks import EXTENSION
from portico.protocol.tools import ReceivedToolResult, Tool
from portico.protocol.versions import REVISIONS, V2025_06_18, V2025_11_25, Revision
from portico.rpc.call import Call, Handler
from portico.transports.base import Trace
from portico.transports.handshake import ClientIdentity
from portico.transports.http_client.base import RequestSender
from portico.transports.http_client.pool import Pool
from portico.transports.targets import Target, configuration_kind, target_of
from portico.transports.upstream import RETRIES, TIMEOUT_SECONDS, Upstream

if TYPE_CHECKING:
    from portico import plugins
    from portico.client import auth as authorization
    from portico.client import multi_server
    from portico.client.auth import Auth
    from portico.client.multi_server import ServerGroup
    from portico.transports.http_client.oauth import Visitor
else:
    authorization = LazyModule("portico.client.auth")
    multi_server = LazyModule("portico.client.multi_server")
    plugins = LazyModule("portico.plugins")

GOODBYE_SECONDS = 2.0

log = logging.getLogger("portico")


def _sender(auth: Auth, target: Target, browser: Visitor | None) -> RequestSender | None:
    # All that OAuth takes is imported by those who use it.
    if auth is None:
        return None
    return authorization.sender_for(auth, target, browser)


def _text_of(value: Any) -> str:
    """Return a prompt argument as the protocol has it: a text (server/prompts, Getting a Prompt)."""
    return value if isinstance(value, str) else encode(value).decode()


class Client:
    """A client of one server: `async with Client(target) as client: …`.

    It opens a connection, finds out which revision the server speaks, and makes the connection again when it breaks.
    It is a Handler too: `server.mount(client)` makes the server that it talks to a part of another one.

    * **target** – what to talk to: a URL, a command (a list of words, or one text), a `module:object` or
      `file.py:object`, an mcp.json (`file.json:name`, or all of its servers) or an entry of one, a gateway file
      (`gateway.toml`), a Server or any Handler.
    * **revision** – the protocol revision to speak, to see a server as an older client does. Otherwise it is the
      newest one that both know.
    * **undeclared** – whether to ask the server also for what it has not declared that it has. Otherwise that is a
      MethodNotFound, and nothing is sent.
    * **name**, **version** – what the server is told about this client.
    * **sampling_handler** – answers a server that wants text from a model: gets the params, returns a text or a
      `CreateMessageResult`. May be `async`, as all handlers may.
    * **elicitation_handler** – answers a server that asks the user: gets the params, returns the fields of the form
      (accepted), None (declined) or an `ElicitResult`.
    * **elicitation_modes** – what the elicitation handler can show: a "form", the page of a "url", or both.
    * **sampling_tools** – whether the sampling handler can deal with tools.
    * **roots** – the folders that the server may work in, as paths, `file://` URIs or Roots.
    * **log_handler** – gets each log message of the server.
    * **log_level** – the lowest level that the server should send. The default with a `log_handler` is "debug" at
      2026-07-28, where a server sends nothing unless it is asked; older servers have a default of their own.
    * **progress_handler** – gets `(progress, total, message)` of every call that has no `on_progress` of its own.
    * **message_handler** – gets every notification of the server: its method, and its params undecoded.
    * **timeout** – how many seconds a request may take, retries included; None for no limit.
    * **retries** – how often a request that was not heard is sent again.
    * **trust_annotations** – whether a tool that says of itself that it is read-only or idempotent is called again when
      the connection breaks in the middle of its call. Every server can say so: this is for those that you trust.
    * **validate** – whether structured results are checked against the tool's output schema.
    * **extensions** – the protocol extensions to declare, with their settings.
    * **principal** – who the calls are from, for a Server or Handler in this process.
    * **env**, **cwd** – the environment variables and the working directory of a command.
    * **headers** – HTTP headers of every request to a URL.
    * **auth** – a bearer token, "oauth" to log in with a browser, or a Grant or OAuth of `portico.auth`.
    * **browser** – shows the login page, and returns the URL that it led to. The default opens the user's browser.
    * **tls** – the SSLContext for `https` URLs.
    * **trace** – is shown every message: "sent" or "received", and its bytes.
    """

    @explained
    def __init__(
        self,
        target: Handler | Sequence[str] | str | Mapping[str, Any],
        *,
        revision: Revision | None = None,
        undeclared: bool = False,
        name: str = "portico",
        version: str = "0",
        sampling_handler: SamplingHandler | None = None,
        elicitation_handler: ElicitationHandler | None = None,
        elicitation_modes: Collection[ElicitationMode] = FORMS,
        sampling_tools: bool = False,
        roots: Roots | None = None,
        log_handler: LogHandler | None = None,
        log_level: LogLevel | None = None,
        progress_handler: ProgressHandler | None = None,
        message_handler: MessageHandler | None = None,
        timeout: float | None = TIMEOUT_SECONDS,
        retries: int = RETRIES,
        trust_annotations: bool = False,
        validate: bool = True,
        extensions: dict[str, Any] | None = None,
        principal: Any = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        headers: Mapping[str, str] | None = None,
        auth: Auth = None,
        browser: Visitor | None = None,
        tls: ssl.SSLContext | None = None,
        trace: Trace | None = None,
    ) -> None:
        if revision is not None and revision not in REVISIONS:
            raise UsageError(f"there is no revision {revision!r}; there are {', '.join(REVISIONS)}")
        self.timeout = timeout
        self.inputs = Inputs(
            sampling_handler, elicitation_handler, roots, modes=elicitation_modes, sampling_tools=sampling_tools
        )
        able = replace(self.inputs.capabilities, extensions=extensions or None)
        # Handshake servers ignore the level in it: they are sent `log_level` by logging/setLevel.
        identity = ClientIdentity(
            Implementation(name, version), able, log_level or (None if log_handler is None else "debug")
        )
        wants_logs = log_handler is not None or message_handler is not None
        self._servers = self._server_group(target, identity, wants_logs, tls)
        # The tools and prompts whose servers are waited for when the client opens; None: all of a configuration.
        self.awaited: Collection[str] | None = None
        place = target_of(target if self._servers is None else self._servers, env=env, cwd=cwd, headers=headers)
        self._validate = validate
        self._trusts_annotations = trust_annotations
        self._upstream = Upstream(
            place,
            self._answer,
            identity,
            revision=revision,
            undeclared=undeclared,
            timeout=timeout,
            retries=retries,
            auth=_sender(auth, place, browser),
            pool=partial(Pool, tls),
            principal=principal,
            trace=trace,
            on_reopened=self._on_reopened,
            on_gap=self._on_gap,
        )
        self._progress = progress_handler
        self._log_level = log_level
        self._tokens = count(1)
        self._subscribed: dict[str, int] = {}
        self._cache = Cache(time.monotonic)
        self._hearing = Hearing(
            self._cache, log_handler, message_handler, lambda: self._promises.forget(), lambda: self._upstream.modern
        )
        # What the server says on the way to a result is heard like all else that it says.
        self._requests = Requests(self._upstream, self.inputs, self._cache, self._hearing.hear, timeout)
        self._lists = Lists(self._upstream, self._requests, self._cache)
        self._promises = Promises(self._lists, self._requests)

    def _server_group(
        self, target: Any, identity: ClientIdentity, wants_logs: bool, tls: ssl.SSLContext | None
    ) -> ServerGroup | None:
        """Return the servers of a configuration of several, or the gateway of a gateway file; None for one server."""
        kind = configuration_kind(target)
        if kind == "gateway":
            gateway = plugins.require_plugin("gateway", "a gateway file as target")
            return cast("ServerGroup", gateway.load_gateway_for_client(target.strip()))
        if kind is None:
            return None
        callbacks = multi_server.ClientCallbacks(
            identity,
            self._answer_question,
            lambda params: self._hearing.hear(notifications.MESSAGE, params),
            wants_logs,
        )
        return multi_server.MultiServer.load(target, callbacks, timeout=self.timeout, pool=partial(Pool, tls))

    # Who is there

    @property
    def revision(self) -> Revision:
        return self._upstream.greeting.revision

    @property
    def server_info(self) -> Implementation | None:
        return self._upstream.greeting.server

    @property
    def server_capabilities(self) -> ServerCapabilities:
        return self._upstream.greeting.capabilities

    @property
    def instructions(self) -> str | None:
        return self._upstream.greeting.instructions

    @property
    def is_modern(self) -> bool:
        """Whether the server speaks 2026-07-28."""
        return self._upstream.modern

    @property
    def upstream(self) -> Upstream:
        """The connection below it."""
        return self._upstream

    @property
    def missing_servers(self) -> dict[str, str]:
        """Why servers of a configuration of several (`Client("mcp.json")`) have not answered, by their names."""
        return {} if self._servers is None else self._servers.missing_upstreams(self.awaited)

    # Opening and closing, from any task

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """The time in which a server has it mounted. A client that is open already stays so."""
        if self._upstream.is_open:
            yield
            return
        async with self:
            yield

    async def open(self) -> None:
        if self._upstream.is_open:
            raise UsageError("the client is open already")
        try:
            async with self._connected_servers():
                await self._upstream.open()
            await self._tell_log_level()
        except BaseException:
            await self.close()
            raise

    @asynccontextmanager
    async def _connected_servers(self) -> AsyncIterator[None]:
        """Wait for the servers of a configuration within the timeout, and log a warning for each that has not answered:
        a list is asked for once by most programs, so it must not depend on which server starts first."""
        if self._servers is None:
            yield
            return
        async with self._servers.lifespan():
            await self._servers.connect_upstreams(self.timeout, self.awaited)
            for alias, reason in self.missing_servers.items():
                log.warning("%s is missing: %s", alias, reason)
            yield

    async def close(self) -> None:
        for listener in list(self._hearing.listeners):
            await listener.close(polite=False)
        await self._upstream.close()
        self._hearing.close()

    async def _on_reopened(self) -> None:
        """The server is a new one, and does not know what we told the old one."""
        self._cache.clear()
        self._promises.forget()
        if not self._upstream.modern:
            await self._tell_log_level()
            for uri in list(self._subscribed):
                try:
                    await self._requests.result("resources/subscribe", {"uri": uri})
                except ProtocolError as failure:
                    log.warning("%s: %s is not subscribed to again: %s", self._requests.name, uri[:200], failure)
        for listener in list(self._hearing.listeners):
            listener.reopened()

    def _on_gap(self) -> None:
        """Notifications may have been missed, or will be until the next request mends the connection."""
        self._promises.forget()
        for listener in list(self._hearing.listeners):
            listener.lost()

    async def _tell_log_level(self) -> None:
        """The level that was wished for at the start. A server that has no logs is not asked for any."""
        level = self._log_level
        if level is not None and self.server_capabilities.logging is not None:
            await self.set_log_level(level)

    # What the server says to us

    def _answer(self, call: Call) -> Any:
        if call.id is None:
            self._hearing.hear(call.method, call.params)
            return None
        return EmptyResult() if call.method == "ping" else self._answer_question(call, self.revision)

    async def _answer_question(self, call: Call, revision: Revision) -> Any:
        """A question of a session. It has no caller here who could be told of the handler's mistake, so the log is."""
        try:
            return await self.inputs.answer(call.method, call.params, revision)
        except UnfitAnswer as mistake:
            log.error("%s: %s", self._requests.name, mistake)
            return ElicitResult("cancel")

    # What we say to it

    async def __call__(self, call: Call) -> Any:
        """Pass a Call on to the server, and give its result as it came.

        What belongs to the Call goes to its Reply; questions of a session are answered by the handlers of this client.
        """
        return await self._upstream(call)

    async def notify(self, method: str, params: Any = None) -> None:
        await self._upstream(Call(method=method, params=Raw(b"" if params is None else encode(params))))

    async def request(
        self, method: str, params: dict[str, Any], *, timeout: float | None = None, repeatable: bool | None = None
    ) -> Raw:
        """Any request, answered with the undecoded result. Questions of the server are answered on the way.

        `repeatable`: it is sent again when the connection breaks. The default is yes, except for a tool's call.
        """
        return await self._requests.rounds(method, params, timeout, repeatable)

    # Tools

    async def call_tool(
        self,
        name: str,
        arguments: dict[str, Any] | None = None,
        *,
        timeout: float | None = None,
        on_progress: ProgressHandler | None = None,
        raise_on_error: bool = True,
        returns: type[T] | UnionType | None = None,
        repeatable: bool | None = None,
    ) -> CallToolResult[T]:
        """Call a tool. What it refuses is raised as ToolError, unless `raise_on_error` is off.

        `returns`: the type that `result.data` is to have. `repeatable`: it may be called again when the connection
        breaks in the middle; the default is no, or with `trust_annotations` what the tool says of itself.
        """
        if not self._upstream.modern and await self._task_support(name, timeout) == "required":
            task = await self.start_task(name, arguments, timeout=timeout)
            return await task.result(
                timeout=self._requests.limit(timeout), returns=returns, raise_on_error=raise_on_error
            )
        params: dict[str, Any] = {"name": name, "arguments": arguments or {}}
        if repeatable is None:
            known = self._promises.known.get(name) if self._trusts_annotations else None
            repeatable = known is not None and known.repeatable
        handler = on_progress or self._progress
        progress = None if handler is None else CallProgress(next(self._tokens), handler)
        try:
            said = await self._requests.result("tools/call", params, timeout, repeatable=repeatable, progress=progress)
        except HeaderMismatch:
            if not self._upstream.modern:
                raise
            # The headers follow the tool's schema, so the schema must have changed (basic/transports).
            await self.list_tools(fresh=True)
            said = await self._requests.result("tools/call", params, timeout, repeatable=repeatable, progress=progress)
        except MissingCapability as missing:
            if EXTENSION not in missing.extensions:
                raise
            task = await self.start_task(name, arguments, timeout=timeout)
            return await task.result(
                timeout=self._requests.limit(timeout), returns=returns, raise_on_error=raise_on_error
            )
        return await self._read(name, said, returns, raise_on_error, timeout)

    async def _read(
        self, tool: str, said: ReceivedToolResult, returns: Any, raise_on_error: bool, timeout: float | None = None
    ) -> CallToolResult[Any]:
        """A tool's result, as its caller wants it."""
        promised = self._promises.known.get(tool)
        if promised is None and said.structured_content is not UNSET and (self._validate or returns is None):
            promised = await self._promises.of(tool, timeout)
        read = partial(results.read, said, returns, name=f"{self._requests.name}: {tool}", validate=self._validate)
        try:
            result = read(promised)
        except BrokenPromise:
            # The server may have been upgraded since its tools were listed.
            self._promises.forget()
            result = read(await self._promises.of(tool, timeout, fresh=True) or promised)
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
        """Call a tool that takes long, as a task: `task.result()` waits for it, `task.id` finds it again later.

        `ttl`: for how many seconds it should be kept; 2026-07-28 leaves that to the server. Where the server has no
        tasks, or the tool does not run as one, it is a plain call, and the task is over when it is returned. `meta`:
        what else the `_meta` of the call says.
        """
        params: dict[str, Any] = {"name": name, "arguments": arguments or {}}
        if meta:
            params["_meta"] = dict(meta)
        if self.is_modern:
            params["_meta"] = {**(meta or {}), **self._declaring(EXTENSION)}
        elif await self._task_support(name, timeout) in ("optional", "required"):
            params["task"] = {} if ttl is None else {"ttl": int(ttl * 1000)}
        said = await self._requests.rounds("tools/call", params, timeout, None, ("complete", "task"))
        return handle(self, name, said)

    async def _task_support(self, name: str, timeout: float | None) -> str:
        """2025-11-25, basic/utilities/tasks, Tool-Level Negotiation: the server has to have them, and then the tool."""
        if self.server_capabilities.tasks is None or self.revision != V2025_11_25:
            return "forbidden"
        if not declares(self.server_capabilities, TASK_CALLS):
            return "forbidden"
        promised = await self._promises.of(name, timeout)
        return "forbidden" if promised is None else promised.task_support

    def task(self, id: str, tool: str = "") -> RemoteTask:
        """A task that was started before, perhaps by another process."""
        return RemoteTask(self, id, tool)

    def _declaring(self, extension: str) -> dict[str, Any]:
        """The `_meta` of a request that declares an extension besides what is always declared."""
        return {CLIENT_CAPABILITIES: self._upstream.identity.able_with(extension)}

    # Lists: `list_…` gives all, `iter_…` gives them as they come

    async def list_tools(self, *, fresh: bool = False) -> list[Tool]:
        """All tools. `fresh`: not from what was kept."""
        tools = await self._lists.all("tools/list", "tools", fresh=fresh)
        self._promises.learn(tools)
        return tools

    async def list_resources(self) -> list[Resource]:
        return await self._lists.all("resources/list", "resources")

    async def list_resource_templates(self) -> list[ResourceTemplate]:
        return await self._lists.all("resources/templates/list", "resource_templates")

    async def list_prompts(self) -> list[Prompt]:
        return await self._lists.all("prompts/list", "prompts")

    def iter_tools(self) -> AsyncIterator[Tool]:
        return self._lists.each("tools/list", "tools")

    def iter_resources(self) -> AsyncIterator[Resource]:
        return self._lists.each("resources/list", "resources")

    def iter_resource_templates(self) -> AsyncIterator[ResourceTemplate]:
        return self._lists.each("resources/templates/list", "resource_templates")

    def iter_prompts(self) -> AsyncIterator[Prompt]:
        return self._lists.each("prompts/list", "prompts")

    # The rest, one method for each thing

    async def ping(self) -> None:
        """Whether the server answers. 2026-07-28 has no ping, so there it is asked who it is."""
        await self._requests.result("server/discover" if self._upstream.modern else "ping", {})

    async def read_resource(self, uri: str) -> list[Contents]:
        said = await self._requests.cached("resources/read", {"uri": uri})
        return said.contents  # type: ignore[no-any-return]

    async def get_prompt(self, name: str, arguments: Mapping[str, Any] | None = None) -> GetPromptResult:
        """Return a prompt with its arguments filled in. Values that are not texts are sent as their JSON."""
        texts = {key: _text_of(value) for key, value in (arguments or {}).items()}
        said = await self._requests.result("prompts/get", {"name": name, "arguments": texts})
        return said  # type: ignore[no-any-return]

    async def complete(
        self, ref: dict[str, str], argument: str, value: str, context: dict[str, str] | None = None
    ) -> Completion:
        """Values for an argument of `{"type": "ref/prompt", "name": …}` or `{"type": "ref/resource", "uri": …}`.

        `context`: the arguments that are known already. Before 2025-06-18 there is no way to say it.
        """
        params: dict[str, Any] = {"ref": ref, "argument": {"name": argument, "value": value}}
        if context is not None and self.revision >= V2025_06_18:
            params["context"] = {"arguments": context}
        said = await self._requests.result("completion/complete", params)
        return said.completion  # type: ignore[no-any-return]

    async def set_log_level(self, level: LogLevel) -> None:
        """How much the server should say: for the session, or with each request from now on."""
        self._log_level = level
        self._upstream.set_log_level(level)
        if not self._upstream.modern:
            await self._requests.result("logging/setLevel", {"level": level})

    async def subscribe(self, uri: str) -> None:
        if self._upstream.modern:
            raise UsageError("2026-07-28 has no resources/subscribe: use `listen`")
        self._subscribed[uri] = self._subscribed.get(uri, 0) + 1
        if self._subscribed[uri] > 1:
            return
        try:
            await self._requests.result("resources/subscribe", {"uri": uri})
        except BaseException:
            self._release(uri)
            raise

    async def unsubscribe(self, uri: str) -> None:
        if self._upstream.modern:
            raise UsageError("2026-07-28 has no resources/unsubscribe: leave `listen`")
        if self._release(uri):
            await self._requests.result("resources/unsubscribe", {"uri": uri})

    def _release(self, uri: str) -> bool:
        """Whether that was the last subscription of this client."""
        left = self._subscribed.pop(uri, 1) - 1
        if left > 0:
            self._subscribed[uri] = left
        return left <= 0

    async def _unsubscribe_quietly(self, uri: str) -> None:
        """Unsubscribe if the server is there to be told; it is not started again for it, nor waited for long."""
        if self._release(uri) and not self._upstream.modern and not self._upstream.link.closed:
            try:
                await self._requests.result("resources/unsubscribe", {"uri": uri}, GOODBYE_SECONDS)
            except Error as failure:
                log.debug("%s: %s", self._requests.name, failure)

    @explained
    def listen(
        self,
        wanted: Filter | None = None,
        *,
        tools: bool = False,
        prompts: bool = False,
        resources: bool = False,
        uris: Sequence[str] = (),
    ) -> ChangeListener:
        """Hear of changes: `async with client.listen(tools=True) as changes: async for change in changes: …`."""
        wanted = wanted or Filter(tools, prompts, resources, list(uris) or None)
        return ChangeListener(
            self._upstream,
            wanted,
            self._hearing.listeners,
            self._hearing.hear,
            self.subscribe,
            self._unsubscribe_quietly,
            self.timeout,
        )
