"""What the tools of the service have in common: the machine, and a record of each look at it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from msgspec import Meta

from portico import Context
from portico._lazy import LazyModule
from portico_services.system.client_roots import ClientRoots
from portico_services.system.errors import Absent, MachineError, Outside

if TYPE_CHECKING:
    from portico_services.system import machine as machine_module
    from portico_services.system.machine import Machine
else:
    machine_module = LazyModule("portico_services.system.machine")

T = TypeVar("T")

Cursor = Annotated[str | None, Meta(description="nextCursor of the page before", max_length=16 * 1024)]

PROGRESS_SECONDS = 0.5

READING = {"readOnlyHint": True, "openWorldHint": False}


class MachineLooks:
    """`options` are those of the Machine. Where `client_roots` are taken, users may allow more folders."""

    def __init__(self, options: dict[str, Any], *, client_roots: bool = False) -> None:
        self.options = options
        self._machine: Machine | None = None
        self._lock = threading.Lock()
        self.client_roots = ClientRoots(lambda: self.machine, self._allow) if client_roots else None

    @property
    def machine(self) -> Machine:
        """What answers the calls. It imports a great deal, so it is made for the first of them."""
        with self._lock:
            if self._machine is None:
                self._machine = machine_module.Machine(**self.options)
            return self._machine

    def _allow(self, folders: list[str]) -> None:
        """Look into these folders, too, as long as the service is there."""
        self.machine.allow(folders)
        self.options["roots"] += folders

    def close(self) -> None:
        with self._lock:
            if self._machine is not None:
                self._machine.close()
                self._machine = None

    @contextmanager
    def recorded(self, tool: str, **arguments: Any) -> Iterator[None]:
        """Adds a record of this call to the audit trail."""
        outcome = "stopped"
        self.machine.audit.permit()
        try:
            yield
            outcome = "ok"
        except MachineError as refusal:
            outcome = refusal.outcome
            raise
        except Exception:
            outcome = "failed"
            raise
        finally:
            self.machine.audit.add(tool, arguments, outcome)

    def recording(self, tool: str, look: Callable[[], T], **arguments: Any) -> Callable[[], T]:
        """The same, with a record of each time."""

        def recorded() -> T:
            with self.recorded(tool, **arguments):
                return look()

        return recorded

    async def looked(self, ctx: Context, path: str | None, look: Callable[[], T]) -> T:
        """What `look` finds below the roots; and below those of the client where its user agrees."""
        try:
            return await with_progress(ctx, look)
        except Outside:
            if self.client_roots is None or not await self.client_roots.allow(ctx, path):
                raise
        return await with_progress(ctx, look)

    def resource(self, uri: str, read: Callable[[], T]) -> T | None:
        """The contents of a resource; None if it does not exist."""
        try:
            with self.recorded(f"read {uri.partition('://')[0]}", uri=uri):
                return read()
        except Absent:
            return None


async def with_progress(ctx: Context, look: Callable[[], T]) -> T:
    """What `look` finds, in a thread. A client that wants to hear of progress hears meanwhile how long it has taken."""
    if "progressToken" not in ctx.meta:
        return await ctx.in_thread(look)
    looking = asyncio.create_task(ctx.in_thread(look))
    seconds = 0.0
    try:
        while not (await asyncio.wait([looking], timeout=PROGRESS_SECONDS))[0]:
            seconds += PROGRESS_SECONDS
            ctx.report_progress(seconds, message=f"Looking for {seconds:g} s")
        return looking.result()
    finally:
        looking.cancel()
