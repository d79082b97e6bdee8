"""The audit of a server: notes every call that has ended, and gives it to the writer."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import Raw

from portico.audit.records import CallRecord, redact_secrets
from portico.audit.signing_keys import load_or_make
from portico.protocol.errors import InternalError, ToolError, UsageError
from portico.server.policy.interfaces import CONSOLE_CLIENT_NAME, Passage
from portico.server.server import Server
from portico.store.data_directory import data_directory
from portico_gateway.audit.events import AUDIT_FULL, EndedCall, failure_of, outcome_of
from portico_gateway.audit.settings import AuditSettings
from portico_gateway.audit.writer import AuditWriter

# What is always noted. Lists and completions come with every keystroke, and say little.
CALLS = frozenset({"tools/call", "resources/read", "prompts/get", "tasks/cancel", "tasks/update"})
LISTS = frozenset({"tools/list", "resources/list", "resources/templates/list", "prompts/list"})
COMPLETIONS = frozenset({"completion/complete"})

STORE_NAME = "audit.db"
# Requests that were not let in are noted one by one, so many of one address and of all; beyond that they are counted.
MOST_REFUSED, MOST_REFUSED_OF_ALL = 20, 1000
FLOOD_SECONDS = 60.0
LONGEST_REASON = 200


class CallAudit:
    """The witness of one server. It writes while the server is open."""

    def __init__(self, server: Server, settings: AuditSettings) -> None:
        self._settings = settings
        self._host = server
        self._server = server.name
        self._on_stdio = settings.stdio
        self._refuses = settings.on_full == "refuse"
        self._methods = CALLS | (LISTS if settings.lists else set()) | (COMPLETIONS if settings.completions else set())
        self._writer: AuditWriter | None = None
        self._refusals = RefusalCount()

    @property
    def writer(self) -> AuditWriter:
        if self._writer is None:
            raise UsageError("the audit is open while its server is")
        return self._writer

    def place(self) -> tuple[Path, str | None]:
        """The folder of its keys, and its store, if it is in one."""
        # Where things are kept may be said after the settings were read.
        data = data_directory(self._settings.data or self._host.data)
        return data, store_of(self._settings, self._host.store, data)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        data, store = self.place()
        key = load_or_make(data)
        writer = AuditWriter(self._settings, self._server, data, store, redact_secrets, key)
        async with writer.lifespan():
            self._writer = writer
            try:
                yield
            finally:
                self._note_floods(self._refusals.end())
                self._writer = None

    def _notes(self, passage: Passage) -> bool:
        call = passage.call
        if call.method not in self._methods:
            return False
        if call.address is not None or self._on_stdio or passage.job:
            return True
        # A person at the console is in this process, as on stdio; but is one of those whom an audit is about.
        return call.client is not None and call.client.name == CONSOLE_CLIENT_NAME

    # As the server tells it

    def begins(self, passage: Passage) -> None:
        passage.began = time.time_ns()
        if self._refuses and (self._writer is None or self._writer.is_full) and self._notes(passage):
            said = "The audit of this server is full, and nothing is done without a record. Try again later."
            if passage.call.method == "tools/call":
                raise ToolError(said, kind="ToolExecutionError", details={"code": AUDIT_FULL}, retryable=True)
            raise InternalError(said)

    def ended(self, passage: Passage, result: Any, failure: BaseException | None) -> None:
        writer, call = self._writer, passage.call
        if writer is None or not (call.method in self._methods and (call.address is not None or self._notes(passage))):
            return
        outcome: str
        outcome, error = (outcome_of(result), "") if failure is None else failure_of(failure)
        if passage.decision is not None and not passage.decision.allowed:
            # The client is told that it is not there.
            outcome = "denied"
        raw = result if type(result) is Raw else None
        writer.add(
            EndedCall(passage, (time.time_ns() - passage.began) // 1000, outcome, error, raw),
            len(call.params) + (0 if raw is None else len(raw)),
        )

    def refused(self, status: int, reason: str, address: str | None) -> None:
        if self._writer is None:
            return
        self._note_floods(self._refusals.turn(time.monotonic()))
        if self._refusals.count(address or ""):
            self._note_refusal(f"{status} {reason}", address or "")

    def _note_floods(self, more: dict[str, int]) -> None:
        for address, count in more.items():
            self._note_refusal("", address, {"more": count})

    def _note_refusal(self, error: str, address: str, note: dict[str, Any] | None = None) -> None:
        record = CallRecord(
            number=0,
            at=time.time_ns() // 1000,
            kind="login",
            owner=self._server,
            address=address,
            outcome="refused",
            error=error[:LONGEST_REASON],
            note=note or {},
        )
        self.writer.add(record)


class RefusalCount:
    """Who was not let in how often. A flood of them must not be a way to fill the audit."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._noted: dict[str, int] = {}
        self._more: dict[str, int] = {}
        self._all = 0

    def count(self, address: str) -> bool:
        """Count one; whether it is noted by itself."""
        self._all += 1
        if self._all > MOST_REFUSED_OF_ALL:
            # Of so many addresses none is worth a record of its own.
            self._more[""] = self._more.get("", 0) + 1
            return False
        self._noted[address] = self._noted.get(address, 0) + 1
        if self._noted[address] <= MOST_REFUSED:
            return True
        self._more[address] = self._more.get(address, 0) + 1
        return False

    def turn(self, now: float) -> dict[str, int]:
        """When the time is over, those that were only counted, by their addresses."""
        return self.end(now) if now - self._since > FLOOD_SECONDS else {}

    def end(self, now: float = 0.0) -> dict[str, int]:
        more, self._more, self._noted, self._all, self._since = self._more, {}, {}, 0, now
        return more


def apply(server: Server, settings: AuditSettings) -> None:
    """Put an audit on a server."""
    server.protect(witness=CallAudit(server, settings))


def store_of(settings: AuditSettings, given: str | None, data: Path) -> str | None:
    """Where the records are: what the section names, the server's if that is PostgreSQL, or a file of its own."""
    if settings.store is False:
        return None
    if isinstance(settings.store, str):
        return os.path.expanduser(settings.store)
    given = given or os.environ.get("PORTICO_STORE", "")
    if given.startswith(("postgresql://", "postgres://")):
        return given
    # One process writes to a file at a time, and the audit writes often.
    return str(data / STORE_NAME)
