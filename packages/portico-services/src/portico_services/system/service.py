"""System service: event logs, files, registry and processes as tools, resources and prompts."""

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
from portico.extend import BackgroundTasks, Component, validated_kwargs
from portico_services.system import access_levels as allowed
from portico_services.system.log_follower import LogFollower
from portico_services.system.machine_access import READ_ONLY_HINTS, CursorParameter, MachineAccess
from portico_services.system.results import AuditRecords, MachineInfo, ProcessPage, ProcessSort, SystemHealth
from portico_services.system.tools.files import FileSystemTools
from portico_services.system.tools.logs import LogTools
from portico_services.system.tools.registry import RegistryTools
from portico_services.text import load_markdown_sections

if TYPE_CHECKING:
    from portico_services.system.machine import Machine

log = logging.getLogger("portico")

Paths = Mapping[str, str | os.PathLike[str]]

PROMPTS_FILE = pathlib.Path(__file__).with_name("prompts.md")


class System(Service):
    r"""Access to the server's machine: `server.add(System(allowed_paths=["/srv/data"]))`.

    By default the service is read-only, replaces user and host names by tokens, and reads no directory outside
    `allowed_paths`.

    * `allowed_paths`: directories and single files that may be read.
    * `logs`: additional logs by name: a file, a directory of files, an `.evtx` file or a journal.
    * `hives`: registry hive files by name; the name may be a location such as `HKLM\SYSTEM`. A missing file is an
      error at startup.
    * `platform_logs`: whether to include the logs of the operating system.
    * `access_levels`: access to `logs`, `files`, `registry` and `processes`: `"disabled"`, `"read-only"` (the default)
      or `"read-write"`.
    * `privacy`: `"off"`, `"anonymize"` or `"strict"`: whether user and host names are replaced by tokens.
    * `deny`: patterns of files that are never readable, in addition to the built-in ones.
    * `data_dir`: directory for the key, the file index, the portable registry and the audit log.
    * `file_index`: whether to index the file names below the allowed paths.
    * `log_poll_interval`: time between two polls of the logs for subscribers.
    * `client_roots`: whether the user of a local client may allow the client's roots.
    """

    name = "system"
    requires_scopes = True

    @validated_kwargs
    def __init__(
        self,
        *,
        allowed_paths: Iterable[str | os.PathLike[str]] = (),
        logs: Paths | None = None,
        platform_logs: bool = True,
        hives: Paths | None = None,
        access_levels: Mapping[str, str] | None = None,
        privacy: str = "anonymize",
        deny: Iterable[str | os.PathLike[str]] = (),
        data_dir: str | os.PathLike[str] | None = None,
        file_index: bool = True,
        log_poll_interval: float = 1.0,
        client_roots: bool = False,
    ) -> None:
        super().__init__()
        for name, path in (hives or {}).items():
            if not name.strip("\\/ "):
                raise UsageError(f"hives: expected a name such as SYSTEM or HKLM\\SYSTEM, got {name!r}")
            _check_hive_file(name, os.path.abspath(path))
        self.access_levels = allowed.resolve_levels(access_levels or {})
        options: dict[str, Any] = {
            "allowed_paths": list(allowed_paths),
            "logs": logs,
            "platform_logs": platform_logs,
            "hives": hives,
            "access_levels": self.access_levels,
            "privacy": allowed.resolve_privacy(privacy),
            "deny": [os.fspath(pattern) for pattern in deny],
            "data_dir": data_dir,
            "file_index": file_index,
        }
        self._access = access = MachineAccess(options, client_roots=client_roots)
        self._follow_seconds = log_poll_interval
        follower = LogFollower(lambda: access.machine, log_poll_interval)
        self.logs = LogTools(access, follower)
        self.files = FileSystemTools(access)
        self.registry = RegistryTools(access, self.access_levels["registry"])
        # Weak: a service may outlive the servers it was added to.
        self._servers: WeakSet[Server] = WeakSet()
        self._log_stamps: dict[str, object] = {}

    @property
    def machine(self) -> Machine:
        """Return the machine that handles the calls."""
        return self._access.machine

    # Service interface

    def components(self) -> Iterator[Component]:
        """Yield the components of all parts that are not disabled."""
        for component in chain(
            self.logs.components(), self.files.components(), self.registry.components(), super().components()
        ):
            part = allowed.part_of_component(component)
            if part is None or self.access_levels[part] != "disabled":
                yield component

    def attach(self, server: Server) -> None:
        """Notify the clients of this server when a log grows. `server.add` calls this as well."""
        self._servers.add(server)

    on_added = attach

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        supervisor = BackgroundTasks()
        supervisor.run("system log changes", self._poll_loop)
        try:
            yield
        finally:
            supervisor.cancel()
            # Closing joins the index thread and must not block the event loop.
            await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._access.close()

    async def _poll_loop(self) -> None:
        # Without allowed paths there is nothing to index, and the machine is not even created.
        if self._access.options["allowed_paths"]:
            await asyncio.to_thread(self._start_indexing)
        while self.access_levels["logs"] != "disabled":
            await self.poll_logs()
            await asyncio.sleep(self._follow_seconds)

    def _start_indexing(self) -> None:
        """Start filling the index before the first query, because it takes a while."""
        if self.machine.index is not None:
            self.machine.index.start()

    async def poll_logs(self) -> None:
        """Check which logs have grown since the last poll, and notify their subscribers."""
        if not self._servers:
            return
        try:
            now = await asyncio.to_thread(self.machine.logs.change_stamps)
        except OSError:
            # A temporary failure must not end the loop, or subscribers would never hear again.
            log.warning("the logs could not be polled", exc_info=True)
            return
        # A log seen for the first time has not changed yet as far as subscribers know.
        grown = [name for name, stamp in now.items() if self._log_stamps.get(name, stamp) != stamp]
        for server in self._servers:
            for name in grown:
                # Not replicated: every process of the server polls the same logs itself.
                server.notify_resource_updated(f"eventlog://{quote(name, safe='')}", replicate=False)
        self._log_stamps = now

    # Processes and system

    @tool(version="1.1.0", annotations=READ_ONLY_HINTS)
    def process_list(
        self,
        name: Annotated[
            str | None, Meta(description=("Text in the process name or command line"), max_length=200)
        ] = None,
        sort: Annotated[ProcessSort, "pid (default), cpu or memory (highest first)"] = "pid",
        limit: Annotated[int, Meta(description="Maximum processes", ge=1, le=5000)] = 200,
        cursor: CursorParameter = None,
    ) -> ProcessPage:
        """List running processes with CPU time, memory and command line (secrets redacted)."""
        with self._access.audit("process_list", name=name):
            return self.machine.process_page(name, sort, limit, cursor or None)

    @tool(annotations=READ_ONLY_HINTS)
    def system_info(self) -> MachineInfo:
        """Return operating system, CPU, memory, disk and load of this machine."""
        with self._access.audit("system_info"):
            return self.machine.info()

    @resource("system://health", mime_type="application/json", title="Health")
    def health(self) -> SystemHealth:
        """Return the service status and configuration."""
        return self.machine.health()

    @resource("system://audit", mime_type="application/json", title="Audit trail")
    def audit(self) -> AuditRecords:
        """Return the latest audit records; each contains the hash of its predecessor."""
        return self.machine.trail()

    # Prompts

    @prompt(name="diagnose-errors", title="Diagnose errors")
    def diagnose_errors(self, logName: str = "System", hours: Annotated[int, Meta(ge=1, le=8760)] = 24) -> str:
        """Diagnose recent errors on this machine.

        Args:
            logName: Log to read; default System.
            hours: Hours to look back; default 24.
        """
        return _prompt("diagnose-errors", log=logName, hours=hours)

    @prompt(name="find-large-files", title="Find large files")
    def find_large_files(self, path: str = "") -> str:
        """Find large files that use disk space.

        Args:
            path: Directory; default: all allowed paths.
        """
        where = f"below {path!r}" if path else "in the directories that fs_list returns"
        return _prompt("find-large-files", where=where)

    @prompt(name="explain-event", title="Explain an event")
    def explain_event(self, id: int, logName: str = "System") -> str:
        """Explain one log entry.

        Args:
            id: Entry id.
            logName: Log that contains the entry; default System.
        """
        return _prompt("explain-event", uri=f"eventlog://{quote(logName, safe='')}/{id}")

    @completion("diagnose-errors", "logName")
    @completion("explain-event", "logName")
    @completion("eventlog://{logName}", "logName")
    @completion("eventlog://{logName}/{id}", "logName")
    def log_names(self, typed: str) -> list[str]:
        return [name for name in self.machine.log_names() if name.casefold().startswith(typed.casefold())]


def _check_hive_file(name: str, path: str) -> None:
    """Raise UsageError unless this is a file that can be read. Otherwise the mistake would surface on first use."""
    if os.path.isfile(path):
        problem = "" if os.access(path, os.R_OK) else "no permission to read"
    else:
        problem = "expected a file, got" if os.path.exists(path) else "file not found:"
    if problem:
        raise UsageError(f"hives.{name}: {problem} {path}")


def _prompt(name: str, **values: Any) -> str:
    return load_markdown_sections(PROMPTS_FILE)[name].strip().format(**values)
