"""Audit hook of a server: passes every completed call to the writer."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import Raw

from portico.audit.records import AuditEvent, redact_secrets
from portico.audit.signing_keys import load_or_create_key
from portico.protocol.errors import InternalError, ToolError, UsageError
from portico.server.policy.interfaces import CONSOLE_CLIENT_NAME, PolicyContext
from portico.server.server import Server
from portico.store.data_directory import named_store, resolve_data_directory
from portico_gateway.audit.events import AUDIT_FULL, CompletedCall, error_outcome, result_outcome
from portico_gateway.audit.settings import AuditSettings
from portico_gateway.audit.writer import AuditWriter

# Methods that are always recorded. Lists and completions are frequent and of little interest.
CALL_METHODS = frozenset({"tools/call", "resources/read", "prompts/get", "tasks/cancel", "tasks/update"})
LIST_METHODS = frozenset({"tools/list", "resources/list", "resources/templates/list", "prompts/list"})
COMPLETION_METHODS = frozenset({"completion/complete"})

STORE_FILE_NAME = "audit.db"
# Rejected requests are recorded individually up to these numbers, per address and in total; beyond that they are
# counted.
MAX_REJECTIONS_PER_ADDRESS, MAX_REJECTIONS = 20, 1000
REJECTION_WINDOW_SECONDS = 60.0
MAX_REASON_CHARS = 200


class AuditLogger:
    """Audit hook of one server. It writes while the server is open."""

    def __init__(self, server: Server, settings: AuditSettings) -> None:
        self._settings = settings
        self._host = server
        self._server = server.name
        self._on_stdio = settings.include_stdio
        self._refuses = settings.on_overflow == "reject"
        self._methods = (
            CALL_METHODS
            | (LIST_METHODS if settings.include_lists else set())
            | (COMPLETION_METHODS if settings.include_completions else set())
        )
        self._writer: AuditWriter | None = None
        self._refusals = RejectionCounter()

    @property
    def writer(self) -> AuditWriter:
        """Return the writer. Raises UsageError while the server is not open."""
        if self._writer is None:
            raise UsageError("the audit log is only available while its server is open")
        return self._writer

    def location(self) -> tuple[Path, str | None]:
        """Return the directory of the keys, and the URL of the store or None."""
        # Evaluated late, because the data directory may be set after the settings were read.
        data = resolve_data_directory(self._settings.data_dir or self._host.data_dir)
        return data, audit_store_url(self._settings, self._host.store, data)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        data, store = self.location()
        key = load_or_create_key(data)
        writer = AuditWriter(self._settings, self._server, data, store, redact_secrets, key)
        async with writer.lifespan():
            self._writer = writer
            try:
                yield
            finally:
                self._record_suppressed(self._refusals.flush())
                self._writer = None

    def _is_audited(self, passage: PolicyContext) -> bool:
        """Return whether a call is recorded."""
        call = passage.call
        if call.method not in self._methods:
            return False
        if call.address is not None or self._on_stdio or passage.task_id:
            return True
        # A console user calls in-process, as on stdio, but must be audited.
        return call.client is not None and call.client.name == CONSOLE_CLIENT_NAME

    # Hook interface

    def on_request(self, context: PolicyContext) -> None:
        context.started_ns = time.time_ns()
        if self._refuses and (self._writer is None or self._writer.is_full) and self._is_audited(context):
            message = (
                "The audit log of this server is full, and calls without a record are not allowed. Try again later."
            )
            if context.call.method == "tools/call":
                raise ToolError(message, error_type="ToolExecutionError", details={"code": AUDIT_FULL}, retryable=True)
            raise InternalError(message)

    def on_response(self, context: PolicyContext, result: Any, failure: BaseException | None) -> None:
        writer, call = self._writer, context.call
        if writer is None or not (
            call.method in self._methods and (call.address is not None or self._is_audited(context))
        ):
            return
        outcome: str
        outcome, error = (result_outcome(result), "") if failure is None else error_outcome(failure)
        if context.decision is not None and not context.decision.allowed:
            # The client receives the error for an unknown component.
            outcome = "denied"
        raw = result if type(result) is Raw else None
        writer.enqueue(
            CompletedCall(context, (time.time_ns() - context.started_ns) // 1000, outcome, error, raw),
            len(call.params) + (0 if raw is None else len(raw)),
        )

    def on_rejected(self, status: int, reason: str, address: str | None) -> None:
        if self._writer is None:
            return
        self._record_suppressed(self._refusals.roll_window(time.monotonic()))
        if self._refusals.record(address or ""):
            self._record_rejection(f"{status} {reason}", address or "")

    def _record_suppressed(self, more: dict[str, int]) -> None:
        for address, count in more.items():
            self._record_rejection("", address, {"more": count})

    def _record_rejection(self, error: str, address: str, note: dict[str, Any] | None = None) -> None:
        record = AuditEvent(
            number=0,
            at=time.time_ns() // 1000,
            kind="login",
            owner=self._server,
            address=address,
            outcome="refused",
            error=error[:MAX_REASON_CHARS],
            note=note or {},
        )
        self.writer.enqueue(record)


class RejectionCounter:
    """Counts rejected requests by address, so that a flood of them cannot fill the audit log."""

    def __init__(self) -> None:
        self._window_started_at = time.monotonic()
        self._counts: dict[str, int] = {}
        self._suppressed: dict[str, int] = {}
        self._suppressed_total = 0

    def record(self, address: str) -> bool:
        """Count a rejection. Return whether it is recorded individually."""
        self._suppressed_total += 1
        if self._suppressed_total > MAX_REJECTIONS:
            # With so many rejections, individual addresses are no longer recorded.
            self._suppressed[""] = self._suppressed.get("", 0) + 1
            return False
        self._counts[address] = self._counts.get(address, 0) + 1
        if self._counts[address] <= MAX_REJECTIONS_PER_ADDRESS:
            return True
        self._suppressed[address] = self._suppressed.get(address, 0) + 1
        return False

    def roll_window(self, now: float) -> dict[str, int]:
        """Return the counts by address if the time window has ended, else nothing."""
        return self.flush(now) if now - self._window_started_at > REJECTION_WINDOW_SECONDS else {}

    def flush(self, now: float = 0.0) -> dict[str, int]:
        """Reset the counters and return the counts of rejections that were not recorded individually."""
        more, self._suppressed, self._counts, self._suppressed_total, self._window_started_at = (
            self._suppressed,
            {},
            {},
            0,
            now,
        )
        return more


def install_audit(server: Server, settings: AuditSettings) -> None:
    """Install the audit hook on a server."""
    server.set_policy(audit_hook=AuditLogger(server, settings))


def audit_store_url(settings: AuditSettings, store: str | None, data: Path) -> str | None:
    """Return the store of the audit log: the configured one, the server's if it is PostgreSQL, or a separate file."""
    if settings.store is False:
        return None
    if isinstance(settings.store, str):
        return os.path.expanduser(settings.store)
    store = named_store(store) or ""
    if store.startswith(("postgresql://", "postgres://")):
        return store
    # SQLite allows one writer at a time and the audit log writes often, so it has its own file.
    return str(data / STORE_FILE_NAME)
