"""The servers that the console connects to: its own, and others."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from functools import partial
from itertools import count
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from portico import __version__
from portico.client.client import Client
from portico.client.input_handlers import ELICITATION_MODES
from portico.protocol import notifications
from portico.protocol.apps import APPS_CLIENT_CAPABILITY
from portico.protocol.errors import MethodNotFound, PorticoError, ToolError, UsageError
from portico.protocol.meta import Implementation, ServerCapabilities
from portico.protocol.notifications import LogMessageParams
from portico.protocol.versions import FIRST_MODERN_VERSION, SUPPORTED_PROTOCOL_VERSIONS, ProtocolVersion
from portico.rpc.call import Call, Handler, HandlerWrapper
from portico.server.policy.interfaces import CONSOLE_CLIENT_NAME
from portico.tokens import tokens_from_bytes
from portico.transports import importer
from portico_console.message_log import MessageLog
from portico_console.runs import ConsoleInputs, ConsoleRun, ConsoleRunResult, EventCallback, current_run, execute
from portico_console.server_requests import (
    ServerRequest,
    ServerRequestKind,
    ServerRequests,
    UserResponse,
    to_elicit_result,
    to_sampling_result,
)
from portico_console.traffic_tap import TappedConnectionPool

log = logging.getLogger("portico")

MAX_TARGETS = 32
MAX_SUBSCRIPTIONS = 200

TargetKind = Literal["self", "url", "command", "file", "module", "handler"]
ListKind = Literal["tools", "resources", "templates", "prompts"]
LISTS: dict[str, tuple[str, str]] = {
    "tools": ("tools/list", "tools"),
    "resources": ("resources/list", "resources"),
    "templates": ("resources/templates/list", "resourceTemplates"),
    "prompts": ("prompts/list", "prompts"),
}
_CHANGES = {
    notifications.TOOLS_LIST_CHANGED: ("tools",),
    notifications.PROMPTS_LIST_CHANGED: ("prompts",),
    notifications.RESOURCES_LIST_CHANGED: ("resources", "templates"),
}


class InProcessHandler(HandlerWrapper):
    """A server in this process whose lifespan is managed elsewhere.

    `address` is the client address of the calls; without one they come from the owner, as on stdio.
    """

    def __init__(self, server: Any, address: str | None = None) -> None:
        super().__init__(server)
        self._address = address

    def start(self, call: Call) -> Any:
        return super().start(call if self._address is None else replace(call, address=self._address))

    def lifespan(self) -> AbstractAsyncContextManager[Any]:
        return nullcontext()

    def with_address(self, address: str) -> InProcessHandler:
        return InProcessHandler(self.handler, address)


class TargetState(Struct, kw_only=True):
    """The state of a target, as sent to the page."""

    id: str
    title: str
    kind: TargetKind
    spec: str
    state: Literal["opening", "open", "failed"] = "opening"
    error: str | None = None
    protocol_version: ProtocolVersion | None = None
    wanted: ProtocolVersion | None = None
    server: Implementation | None = None
    capabilities: ServerCapabilities | None = None
    instructions: str | None = None
    versions: dict[str, int]
    updated: dict[str, int]
    services: dict[str, dict[str, str]]


class ConsoleTarget:
    """A server and the connection to it."""

    def __init__(
        self,
        state: TargetState,
        spec: Any,
        wire: MessageLog,
        questions: ServerRequests,
        changed: Callable[[], None],
        **options: Any,
    ) -> None:
        self.state = state
        self.address = spec
        # The URL of this server itself, for clients outside this process.
        self.url = ""
        self.client: Client | None = None
        self.runs: dict[str, ConsoleRun] = {}
        self._wire = wire
        self._questions = questions
        self._changed = changed
        # Client options: headers, auth, principal.
        self.options = options
        self._listening: asyncio.Task[None] | None = None
        self._watched: dict[str, None] = {}

    # Opening and closing

    async def open(self, revision: ProtocolVersion | None) -> None:
        """Connect, or reconnect with another protocol version. A failure is recorded in the state."""
        # Reconnecting is closing first: the protocol version of a connection cannot change.
        await self.close()
        self.state.wanted, self.state.state, self.state.error = revision, "opening", None
        self._changed()
        try:
            self.client = self._make_client(revision)
            await self.client.connect()
        except (PorticoError, OSError) as failure:
            self.client = None
            self.state.state, self.state.error = "failed", str(failure)
        else:
            self._on_connected(self.client)
        self._changed()

    def _make_client(self, revision: ProtocolVersion | None) -> Client:
        client = self._client(self.address, revision, self.options)
        # A separate pool for each target, so that the HTTP of its requests can be logged with the messages.
        client.upstream.pool_factory = partial(TappedConnectionPool, self._wire, self.state.id)
        return client

    def client_as(self, principal: Any, asker: str | None) -> Client:
        """Return another client of this server for a principal, which is authorized like a network client.

        Input requests of its calls are answered by `asker`.
        """
        assert isinstance(self.address, InProcessHandler)
        # With an address the call counts as a network call. Without one it would be local, and rules would grant it
        # the owner's rights.
        return self._client(self.address.with_address("console"), self.state.wanted, {"principal": principal}, asker)

    def _client(
        self, spec: Any, revision: ProtocolVersion | None, options: dict[str, Any], asker: str | None = None
    ) -> Client:
        sampling, eliciting = partial(self._sample, asker), partial(self._elicit, asker)
        client = Client(
            spec,
            protocol_version=revision,
            # The console shows errors, so it sends requests as entered, does not validate results, and
            # hardly retries.
            ignore_capabilities=True,
            client_name=CONSOLE_CLIENT_NAME,
            client_version=__version__,
            sampling_handler=sampling,
            elicitation_handler=eliciting,
            elicitation_modes=ELICITATION_MODES,
            sampling_tools=True,
            roots=[],
            log_handler=partial(self._on_log_message, asker),
            log_level="debug",
            message_handler=self._on_notification,
            timeout=None,
            max_retries=1,
            validate_results=False,
            on_message_bytes=self._log_message,
            extensions=APPS_CLIENT_CAPABILITY,
            **options,
        )
        client.input_handlers = ConsoleInputs(
            partial(self._roots, asker), sampling, eliciting, elicitation_modes=ELICITATION_MODES, sampling_tools=True
        )
        return client

    def _on_connected(self, client: Client) -> None:
        state = self.state
        state.state, state.protocol_version = "open", client.protocol_version
        state.server, state.capabilities = client.server_info, client.server_capabilities
        state.instructions = client.instructions
        if state.server is not None and state.kind != "self":
            state.title = state.server.title or state.server.name
        self._listen()

    async def close(self) -> None:
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.cancel()
            with suppress(asyncio.CancelledError):
                await listening
        client, self.client = self.client, None
        if client is not None:
            await client.close()

    def require_open(self) -> Client:
        """Return the open client. Raises ToolError if the target is not connected."""
        if self.client is None:
            why = self.state.error or "it is not open"
            raise ToolError(f"{self.state.title} is not available: {why}")
        return self.client

    # Notifications

    def _log_message(self, direction: str, data: bytes) -> None:
        self._wire.add("target", self.state.id, "sent" if direction == "sent" else "received", data)

    def _listen(self) -> None:
        """Subscribe to changes, which 2026-07-28 sends only to subscribers."""
        if self._listening is not None:
            self._listening.cancel()
        self._listening = asyncio.get_running_loop().create_task(self._listen_on())

    async def _listen_on(self) -> None:
        client, able = self.client, self.state.capabilities
        # Handshake versions send list changes without a subscription.
        if client is None or (client.protocol_version < FIRST_MODERN_VERSION and not self._watched):
            return
        wants = {kind: _lists_changes(getattr(able, kind, None)) for kind in ("tools", "prompts", "resources")}
        if not any(wants.values()) and not self._watched:
            return
        try:
            async with client.listen(**wants, uris=list(self._watched)) as changes:  # type: ignore[arg-type]
                async for _ in changes:
                    # `_on_notification` handles it, as for older protocol versions.
                    pass
        except PorticoError as failure:
            log.debug("%s: cannot subscribe to changes: %s", self.state.title, failure)

    def _on_notification(self, method: str, params: Raw) -> None:
        for kind in _CHANGES.get(method, ()):
            self.state.versions[kind] += 1
        if method == notifications.RESOURCE_UPDATED:
            with suppress(msgspec.DecodeError):
                uri = msgspec.json.decode(params, type=_ResourceUpdated).uri
                # A server may send updates for other resources; counting them would let it grow the state without
                # limit.
                if uri in self._watched:
                    self.state.updated[uri] = self.state.updated.get(uri, 0) + 1
        elif method not in _CHANGES:
            return
        self._changed()

    def _runs_of(self, asker: str | None) -> list[ConsoleRun]:
        return [run for run in self.runs.values() if run.principal == asker]

    def _on_log_message(self, asker: str | None, message: LogMessageParams) -> None:
        """Forward a log message without a run to all runs of its caller."""
        entry = {"level": message.level, "logger": message.logger, "data": message.data}
        for run in self._runs_of(asker):
            run.emit("log", {"run": run.id, **entry})

    async def set_subscription(self, uri: str, on: bool) -> list[str]:
        """Subscribe to changes of a resource, or unsubscribe, and return all subscribed URIs."""
        self.require_open()
        if on and len(self._watched) >= MAX_SUBSCRIPTIONS:
            raise ToolError(f"at most {MAX_SUBSCRIPTIONS} resources can be watched")
        if on:
            self._watched[uri] = None
        else:
            self._watched.pop(uri, None)
        self._listen()
        return list(self._watched)

    # Server-to-client requests

    async def _request_input(self, asker: str | None, kind: ServerRequestKind, params: Any) -> UserResponse:
        own = self._runs_of(asker)
        # Handshake versions do not say to which call a request belongs. With a single run it is clear; otherwise the
        # request is shown without a run.
        run = current_run.get() or (own[0] if len(own) == 1 else None)

        def on_request(question: ServerRequest) -> None:
            if run is not None:
                run.emit("question", question)

        run_id, name = (None, "") if run is None else (run.id, run.name)
        return await self._questions.wait_for_response(
            self.state.id, run_id, kind, params, on_request, asker, name=name
        )

    async def _elicit(self, asker: str | None, params: Any) -> Any:
        return to_elicit_result(await self._request_input(asker, "elicitation", params))

    async def _sample(self, asker: str | None, params: Any) -> Any:
        return to_sampling_result(await self._request_input(asker, "sampling", params))

    async def _roots(self, asker: str | None) -> Any:
        answered = await self._request_input(asker, "roots", {})
        return answered.content if answered.action == "accept" else {}

    # Requests

    async def run(
        self,
        id: str,
        emit: EventCallback,
        progress: Callable[[Any], None],
        method: str,
        params: dict[str, Any],
        timeout: float | None = None,
        client: Client | None = None,
        principal: str | None = None,
        as_task: bool = False,
    ) -> ConsoleRunResult:
        """Run a request and return its result. `client`: used instead of the shared client, for another principal."""
        client = client or self.require_open()
        run = self.runs[id] = ConsoleRun(
            id, emit, progress, principal, str(params.get("name") or params.get("uri") or "")
        )
        before = self._wire.last
        try:
            outcome = await execute(client, run, method, params, timeout, as_task)
            # The messages since the start, so that the page can link a run to its traffic.
            messages = self._wire.find(before, peer=self.state.id)
            outcome.trips = [item.trip for item in messages if item.kind == "request" and item.method == method]
            return outcome
        finally:
            del self.runs[id]

    def tool_origins(self) -> dict[str, tuple[str, str]]:
        """Return the owner of each tool if this is a gateway in this process."""
        owners = (
            getattr(self.address.handler, "tool_origins", None) if isinstance(self.address, InProcessHandler) else None
        )
        return {} if owners is None else owners()

    async def list_entries(self, kind: ListKind) -> list[dict[str, Any]]:
        """Return all entries of a list in wire format."""
        return await list_all(self.require_open(), kind)


async def list_all(client: Client, kind: ListKind) -> list[dict[str, Any]]:
    """Return all entries of a list in wire format, or none if the server does not implement it."""
    ask = {
        "tools": partial(client.list_tools, refresh=True),
        "resources": client.list_resources,
        "templates": client.list_resource_templates,
        "prompts": client.list_prompts,
    }[kind]
    try:
        result: Sequence[Any] = await ask()  # type: ignore[operator]
    except MethodNotFound:
        return []
    except PorticoError as failure:
        raise ToolError(f"cannot list {kind}: {failure}") from None
    return [msgspec.to_builtins(item) for item in result]


class _ResourceUpdated(Struct):
    uri: str


def _lists_changes(able: Any) -> bool:
    capabilities = msgspec.to_builtins(able) if able is not None else {}
    return isinstance(capabilities, dict) and capabilities.get("listChanged") is True


class TargetRegistry:
    """All targets by id."""

    def __init__(self, wire: MessageLog, questions: ServerRequests) -> None:
        self.listeners: list[Callable[[], None]] = []
        self.message_log, self.server_requests = wire, questions
        self._targets: dict[str, ConsoleTarget] = {}
        self._ids = count(1)

    def states(self) -> list[TargetState]:
        return [target.state for target in self._targets.values()]

    def __iter__(self) -> Any:
        return iter(self._targets.values())

    def get(self, id: str) -> ConsoleTarget:
        """Return a target. Raises ToolError for an unknown id."""
        target = self._targets.get(id)
        if target is None:
            target_names = ", ".join(self._targets) or "none"
            raise ToolError(f"unknown target {id[:40]!r} (expected one of {target_names})")
        return target

    def notify(self) -> None:
        """Notify the listeners of a change."""
        for listener in self.listeners:
            listener()

    def add(
        self,
        source: Any,
        spec: str,
        kind: TargetKind,
        *,
        id: str | None = None,
        title: str | None = None,
        **options: Any,
    ) -> ConsoleTarget:
        """Add a target without opening it."""
        if len(self._targets) >= MAX_TARGETS:
            raise ToolError(f"at most {MAX_TARGETS} targets can be open; close one first")
        state = TargetState(
            id=id or f"t{next(self._ids)}",
            title=title or spec[:80],
            kind=kind,
            spec=spec,
            versions=dict.fromkeys(LISTS, 0),
            updated={},
            services={},
        )
        target = ConsoleTarget(state, source, self.message_log, self.server_requests, self.notify, **options)
        self._targets[state.id] = target
        return target

    async def close(self, id: str) -> None:
        target = self.get(id)
        del self._targets[id]
        await target.close()
        self.notify()

    async def close_all(self) -> None:
        for target in list(self._targets.values()):
            await target.close()


def detect_target_kind(spec: str) -> TargetKind:
    """Return the kind of target that a text names, as a Client parses it."""
    if re.match(r"https?://", spec.strip(), re.IGNORECASE):
        return "url"
    if not importer.is_command_line(spec.strip()) and importer.is_import_string(spec.strip()):
        return "file" if ".py" in spec else "module"
    return "handler" if spec.strip().endswith((".json", ".toml")) or ".json:" in spec else "command"


def validate_protocol_version(revision: str | None) -> ProtocolVersion | None:
    """Return the protocol version. Raises ToolError if it is not supported."""
    if revision is not None and revision not in SUPPORTED_PROTOCOL_VERSIONS:
        raise ToolError(
            f"unknown protocol version {revision[:40]!r} (expected one of {', '.join(SUPPORTED_PROTOCOL_VERSIONS)})"
        )
    return revision


def estimate_tool_tokens(tools: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Estimate the tokens that a model reads for each tool."""
    return {str(tool.get("name")): tokens_from_bytes(len(msgspec.json.encode(tool))) for tool in tools}


def as_handler(server: Any) -> Handler:
    """Return the server as an in-process Handler."""
    if not callable(server):
        raise UsageError("the console requires a Server or another Handler")
    return InProcessHandler(server)
