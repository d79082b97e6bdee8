"""Changes of lists, as the sessions of one handler hear of them: with one listener for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from portico.protocol import notifications
from portico.protocol.subscriptions import Filter
from portico.rpc.call import Handler
from portico.rpc.change_relay import ChangeRelay

_LISTS = (notifications.TOOLS_CHANGED, notifications.PROMPTS_CHANGED, notifications.RESOURCES_CHANGED)
_WANTED = Filter(tools_list_changed=True, prompts_list_changed=True, resources_list_changed=True)

Seen = tuple[int, ...]
"""How often each list had changed at some moment."""


class ListChanges:
    """Tells those who can be told; who cannot be told now compares, when it can, what it has seen.

    So a change costs nothing for each session whose client has no stream open, and such a session keeps three numbers
    for whatever it misses.
    """

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._relay: ChangeRelay | None = None
        self._counts = dict.fromkeys(_LISTS, 0)
        self._told: dict[Callable[[str], None], None] = {}

    @property
    def seen(self) -> Seen:
        return tuple(self._counts.values())

    @property
    def settled(self) -> bool:
        """Whether the handler has said what it tells of: from then on nothing is missed."""
        return self._relay is None or self._relay.settled.is_set()

    def begin(self) -> None:
        """Listen, unless that is being done already."""
        if self._relay is None or self._relay.ended:
            self._relay = ChangeRelay(self._handler, _WANTED, self._hear, missed=self._missed)

    def join(self, tell: Callable[[str], None], seen: Seen) -> None:
        """Tell of what has changed since, and from now on."""
        for method, before in zip(_LISTS, seen, strict=True):
            if self._counts[method] != before:
                tell(method)
        self._told[tell] = None

    def leave(self, tell: Callable[[str], None]) -> Seen:
        """Returns what `join` takes when it can be told again."""
        self._told.pop(tell, None)
        return self.seen

    def end(self) -> None:
        self._told.clear()
        if self._relay is not None:
            self._relay.end()
            self._relay = None

    def _hear(self, method: str, params: Any) -> None:
        if method in self._counts:
            self._counts[method] += 1
            for tell in list(self._told):
                tell(method)

    def _missed(self) -> None:
        for method in _LISTS:
            self._hear(method, None)
