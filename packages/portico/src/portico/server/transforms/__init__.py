"""Transforms: changes to the components of a server, as a whole or tool by tool."""

from portico._lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__)
