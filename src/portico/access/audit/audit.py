"""The audit of a server: notes every call that has ended, and gives it to the writer."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

from msgspec import Raw

from portico import screening
from portico.access.audit.keys import load_or_make
from portico.access.audit.records import CallRecord, EndedCall, failure_of, outcome_of
from portico.access.audit.settings import AuditSettings
from portico.access.audit.writer import AuditWriter
from portico.server.guard import Passage
from portico.server.server import Server
from portico.store.folder import data_directory
from portico.wire.errors import InternalError, ToolError

# What is always noted. Lists and completions come with every keystroke, and say little.
CALLS = frozenset({"tools/call", "resources/read", "prompts/get", "tasks/cancel", "tasks/update"})
LISTS = frozenset({"tools/list", "resources/list", "resources/templates/list", "prompts/list"})
COMPLETIONS = frozenset({"completion/complete"})

STORE_NAME = "audit.db"


class CallAudit:
    """The witness of one server. It is open while the server is."""

    def __init__(self, settings: AuditSettings, server: str, data: Path, store: str | None) -> None:
        self._on_stdio = settings.stdio
        self._refuses = settings.on_full == "refuse"
        self._methods = CALLS | (LISTS if settings.lists else set()) | (COMPLETIONS if settings.completions else set())
        self._server = server
        key = load_or_make(data)
        self.writer = AuditWriter(settings, server, data, store, without_secrets, key)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        async with self.writer.lifespan():
            yield

    def _notes(self, passage: Passage) -> bool:
        call = passage.call
        return call.method in self._methods and (call.address is not None or self._on_stdio or bool(passage.job))

    # As the server tells it

    def begins(self, passage: Passage) -> None:
        passage.began = time.time_ns()
        if self._refuses and self.writer.is_full and self._notes(passage):
            said = "The audit of this server is full, and nothing is done without a record. Try again later."
            if passage.call.method == "tools/call":
                raise ToolError(said, kind="AuditFull", retryable=True)
            raise InternalError(said)

    def ended(self, passage: Passage, result: Any, failure: BaseException | None) -> None:
        if not self._notes(passage):
            return
        call, decision, owned = passage.call, passage.decision, passage.owned
        outcome, error = (outcome_of(result), "") if failure is None else failure_of(failure)
        if decision is not None and not decision.allowed:
            # The client is told that it is not there.
            outcome = "denied"
        raw = result if type(result) is Raw else None
        self.writer.add(
            EndedCall(
                call,
                passage.began // 1000,
                (time.time_ns() - passage.began) // 1000,
                outcome,
                error,
                self._server if owned is None or not owned.owner else owned.owner,
                "" if owned is None else owned.name,
                call.read is None or call.read[0] is not call.params,
                raw,
                "" if decision is None else "allow" if decision.allowed else "deny",
                "" if decision is None else decision.rule,
                ", ".join(decision.shadow) if decision is not None and decision.shadow else "",
                passage.upstream,
                passage.job,
                passage.arguments,
            ),
            len(call.params) + (0 if raw is None else len(raw)),
        )

    def refused(self, status: int, reason: str, address: str | None, principal: str = "") -> None:
        """A request that was not let in: there was no token, or none that is good here."""
        at = time.time_ns() // 1000

        def record(number: int) -> CallRecord:
            return CallRecord(
                number=number,
                at=at,
                kind="login",
                owner=self._server,
                principal=principal,
                address=address or "",
                outcome="refused",
                error=f"{status} {reason}".strip()[:200],
            )

        self.writer.add(record)


_SECRETS: tuple[Literal["secret"], ...] = ("secret",)


def without_secrets(text: str) -> str:
    found = screening.find(text, _SECRETS)
    return screening.redact(text, found) if found else text


def apply(server: Server, settings: AuditSettings) -> None:
    """Put an audit on a server. Raises UsageError where there is no key to be had."""
    data = data_directory(settings.data or server.data)
    server.protect(witness=CallAudit(settings, server.name, data, _store(server, settings, data)))


def _store(server: Server, settings: AuditSettings, data: Path) -> str | None:
    """Where the records are: what the section names, what the server was given, or a file of its own."""
    if settings.store is False:
        return None
    if isinstance(settings.store, str):
        return settings.store
    given = server.store or os.environ.get("PORTICO_STORE", "")
    if given.startswith(("postgresql://", "postgres://")):
        return given
    # One writer at a time is enough for a file, and the audit writes often: it has a file of its own.
    return str(data / STORE_NAME)
