"""Browser console: inspect, call and monitor a server. A dedicated Server provides the page's API."""

from portico._lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__)
