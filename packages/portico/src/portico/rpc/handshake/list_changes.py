"""List change notifications for the sessions of one handler, with one shared subscription."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from portico.protocol import notifications
from portico.protocol.subscriptions import SubscriptionFilter
from portico.rpc.call import Handler
from portico.rpc.change_relay import ChangeRelay

_LISTS = (notifications.TOOLS_LIST_CHANGED, notifications.PROMPTS_LIST_CHANGED, notifications.RESOURCES_LIST_CHANGED)
_LIST_CHANGE_FILTER = SubscriptionFilter(
    tools_list_changed=True, prompts_list_changed=True, resources_list_changed=True
)

ListVersions = tuple[int, ...]
"How often each list had changed at some point."


class ListChangeNotifier:
    """Notifies reachable sessions. An unreachable session compares versions when it becomes reachable again.

    A change therefore costs nothing for a session whose client has no open stream; such a session stores three numbers.
    """

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._relay: ChangeRelay | None = None
        self._counts = dict.fromkeys(_LISTS, 0)
        self._callbacks: dict[Callable[[str], None], None] = {}

    @property
    def versions(self) -> ListVersions:
        return tuple(self._counts.values())

    @property
    def ready(self) -> bool:
        """Return whether the handler has acknowledged the subscription. From then on no change is missed."""
        return self._relay is None or self._relay.ready.is_set()

    def start(self) -> None:
        """Subscribe to the handler unless already subscribed."""
        if self._relay is None or self._relay.closed:
            self._relay = ChangeRelay(self._handler, _LIST_CHANGE_FILTER, self._on_notification, on_gap=self._on_gap)

    def subscribe(self, callback: Callable[[str], None], since: ListVersions) -> None:
        """Call `callback` for the lists that changed since `since`, and for every later change."""
        for method, before in zip(_LISTS, since, strict=True):
            if self._counts[method] != before:
                callback(method)
        self._callbacks[callback] = None

    def unsubscribe(self, callback: Callable[[str], None]) -> ListVersions:
        """Stop notifying. Return the versions to pass to `subscribe` later."""
        self._callbacks.pop(callback, None)
        return self.versions

    def close(self) -> None:
        self._callbacks.clear()
        if self._relay is not None:
            self._relay.close()
            self._relay = None

    def _on_notification(self, method: str, params: Any) -> None:
        if method in self._counts:
            self._counts[method] += 1
            # A copy: a callback may unsubscribe its session, for example when the client's stream turns out to
            # be closed.
            for callback in list(self._callbacks):
                callback(method)

    def _on_gap(self) -> None:
        for method in _LISTS:
            # Changes during the gap are unknown, so every list counts as changed. A superfluous notification is
            # harmless.
            self._on_notification(method, None)
