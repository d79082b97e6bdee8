"""Components that are added to a server, or removed, in all of the processes that serve its clients.

Other processes name a component, and each looks the name up in a table that its own code has filled before it served:
`server.declare`. No name that comes from outside is ever looked up in a module.
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

Spread = Callable[[str, str | None], None]

# What processes tell each other besides notifications.
ADDED, REMOVED = "portico/added", "portico/removed"
METHODS = frozenset({ADDED, REMOVED})

_following: ContextVar[bool] = ContextVar("following", default=False)


def declared_name(component: Any) -> str:
    """Return the name that processes know a component by. Raises UsageError for one without a name."""
    for attribute in ("uri", "uri_template", "name", "__name__"):
        name = getattr(component, attribute, None)
        if isinstance(name, str) and name:
            return name
    raise UsageError(f"declare() needs a component with a name, got {type(component).__name__}")


def name_of(declared: Mapping[str, Any], component: Any) -> str:
    """Return the name by which a component was declared. Raises UsageError if it was not."""
    for name, known in declared.items():
        if known is component:
            return name
    raise UsageError(
        f"{component!r} cannot be added everywhere: declare it before the server runs, in every process: "
        "server.declare(component)"
    )


def note_alone(spread: Spread | None, component: Any) -> None:
    """Something was added here: where there are other processes, the author may have meant all of them."""
    if spread is not None and not _following.get():
        log.warning(
            "%s was added while several processes serve, and is in one of them: server.declare(…) at the start and "
            "server.add(…, everywhere=True) add it in all",
            getattr(component, "name", "a completion"),
        )


def follow(server: Server, method: str, name: str | None) -> None:
    """Do what another process has done, with a component that this process has declared."""
    component = server.declared.get(name or "")
    if component is None:
        log.warning("ignored a change by another process: %r is not declared in this one", name)
        return
    with _quietly():
        try:
            if method == ADDED:
                server.add(component)
            else:
                server.remove(name or "")
        except UsageError as mistake:
            log.warning("what another process has changed stays as it is here: %s", mistake)


@contextmanager
def told_as(spread: Spread | None, method: str, name: str) -> Iterator[None]:
    """What is done here is told as a whole: each process tells its own clients what has changed by it."""
    with _quietly():
        yield
    if spread is not None:
        spread(method, name)


@contextmanager
def _quietly() -> Iterator[None]:
    token = _following.set(True)
    try:
        yield
    finally:
        _following.reset(token)


def unless_following(spread: Spread) -> Spread:
    """What is done after another process is news to none."""

    def tell(method: str, name: str | None) -> None:
        if not _following.get():
            spread(method, name)

    return tell
