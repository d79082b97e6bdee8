"""JSON Schema: made from types, read, explained, checked, sampled, compared. Nothing else knows its keywords.

The public names are in the stub next to this file. Each is imported on first use.
"""

from portico._lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__)
