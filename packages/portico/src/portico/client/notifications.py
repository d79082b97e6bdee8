"""Dispatch of server notifications to handlers, listeners and the cache."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from inspect import isawaitable
from typing import Any

from msgspec import Raw

from portico.caching import LruCache
from portico.client.cache import ResponseCache
from portico.client.requests import ProgressHandler
from portico.client.subscriptions import ChangeListener
from portico.protocol import notifications
from portico.protocol.errors import InvalidParams
from portico.protocol.methods import METHODS
from portico.rpc.supervision import BackgroundTasks

# Limits for a server that sends faster than handlers work: pending notifications, and tasks with a waiter.
MAX_PENDING_HANDLERS = 1000
MAX_FOLLOWED_TASKS = 10_000

log = logging.getLogger("portico")

# The public name of the message that a `log_handler` receives: `level`, `logger` and `data`.
LogMessage = notifications.LogMessageParams
LogHandler = Callable[[LogMessage], Any]
MessageHandler = Callable[[str, Raw], Any]


class NotificationDispatcher:
    """Dispatches server notifications. `on_tools_changed` is called when the tool list may have changed."""

    def __init__(
        self,
        cache: ResponseCache,
        log_handler: LogHandler | None,
        message_handler: MessageHandler | None,
        on_tools_changed: Callable[[], None],
        is_modern: Callable[[], bool],
    ) -> None:
        self.listeners: set[ChangeListener] = set()
        self._cache = cache
        self._log_handler = log_handler
        self._messages = message_handler
        self._on_tools_changed = on_tools_changed
        # At 2026-07-28 each listener receives notifications on its own stream.
        self._is_modern = is_modern
        self._handling = BackgroundTasks()
        self._news: LruCache[str, asyncio.Event] = LruCache(MAX_FOLLOWED_TASKS)

    def close(self) -> None:
        self._handling.cancel()

    def dispatch(self, method: str, params: Raw, on_progress: ProgressHandler | None = None) -> None:
        """Handle a notification. Exceptions of handlers are logged and never propagate to the connection."""
        try:
            waiting = [item for item in self._call_handlers(method, params, on_progress) if isawaitable(item)]
        except InvalidParams as failure:
            log.debug("%s: %s", method, failure.message)
        except Exception:
            log.exception("error in %s", method)
        else:
            if waiting:
                self._wait_for(method, waiting)

    def _call_handlers(self, method: str, params: Raw, on_progress: ProgressHandler | None) -> list[Any]:
        """Call the handlers and return their results, some of which may be awaitable."""
        handlers = []
        uri = None
        if method == notifications.PROGRESS and on_progress is not None:
            progress = METHODS[method].decode(params)
            handlers.append(on_progress(progress.progress, progress.total, progress.message))
        elif method == notifications.LOG_MESSAGE and self._log_handler is not None:
            handlers.append(self._log_handler(METHODS[method].decode(params)))
        elif method == notifications.TOOLS_LIST_CHANGED:
            self._on_tools_changed()
        elif method == notifications.RESOURCE_UPDATED:
            uri = METHODS[method].decode(params).uri
        elif method in (notifications.TASK_UPDATED, notifications.TASK_STATUS):
            news = self._news.get(METHODS[method].decode(params).task_id)
            if news is not None:
                news.set()
        # Before handlers run: a handler that fetches the list again must not receive the cached one.
        self._cache.invalidate(method, uri)
        for listener in list(self.listeners) if not self._is_modern() else ():
            listener.handle_notification(method, params)
        if self._messages is not None:
            handlers.append(self._messages(method, params))
        return handlers

    def _wait_for(self, method: str, waiting: list[Any]) -> None:
        """Await handlers in the background, and drop notifications when too many are pending."""
        if len(self._handling) >= MAX_PENDING_HANDLERS:
            for item in waiting:
                # An unawaited coroutine would log a warning when it is collected.
                if isinstance(item, Coroutine):
                    item.close()
            return

        async def wait() -> None:
            try:
                for item in waiting:
                    await item
            except Exception:
                log.exception("error in %s", method)

        self._handling.start(wait())

    def task_event(self, task: str) -> asyncio.Event:
        """Return the event that is set when a notification about this task arrives."""
        return self._news.setdefault(task, asyncio.Event())
