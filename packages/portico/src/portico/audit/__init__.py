"""Tamper-evident audit logs for a service of your own, in a file.

`records` defines a record, `hash_chain` binds each record to the one before, `checkpoints` sign the state of a chain,
`log_file` writes them to a file, and `verification` finds the first record that is not as it was written. The gateway
adds the audit of a server: its hook, stores, sinks and retention.
"""

from portico._lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__)
