"""The Console: a Server for the page, with the services it needs."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

from portico import __version__
from portico.cli.reloader import Reloader
from portico.plugins import find_plugin
from portico.protocol.versions import SUPPORTED_PROTOCOL_VERSIONS, ProtocolVersion
from portico.server.components.results import ToolResult
from portico.server.context.context import Context
from portico.server.server import Server
from portico.transports.http_server.application import HttpApplication
from portico_console.activity import ActivityService
from portico_console.live_updates import ChangeTopic, LiveUpdateService, PolledTopic
from portico_console.message_log import MessageLog
from portico_console.message_tools import MessageService, OAuthDebugService
from portico_console.saved_calls import SavedCallsService
from portico_console.server_requests import ServerRequests
from portico_console.session_auth import visitor_of
from portico_console.target_tools import TargetConnectionService, TargetService, TokenLookup
from portico_console.targets import ConsoleTarget, TargetRegistry, as_handler, detect_target_kind
from portico_console.task_tools import ProtocolTasksService
from portico_console.tool_responses import structured_response
from portico_console.traffic_tap import ExchangeTap, UpstreamTap

ConsoleMode = Literal["serve", "console", "dev"]

_INSTRUCTIONS = (
    "The console of a Portico server, used by its web page. list_targets lists the servers that can be inspected; "
    "list_items,\ncall_tool, read_resource and get_prompt work on those. watch streams events until the page "
    "disconnects.\n"
)


class Console:
    """The inspected servers and the Server that exposes them to the page: `Client(Console(server).server)`.

    * **subject** – the Server that the console belongs to, if any.
    * **mode** – the command that started it, for the page.
    * **can_open_targets** – whether other servers may be opened, which runs commands.
    * **token_for** – returns the token for a URL.
    * **saved_calls_file** – the file of saved calls.
    * **reloader** – loads the subject from its file and reports the result.
    """

    def __init__(
        self,
        subject: Any = None,
        *,
        mode: ConsoleMode = "serve",
        can_open_targets: bool = False,
        token_for: TokenLookup | None = None,
        reloader: Reloader | None = None,
        saved_calls_file: Path | None = None,
    ) -> None:
        self.inspected_server = subject
        # The upstreams view of a gateway, from portico-gateway.
        self._upstreams: Any = None
        # The targets of the command line, which are opened with the console.
        self.initial_targets: list[ConsoleTarget] = []
        self.mode: ConsoleMode = mode
        self.message_log = MessageLog()
        self.server_requests = ServerRequests()
        self.targets = TargetRegistry(self.message_log, self.server_requests)
        self.features: list[str] = ["wire"]
        self.server = Server(
            "portico-console", version=__version__, title="Portico console", instructions=_INSTRUCTIONS
        )
        self.server.add(TargetService(self.targets, self.server_requests))
        if find_plugin("services") is None:
            self.server.remove("lint")
        self._wire_service = MessageService(self.message_log)
        self.server.add(self._wire_service)
        self.live_updates = LiveUpdateService(self)
        self.server.add(self.live_updates)
        self.server.tool(annotations={"readOnlyHint": True})(self.about)
        if can_open_targets:
            self.server.add(TargetConnectionService(self.targets, token_for))
            self.features.append("open")
            self.add_feature("oauth", OAuthDebugService())
        self.add_feature("saved", SavedCallsService(self.targets, saved_calls_file))
        self._opens = can_open_targets
        if reloader is not None:
            self._add_reload_state(reloader)
        if subject is not None:
            title = subject.info.title or subject.name
            self.targets.add(as_handler(subject), subject.name, "self", id="self", title=title)
            if isinstance(subject, Server):
                self._add_server_features(subject)

    async def about(self, ctx: Context) -> ToolResult:
        """Return the name, version, mode and features of this console."""
        subject = self.inspected_server
        info = self.server.info if subject is None else subject.info
        principal = visitor_of(ctx)
        return structured_response(
            {
                "name": info.title or info.name,
                "version": info.version,
                "portico": __version__,
                "mode": self.mode,
                "revisions": sorted(SUPPORTED_PROTOCOL_VERSIONS, reverse=True),
                "parts": self.features,
                "can_open": self._opens,
                # The console lists all tools; clients of such a server list some and find the others.
                "tool_search": getattr(subject, "public_handler", subject) is not subject,
                "url": self.targets.get("self").url if subject is not None else "",
                "principal": None if principal is None else {"id": principal.id, "scopes": principal.scopes},
            }
        )

    def attach_exchange(self, exchange: HttpApplication, url: str = "") -> None:
        """Connect the console to the HTTP application of its subject, which it then also monitors."""
        self.live_updates.draining = lambda: exchange.draining
        if self.inspected_server is None:
            return
        self.live_updates.message_topic.taps.append(ExchangeTap(exchange, self.message_log))
        self.targets.get("self").url = url
        happening = ActivityService(exchange)
        if self._upstreams is not None:
            self._upstreams.exchange = exchange
        self.server.add(happening)
        self.features += ["metrics", "sessions"]
        self.live_updates.topics["metrics"] = happening.sampler
        self.live_updates.topics["sessions"] = PolledTopic(happening.snapshot_sessions)
        if exchange.cluster is not None:
            self.features.append("workers")
            self._wire_service.covers_one_worker_only = True
        else:
            self.server.remove("workers")

    def _add_server_features(self, subject: Server) -> None:
        """Add the views for features of this server. Views of upstreams, audit and policy come from portico-gateway."""
        gateway = find_plugin("gateway")
        for view in () if gateway is None else gateway.console_views(subject):
            self.add_feature(view.name, view)
            if view.name == "upstreams":
                self._upstreams = view
                self.live_updates.topics["upstreams"] = PolledTopic(view.status)
                self.live_updates.message_topic.taps.append(UpstreamTap(view.connections, self.message_log))
        if subject.tasks is not None:
            tasks = ProtocolTasksService(subject)
            self.add_feature("jobs", tasks)
            self.live_updates.topics["jobs"] = ChangeTopic(tasks.listeners, dict)

    def add_feature(self, name: str, service: Any) -> None:
        """Add a feature and the service that implements it."""
        self.features.append(name)
        self.server.add(service)

    def _add_reload_state(self, reloader: Reloader) -> None:
        async def dev_state() -> ToolResult:
            """Return whether the server's file was loaded, and the error otherwise."""
            return structured_response(reloader.state)

        self.server.tool(annotations={"readOnlyHint": True})(dev_state)
        self.live_updates.topics["dev"] = ChangeTopic(reloader.listeners, lambda: reloader.state)
        self.features.append("dev")

    def add_initial_target(
        self, spec: str | Sequence[str], revision: ProtocolVersion | None = None, **options: Any
    ) -> None:
        """Add a target that is opened with the console."""
        text = spec if isinstance(spec, str) else shlex.join(spec)
        kind = detect_target_kind(text) if isinstance(spec, str) else "command"
        result = self.targets.add(spec, text, kind, **options)
        result.state.wanted = revision
        self.initial_targets.append(result)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Open the server and the initial targets while the console is in use."""
        async with self.server.lifespan():
            if self.inspected_server is not None:
                await self.targets.get("self").open(None)
            # In the background: a server that starts slowly does not delay the page.
            opening = [
                asyncio.ensure_future(initial_target.open(initial_target.state.wanted))
                for initial_target in self.initial_targets
            ]
            try:
                yield
            finally:
                self.live_updates.end()
                for initial_target in opening:
                    initial_target.cancel()
                await self.targets.close_all()
