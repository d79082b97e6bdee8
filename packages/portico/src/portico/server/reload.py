"""Replacement of a running Server: connections stay open, and subscribers are notified."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from portico.protocol.errors import UsageError
from portico.server.server import Server


async def replace_server(server: Server, replacement: Server) -> Callable[[], Awaitable[None]]:
    """Replace the contents of `server` with the contents of `replacement`. Return a function that ends the previous
    lifespans.

    Transports, sessions and subscribers hold a reference to `server`, so the object stays and its state is exchanged.
    Calls in progress finish with the previous state.
    """
    if type(server) is not type(replacement):
        raise UsageError(f"a {type(server).__name__} cannot become a {type(replacement).__name__} while it is served")
    lifespans = server.lifespans
    # Enter the new lifespans as often as the old ones: every transport leaves once for each time it entered.
    users = lifespans.active_count
    for _ in range(users):
        await replacement.lifespans.enter()
    # Existing subscribers receive the replacement's notifications, and used request states stay used.
    vars(replacement.subscriptions).update(vars(server.subscriptions))
    replacement.used_states = server.used_states
    replacement.custom_routes, replacement.on_http_start = server.custom_routes, server.on_http_start
    replacement.store, replacement.data_dir = replacement.store or server.store, replacement.data_dir or server.data_dir
    _keep_mirrored(server, replacement)
    server.__dict__ = replacement.__dict__
    server._lists_changed()

    async def end() -> None:
        for _ in range(users):
            await lifespans.leave()

    return end


def _keep_mirrored(server: Server, other: Server) -> None:
    """Update the header table in place, because transports hold a reference to it."""
    mirrored, fresh = server.registry.header_params, dict(other.registry.header_params)
    mirrored.clear()
    mirrored.update(fresh)
    other.registry.header_params = mirrored
