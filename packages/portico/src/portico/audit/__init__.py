"""Tamper-evident audit logs for a service of your own, in a file.

`records` defines a record, `hash_chain` binds each record to the one before, `checkpoints` sign the state of a chain,
`log_file` writes them to a file, and `verification` finds the first record that is not as it was written. The gateway
adds the audit of a server: its hook, stores, sinks and retention.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portico._lazy import public_names

if TYPE_CHECKING:
    from portico.audit.log_file import FileTrail, trail_parts, verify_trail
    from portico.audit.records import CallRecord, redact_secrets

__all__ = ["CallRecord", "FileTrail", "redact_secrets", "trail_parts", "verify_trail"]

_HOMES: dict[str, tuple[str, ...]] = {
    "portico.audit.log_file": ("FileTrail", "trail_parts", "verify_trail"),
    "portico.audit.records": ("CallRecord", "redact_secrets"),
}

if not TYPE_CHECKING:  # which would take any name for one that is there
    __getattr__, __dir__ = public_names(__name__, _HOMES)
