"""The audit store of the commands that read it, and their times."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from portico.protocol.errors import UsageError
from portico.store.data_directory import resolve_data_directory
from portico.store.database import Database
from portico.store.errors import InvalidStatement
from portico.store.transaction import Transaction
from portico_gateway.audit.hook import STORE_FILE_NAME, audit_store_url
from portico_gateway.audit.settings import AuditSettings, parse_duration


def find_audit_store(arguments: argparse.Namespace) -> str:
    """Return the URL or path of the store that `--store` and `--data` name. Raises UsageError if the file does not
    exist.
    """
    data = resolve_data_directory(arguments.data)
    store = os.path.expanduser(arguments.store) if arguments.store else default_audit_store(data)
    if "://" not in store and not os.path.exists(store):
        raise _missing_log(store)
    return store


def default_audit_store(data: Path) -> str:
    """Return the store that a server with `[audit]` and without a `store` setting writes to."""
    return audit_store_url(AuditSettings(), None, data) or str(data / STORE_FILE_NAME)


async def read_audit_store(arguments: argparse.Namespace, fn: Callable[[Transaction], Any]) -> Any:
    """Run a query on the audit store. Raises UsageError if it has no audit log."""
    async with Database(find_audit_store(arguments), max_connections=1) as database:
        try:
            return await database.read(fn)
        except InvalidStatement:
            raise _missing_log(arguments.store or str(resolve_data_directory(arguments.data))) from None


def _missing_log(store: str) -> UsageError:
    # A URL may contain a password.
    where = "the store" if "://" in store else store
    return UsageError(
        f"no audit log found: expected one in {where}. A server records its calls if its settings file "
        "has [audit], and calls over stdio with include_stdio = true; --data or --store names where it records them"
    )


def parse_moment(text: str) -> int:
    """Parse a date, a timestamp or an age (`2026-01-31`, `2026-01-31T12:00Z`, `2h`) into microseconds since the
    epoch.
    """
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        try:
            return time.time_ns() // 1000 - parse_duration(text) * 1_000_000
        except UsageError:
            raise UsageError(
                f"invalid time {text!r}: expected 2026-01-31, 2026-01-31T12:00Z, or an age such as 2h"
            ) from None
    moment = parsed if parsed.tzinfo is not None else parsed.astimezone()
    return int(moment.astimezone(UTC).timestamp() * 1e6)
