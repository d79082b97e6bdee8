"""Work items: what an assistant plans with. Not the tasks of the protocol, which are calls that take long.

`Tasks` is the service. It is imported when it is first used: the rest of this folder works without a server.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from portico.services.tasks.service import Tasks

__all__ = ["Tasks"]


def __getattr__(name: str) -> Any:
    if name != "Tasks":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module("portico.services.tasks.service"), name)
    globals()[name] = value
    return value
