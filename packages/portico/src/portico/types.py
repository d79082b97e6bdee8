"""Protocol types in the form of the latest version: content blocks, definitions, results, capabilities.

Each name is imported on first use.
"""

from portico._lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__)
