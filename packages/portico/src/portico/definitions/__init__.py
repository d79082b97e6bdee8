"""Definitions of tools, prompts, resources and templates as servers list them.

Read them, compare them, make hidden characters in them visible, and pin them in lock files.
"""

from portico._lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__)
