"""Tamper-evident audit logs for a service of your own, in a file.

`records` defines a record, `hash_chain` binds each record to the one before, `checkpoints` sign the state of a chain,
`log_file` writes them to a file, and `verification` finds the first record that is not as it was written. The gateway
adds the audit of a server: its hook, stores, sinks and retention.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portico._lazy import lazy_exports

if TYPE_CHECKING:
    from portico.audit.log_file import AuditLogFile, log_file_parts, verify_log_file
    from portico.audit.records import AuditEvent, redact_secrets

__all__ = ["AuditEvent", "AuditLogFile", "log_file_parts", "redact_secrets", "verify_log_file"]

_HOMES: dict[str, tuple[str, ...]] = {
    "portico.audit.log_file": ("AuditLogFile", "log_file_parts", "verify_log_file"),
    "portico.audit.records": ("AuditEvent", "redact_secrets"),
}

if not TYPE_CHECKING:  # which would take any name for one that is there
    __getattr__, __dir__ = lazy_exports(__name__, _HOMES)
