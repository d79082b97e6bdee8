"""The Console: a Server for the page, and what it stands on."""

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
from portico.protocol.versions import REVISIONS, Revision
from portico.server.components.results import ToolResult
from portico.server.context.context import Context
from portico.server.server import Server
from portico.transports.http_server.application import Exchange
from portico_console.activity import HappeningService
from portico_console.live_updates import Changing, LookedAt, WatchService
from portico_console.message_log import WireLog
from portico_console.message_tools import WireService
from portico_console.oauth_tools import OAuthService
from portico_console.saved_calls import SavedCalls
from portico_console.server_requests import Questions
from portico_console.session_auth import visitor_of
from portico_console.target_tools import AuthFor, OpeningService, TargetService
from portico_console.targets import ConsoleTarget, Targets, as_handler, kind_of
from portico_console.task_tools import JobsService
from portico_console.tool_responses import shown
from portico_console.traffic_tap import ExchangeTap, UpstreamTap

ConsoleMode = Literal["serve", "console", "dev"]

_INSTRUCTIONS = """\
The console of a Portico server: what its page asks. list_targets says which servers can be looked at; list_items,
call_tool, read_resource and get_prompt are for those. watch tells what happens, for as long as it is listened to.
"""


class Console:
    """What can be looked at, and the Server that shows it: `Client(Console(server).server)`.

    * **subject** – the Server that it belongs to, if it belongs to one.
    * **mode** – what it was started as, for the page.
    * **opens** – whether other servers may be opened: commands are run for that.
    * **auth_for** – finds the token for a URL.
    * **saved** – the file of saved calls.
    * **reloader** – loads the subject from its file, and knows how that went.
    """

    def __init__(
        self,
        subject: Any = None,
        *,
        mode: ConsoleMode = "serve",
        opens: bool = False,
        auth_for: AuthFor | None = None,
        reloader: Reloader | None = None,
        saved: Path | None = None,
    ) -> None:
        self.subject = subject
        # The view of a gateway, from portico-gateway.
        self._upstreams: Any = None
        # Those that were named on the command line, which are opened with it.
        self.named: list[ConsoleTarget] = []
        self.mode: ConsoleMode = mode
        self.wire = WireLog()
        self.questions = Questions()
        self.targets = Targets(self.wire, self.questions)
        self.parts: list[str] = ["wire"]
        self.server = Server(
            "portico-console", version=__version__, title="Portico console", instructions=_INSTRUCTIONS
        )
        self.server.add(TargetService(self.targets, self.questions))
        if find_plugin("services") is None:
            self.server.remove("lint")
        self._wire_service = WireService(self.wire)
        self.server.add(self._wire_service)
        self.watching = WatchService(self)
        self.server.add(self.watching)
        self.server.tool(annotations={"readOnlyHint": True})(self.about)
        if opens:
            self.server.add(OpeningService(self.targets, auth_for))
            self.parts.append("open")
            self.add_part("oauth", OAuthService())
        self.add_part("saved", SavedCalls(self.targets, saved))
        self._opens = opens
        if reloader is not None:
            self._show_file(reloader)
        if subject is not None:
            title = subject.info.title or subject.name
            self.targets.add(as_handler(subject), subject.name, "self", id="self", title=title)
            if isinstance(subject, Server):
                self._add_parts(subject)

    async def about(self, ctx: Context) -> ToolResult:
        """What this console is, and which parts it has."""
        info = self.server.info if self.subject is None else self.subject.info
        principal = visitor_of(ctx)
        return shown(
            {
                "name": info.title or info.name,
                "version": info.version,
                "portico": __version__,
                "mode": self.mode,
                "revisions": sorted(REVISIONS, reverse=True),
                "parts": self.parts,
                "can_open": self._opens,
                "url": self.targets.get("self").url if self.subject is not None else "",
                "principal": None if principal is None else {"id": principal.id, "scopes": principal.scopes},
            }
        )

    def serve_by(self, exchange: Exchange, url: str = "") -> None:
        """It is reached through the same exchange as its subject, which can be looked at as well."""
        self.watching.draining = lambda: exchange.draining
        if self.subject is None:
            return
        self.watching.wire.taps.append(ExchangeTap(exchange, self.wire))
        self.targets.get("self").url = url
        happening = HappeningService(exchange)
        if self._upstreams is not None:
            self._upstreams.exchange = exchange
        self.server.add(happening)
        self.parts += ["metrics", "sessions"]
        self.watching.topics["metrics"] = happening.sampler
        self.watching.topics["sessions"] = LookedAt(happening.look_at_sessions)
        if exchange.elsewhere is not None:
            self.parts.append("workers")
            self._wire_service.one_worker = True
        else:
            self.server.remove("workers")

    def _add_parts(self, subject: Server) -> None:
        """Add the views for what this server has; those of upstreams, audit and policy come from portico-gateway."""
        gateway = find_plugin("gateway")
        for view in () if gateway is None else gateway.console_views(subject):
            self.add_part(view.name, view)
            if view.name == "upstreams":
                self._upstreams = view
                self.watching.topics["upstreams"] = LookedAt(view.status)
                self.watching.wire.taps.append(UpstreamTap(view.connections, self.wire))
        if subject.tasks is not None:
            tasks = JobsService(subject)
            self.add_part("jobs", tasks)
            self.watching.topics["jobs"] = Changing(tasks.listeners, dict)

    def add_part(self, name: str, service: Any) -> None:
        """More that can be looked at."""
        self.parts.append(name)
        self.server.add(service)

    def _show_file(self, reloader: Reloader) -> None:
        async def dev_state() -> ToolResult:
            """How the file of the server is: whether it was loaded, and what is wrong with it."""
            return shown(reloader.state)

        self.server.tool(annotations={"readOnlyHint": True})(dev_state)
        self.watching.topics["dev"] = Changing(reloader.listeners, lambda: reloader.state)
        self.parts.append("dev")

    def name_target(self, spec: str | Sequence[str], revision: Revision | None = None, **options: Any) -> None:
        """A target that is opened with the console."""
        text = spec if isinstance(spec, str) else shlex.join(spec)
        kind = kind_of(text) if isinstance(spec, str) else "command"
        found = self.targets.add(spec, text, kind, **options)
        found.state.wanted = revision
        self.named.append(found)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """The time in which it can be used."""
        async with self.server.lifespan():
            if self.subject is not None:
                await self.targets.get("self").open(None)
            # A server that takes long to start does not keep the page waiting.
            opening = [asyncio.ensure_future(one.open(one.state.wanted)) for one in self.named]
            try:
                yield
            finally:
                self.watching.end()
                for one in opening:
                    one.cancel()
                await self.targets.close_all()
