"""Long-term memory for assistants, with full-text and optional vector search.

`Memory` is the service. It is imported on first use: the rest of this package works without a server.
"""

from portico._lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__)
