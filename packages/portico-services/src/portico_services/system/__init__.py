"""Access to the server's machine: event logs, files, registry, processes.

`System` is the service. It is imported on first use: the rest of this package does not depend on the protocol.
"""

from portico._lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__)
