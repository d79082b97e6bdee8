"""A Server that becomes another one while it is served: connections stay, and those who listen are told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from portico.protocol.errors import UsageError
from portico.server.server import Server


async def become(server: Server, other: Server) -> Callable[[], Awaitable[None]]:
    """From now on the first answers as the second does. Gives what ends the life that it had before.

    Everything that holds the first one (the doors, sessions, listeners) goes on with it: it is the same object, and
    all that it is made of is the other's. Calls that are under way end with what they began with.
    """
    if type(server) is not type(other):
        raise UsageError(f"a {type(server).__name__} cannot become a {type(other).__name__} while it is served")
    lifespans = server.lifespans
    users = lifespans.users
    for _ in range(users):
        await other.lifespans.enter()
    # Who listens hears of the other's changes, and what was used once stays used.
    vars(other.subscriptions).update(vars(server.subscriptions))
    other.spent = server.spent
    other.pages, other.on_http = server.pages, server.on_http
    other.store, other.data = other.store or server.store, other.data or server.data
    _keep_mirrored(server, other)
    server.__dict__ = other.__dict__
    server._lists_changed()

    async def end() -> None:
        for _ in range(users):
            await lifespans.leave()

    return end


def _keep_mirrored(server: Server, other: Server) -> None:
    """A transport holds the table itself."""
    kept, fresh = server.registry.mirrored, dict(other.registry.mirrored)
    kept.clear()
    kept.update(fresh)
    other.registry.mirrored = kept
