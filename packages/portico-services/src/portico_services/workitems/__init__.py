"""Work items for planning. They are unrelated to MCP tasks, which are long-running calls.

`Tasks` is the service. It is imported on first use: the rest of this package works without a server.
"""

from portico._lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__)
