"""Components that are added to a server, or removed, in all of the processes that serve its clients.

Each of them runs the same code, so a component is named by its place there: `module:name`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from portico.wire.errors import UsageError

if TYPE_CHECKING:
    from portico.server.server import Server

log = logging.getLogger("portico")

Spread = Callable[[str, str | None], None]

# What processes tell each other besides notifications.
ADDED, REMOVED = "portico/added", "portico/removed"

_following: ContextVar[bool] = ContextVar("following", default=False)


def name_of(component: Any) -> str:
    """Its place in the code. Raises UsageError where another process would not find it."""
    for name in (getattr(component, "__module__", ""), type(component).__module__, "__main__"):
        module = sys.modules.get(name)
        known = vars(module).items() if module is not None else ()
        found = next((key for key, value in known if value is component), None)
        if found is not None:
            return f"{name}:{found}"
    raise UsageError(f"{component!r} cannot be added everywhere: it stands in no module, where others would find it")


def note_alone(spread: Spread | None, component: Any) -> None:
    """Something was added here: where there are other processes, the author may have meant all of them."""
    if spread is not None and not _following.get():
        log.warning(
            "%s was added while several processes serve, and is in one of them: server.add(…, everywhere=True) adds it "
            "in all",
            getattr(component, "name", "a completion"),
        )


def component_at(name: str) -> Any:
    module, _, inner = name.partition(":")
    found = getattr(sys.modules.get(module), inner, None)
    if found is None:
        raise UsageError(f"there is no {name} in this process")
    return found


def follow(server: Server, method: str, name: str | None) -> None:
    """Do what another process has done."""
    with _quietly():
        try:
            if method == ADDED:
                server.add(component_at(name or ""))
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
