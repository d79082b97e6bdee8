"""What `portico serve` serves: a Server, by the name of a module or a file."""

from __future__ import annotations

from portico.server.server import Server
from portico.transport import modules
from portico.wire.errors import UsageError


def load(target: str) -> Server:
    """The Server a target names. Without an object it is `server`, or the only Server in the module."""
    # A client would take this for a command; here it can only be a path.
    if not modules.is_named(target) and ("/" in target or "\\" in target):
        raise UsageError(f"there is no file {target}")
    found = modules.load(target)
    if not isinstance(found, Server):
        raise UsageError(f"{target} is not a Server")
    return found
