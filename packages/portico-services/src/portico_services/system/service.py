"""The system service: event logs, files, registry and processes as tools, resources and prompts."""

from __future__ import annotations

import asyncio
import logging
import os
import pathlib
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote
from weakref import WeakSet

from msgspec import Meta

from portico import Server, Service, UsageError, completion, prompt, resource, tool
from portico.extend import BackgroundTasks, Component, explained
from portico_services.system import access_levels as allowed
from portico_services.system.log_follower import Following
from portico_services.system.machine_access import READING, Cursor, MachineLooks
from portico_services.system.results import AuditTrail, Health, MachineInfo, Order, ProcessPage
from portico_services.system.tools.files import FileTools
from portico_services.system.tools.logs import LogTools
from portico_services.system.tools.registry import RegistryTools
from portico_services.text import sections

if TYPE_CHECKING:
    from portico_services.system.machine import Machine

log = logging.getLogger("portico")

Paths = Mapping[str, str | os.PathLike[str]]

PROMPTS = pathlib.Path(__file__).with_name("prompts.md")


class System(Service):
    """The machine that the server runs on: `server.add(System(roots=["/srv/data"]))`.

    It only reads, shows names as tokens, and looks into no folder that it was not given: see the options.
    """

    name = "system"
    scoped = True

    @explained
    def __init__(
        self,
        *,
        roots: Iterable[str | os.PathLike[str]] = (),
        logs: Paths | None = None,
        machine_logs: bool = True,
        hives: Paths | None = None,
        levels: Mapping[str, str] | None = None,
        privacy: str = "anonymize",
        deny: Iterable[str | os.PathLike[str]] = (),
        data: str | os.PathLike[str] | None = None,
        index: bool = True,
        follow_seconds: float = 1.0,
        client_roots: bool = False,
    ) -> None:
        super().__init__()
        for name in hives or {}:
            if not name.strip("\\/ "):
                raise UsageError(f"hives: expected a name such as SYSTEM or HKLM\\SYSTEM, got {name!r}")
        self.levels = allowed.levels(levels or {})
        options: dict[str, Any] = {
            "roots": list(roots),
            "logs": logs,
            "machine_logs": machine_logs,
            "hives": hives,
            "levels": self.levels,
            "privacy": allowed.privacy(privacy),
            "deny": [os.fspath(pattern) for pattern in deny],
            "data": data,
            "index": index,
        }
        self._looking = looking = MachineLooks(options, client_roots=client_roots)
        self._follow_seconds = follow_seconds
        following = Following(lambda: looking.machine, follow_seconds)
        self.logs = LogTools(looking, following)
        self.files = FileTools(looking)
        self.registry = RegistryTools(looking, self.levels["reg"])
        self._servers: WeakSet[Server] = WeakSet()
        self._stamps: dict[str, object] = {}

    @property
    def machine(self) -> Machine:
        """What answers the calls."""
        return self._looking.machine

    # As a service

    def offers(self) -> Iterator[Component]:
        """What is disabled is not there."""
        for offered in chain(self.logs.offers(), self.files.offers(), self.registry.offers(), super().offers()):
            part = allowed.part_of(offered)
            if part is None or self.levels[part] != "disabled":
                yield offered

    def attach(self, server: Server) -> None:
        """The clients of this server are told when a log grows. `server.add` does this, too."""
        self._servers.add(server)

    added = attach

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        supervisor = BackgroundTasks()
        supervisor.run("system log changes", self._follow)
        try:
            yield
        finally:
            supervisor.cancel()
            await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._looking.close()

    async def _follow(self) -> None:
        if self._looking.options["roots"]:
            await asyncio.to_thread(self._begin)
        while self.levels["eventlog"] != "disabled":
            await self.look()
            await asyncio.sleep(self._follow_seconds)

    def _begin(self) -> None:
        """Filling the index takes a while, so it begins before the first query."""
        if self.machine.index is not None:
            self.machine.index.start()

    async def look(self) -> None:
        """See which logs have grown since the last look, and tell those who have subscribed to them."""
        if not self._servers:
            return
        try:
            now = await asyncio.to_thread(self.machine.logs.stamps)
        except OSError:
            log.warning("the logs could not be looked at", exc_info=True)
            return
        grown = [name for name, stamp in now.items() if self._stamps.get(name, stamp) != stamp]
        for server in self._servers:
            for name in grown:
                server.resource_updated(f"eventlog://{quote(name, safe='')}", everywhere=False)
        self._stamps = now

    # The machine

    @tool(version="1.1.0", annotations=READING)
    def process_list(
        self,
        name: Annotated[str | None, Meta(description="A text in the name or the command", max_length=200)] = None,
        sort: Annotated[Order, "What comes first: small numbers, much CPU time, or much memory"] = "pid",
        limit: Annotated[int, Meta(description="The most processes to give", ge=1, le=5000)] = 200,
        cursor: Cursor = None,
    ) -> ProcessPage:
        """List processes."""
        with self._looking.recorded("process_list", name=name):
            return self.machine.process_page(name, sort, limit, cursor or None)

    @tool(annotations=READING)
    def system_info(self) -> MachineInfo:
        """Describe this machine: system, processor, memory, disk, load."""
        with self._looking.recorded("system_info"):
            return self.machine.info()

    @resource("system://health", mime_type="application/json", title="Health")
    def health(self) -> Health:
        """What of this service works, and how it is configured."""
        return self.machine.health()

    @resource("system://audit", mime_type="application/json", title="Audit trail")
    def audit(self) -> AuditTrail:
        """The last calls to this service, each bound to the one before it by a hash."""
        return self.machine.trail()

    # Prompts

    @prompt(name="diagnose-errors", title="Diagnose errors")
    def diagnose_errors(self, logName: str = "System", hours: Annotated[int, Meta(ge=1, le=8760)] = 24) -> str:
        """Find out what has been going wrong on this machine.

        Args:
            logName: The log to look at.
            hours: How far back to look.
        """
        return _prompt("diagnose-errors", log=logName, hours=hours)

    @prompt(name="find-large-files", title="Find large files")
    def find_large_files(self, path: str = "") -> str:
        """Find out what takes up space.

        Args:
            path: The folder to look in; otherwise all that may be looked into.
        """
        where = f"below {path!r}" if path else "in the folders that fs_list gives"
        return _prompt("find-large-files", where=where)

    @prompt(name="explain-event", title="Explain an event")
    def explain_event(self, id: int, logName: str = "System") -> str:
        """Have one entry of a log explained.

        Args:
            id: The entry's id.
            logName: The log it is in.
        """
        return _prompt("explain-event", uri=f"eventlog://{quote(logName, safe='')}/{id}")

    @completion("diagnose-errors", "logName")
    @completion("explain-event", "logName")
    @completion("eventlog://{logName}", "logName")
    @completion("eventlog://{logName}/{id}", "logName")
    def log_names(self, typed: str) -> list[str]:
        return [name for name in self.machine.log_names() if name.casefold().startswith(typed.casefold())]


def _prompt(name: str, **given: Any) -> str:
    return sections(PROMPTS)[name].strip().format(**given)
