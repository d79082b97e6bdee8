"""What a server says unasked: its notices, and who is told of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from inspect import isawaitable
from typing import Any

from msgspec import Raw

from portico.client.cache import Cache
from portico.client.requests import ProgressHandler
from portico.client.subscriptions import ChangeListener
from portico.protocol import notifications
from portico.protocol.errors import InvalidParams
from portico.protocol.methods import METHODS

# How many of a server's notices may be in the hands of handlers, and how many of its tasks are followed.
MOST_HANDLED = 1000
MOST_FOLLOWED = 10_000

log = logging.getLogger("portico")

# The public name of what a `log_handler` receives: `level`, `logger` and `data`.
LogMessage = notifications.MessageParams
LogHandler = Callable[[LogMessage], Any]
MessageHandler = Callable[[str, Raw], Any]


class Hearing:
    """Passes on what the server says. `on_tools_changed` is called when there may be other tools."""

    def __init__(
        self,
        cache: Cache,
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
        # At 2026-07-28 listeners hear by streams of their own.
        self._is_modern = is_modern
        self._handling: set[asyncio.Task[None]] = set()
        self._news: dict[str, asyncio.Event] = {}

    def close(self) -> None:
        for task in self._handling:
            task.cancel()

    def hear(self, method: str, params: Raw, on_progress: ProgressHandler | None = None) -> None:
        """Handle a notification. What a handler raises is logged, never passed on."""
        try:
            waiting = [one for one in self._heard(method, params, on_progress) if isawaitable(one)]
        except InvalidParams as failure:
            log.debug("%s: %s", method, failure.message)
        except Exception:
            log.exception("error in %s", method)
        else:
            if waiting:
                self._wait_for(method, waiting)

    def _heard(self, method: str, params: Raw, on_progress: ProgressHandler | None) -> list[Any]:
        """Returns what the handlers returned, which may have to be waited for."""
        told = []
        uri = None
        if method == notifications.PROGRESS and on_progress is not None:
            progress = METHODS[method].decode(params)
            told.append(on_progress(progress.progress, progress.total, progress.message))
        elif method == notifications.MESSAGE and self._log_handler is not None:
            told.append(self._log_handler(METHODS[method].decode(params)))
        elif method == notifications.TOOLS_CHANGED:
            self._on_tools_changed()
        elif method == notifications.RESOURCE_UPDATED:
            uri = METHODS[method].decode(params).uri
        elif method in (notifications.TASK, notifications.TASK_STATUS):
            news = self._news.get(METHODS[method].decode(params).task_id)
            if news is not None:
                news.set()
        self._cache.invalidate(method, uri)
        for listener in list(self.listeners) if not self._is_modern() else ():
            listener.hear(method, params)
        if self._messages is not None:
            told.append(self._messages(method, params))
        return told

    def _wait_for(self, method: str, waiting: list[Any]) -> None:
        """Handlers may be slow, and a server may have much to say: what cannot be kept up with is not handled."""
        if len(self._handling) >= MOST_HANDLED:
            for one in waiting:
                if isinstance(one, Coroutine):
                    one.close()
            return

        async def wait() -> None:
            try:
                for one in waiting:
                    await one
            except Exception:
                log.exception("error in %s", method)

        task = asyncio.get_running_loop().create_task(wait())
        self._handling.add(task)
        task.add_done_callback(self._handling.discard)

    def news_of(self, task: str) -> asyncio.Event:
        """Is set when a task is heard of."""
        if len(self._news) >= MOST_FOLLOWED:
            self._news.clear()
        return self._news.setdefault(task, asyncio.Event())
