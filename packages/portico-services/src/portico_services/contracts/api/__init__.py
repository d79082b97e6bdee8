"""Calls by contract: one request message, one result message, and a type for every failure.

The models need pydantic, which is an extra: `portico[pydantic]`. Each name is imported on first use.
"""

from portico._lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__)
