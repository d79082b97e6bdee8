"""Exceptions that Portico raises, for clients and servers.

All are subclasses of `PorticoError`. `RequestTimeout` is also a `TimeoutError`; `ConnectError` and `ConnectionClosed`
are also `ConnectionError`s. Each name is imported on first use.
"""

from portico._lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__)
