# Public names, and the modules that define them. `portico._lazy.attach_stub` reads this file at run time.
from portico.audit.log_file import (
    AuditLogFile as AuditLogFile,
    log_file_parts as log_file_parts,
    verify_log_file as verify_log_file,
)
from portico.audit.records import (
    AuditEvent as AuditEvent,
    redact_secrets as redact_secrets,
)
