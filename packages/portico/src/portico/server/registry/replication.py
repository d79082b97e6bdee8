"""Replication of added and removed components to all processes that serve a server's clients.

Processes send each other names, and each looks a name up in the table that its own code filled with `server.declare`
before serving. Names from outside are never looked up in a module.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from portico.protocol.errors import UsageError

if TYPE_CHECKING:
    from portico.server.server import Server

log = logging.getLogger("portico")

Broadcast = Callable[[str, str | None], None]

# Messages between processes, in addition to notifications.
COMPONENT_ADDED, COMPONENT_REMOVED = "portico/added", "portico/removed"
METHODS = frozenset({COMPONENT_ADDED, COMPONENT_REMOVED})

# Set while a replicated change is applied. Every process notifies its own clients, so the
# notifications that the change causes must not be broadcast as well.
_following: ContextVar[bool] = ContextVar("following", default=False)


def declared_name(component: Any) -> str:
    """Return the name under which processes know a component. Raises UsageError for a component without a name."""
    for attribute in ("uri", "uri_template", "name", "__name__"):
        name = getattr(component, attribute, None)
        if isinstance(name, str) and name:
            return name
    raise UsageError(f"declare() requires a component with a name, got {type(component).__name__}")


def find_declared_name(declared: Mapping[str, Any], component: Any) -> str:
    """Return the name under which a component was declared. Raises UsageError if it was not."""
    for name, item in declared.items():
        if item is component:
            return name
    raise UsageError(
        f"cannot replicate {component!r}: declare it with server.declare(component) before the server runs, in "
        "every process"
    )


def warn_if_local_only(broadcast: Broadcast | None, component: Any) -> None:
    """Warn that a component was added in this process only, if there are others."""
    if broadcast is not None and not _following.get():
        log.warning(
            "%s was added in one of several serving processes only: to add it in all of them, call "
            "server.declare(…) at startup and server.add(…, replicate=True)",
            getattr(component, "name", "a completion"),
        )


def apply_remote_change(server: Server, method: str, name: str | None) -> None:
    """Apply a change of another process to a component that this process has declared."""
    # Security: the message comes from outside this process, so it can only select among components
    # that its own code declared.
    component = server.declared.get(name or "")
    if component is None:
        log.warning("ignored a change from another process: %r is not declared in this one", name)
        return
    with _suppress_replication():
        try:
            if method == COMPONENT_ADDED:
                server.add(component)
            else:
                server.remove(name or "")
        # The component may have been added here already, for example by a request that arrived
        # earlier.
        except UsageError as mistake:
            log.warning("cannot apply a change from another process: %s", mistake)


@contextmanager
def replicate_as(broadcast: Broadcast | None, method: str, name: str) -> Iterator[None]:
    """Replicate the changes made in the context as one message.

    Each process notifies its own clients, so the single notifications are not broadcast.
    """
    with _suppress_replication():
        yield
    if broadcast is not None:
        broadcast(method, name)


@contextmanager
def _suppress_replication() -> Iterator[None]:
    token = _following.set(True)
    try:
        yield
    finally:
        _following.reset(token)


def broadcast_unless_replicating(broadcast: Broadcast) -> Broadcast:
    """Return a broadcast function that is silent during replication: other processes know the change already."""

    def broadcast_local(method: str, name: str | None) -> None:
        if not _following.get():
            broadcast(method, name)

    return broadcast_local
