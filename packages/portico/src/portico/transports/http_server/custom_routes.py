"""Pages beside the endpoint: documents, forms and whatever else is asked for by other paths than its own.

A page is a function from a Request to an Answer. It is matched by method and path, exactly or by how the path begins,
after the checks of host and origin that everything has to pass. It is for everybody, unless it is `guarded` or has a
judge of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence, Set

from msgspec import Struct

from portico.protocol.errors import UsageError
from portico.transports.http_server.messages import TEXT, Answer, Request, ResponseWriter

log = logging.getLogger("portico")

Page = Callable[[Request], Awaitable[Answer]]
"""Answers a request for a page."""

Streamed = Callable[[Request, ResponseWriter], None]
"""The same into a writer: for what is said bit by bit, and for as long as it takes."""

# What is posted to a page is a form, or a small document.
LONGEST_FORM = 64 * 1024
MOST_AT_ONCE = 256
LONGEST_SECONDS = 60.0


class PageRoute(Struct, frozen=True):
    """Where a page is. With `prefix` it is everything below the path, which then ends with a slash."""

    method: str
    path: str
    page: Page | None = None
    prefix: bool = False
    # Whether it needs a principal, as the endpoint does.
    guarded: bool = False
    # Why a request is not let in, before its body is read; None if it is. Such a page knows its own visitors.
    judge: Callable[[Request], Answer | None] | None = None
    # In place of `page`.
    streamed: Streamed | None = None
    # Combines the bodies of all workers of this machine into one, that of the worker that answers first. Each worker
    # checks the principal again.
    merge: Callable[[Sequence[bytes]], bytes] | None = None


class WebPages:
    """The pages of one endpoint, and those that are being made."""

    def __init__(
        self, routes: Iterable[PageRoute], own: Sequence[PageRoute] = (), taken: Set[tuple[str, str]] = frozenset()
    ) -> None:
        """`own` are those of the transport, which no other shadows, nor what is `taken`, by method and path."""
        self._exact: dict[tuple[str, str], PageRoute] = {}
        self._prefixes: list[PageRoute] = []
        self._running: set[asyncio.Task[None]] = set()
        for route in own:
            self._add(route)
        # Clients post to "/", and people may be shown a page there.
        paths = {path for _, path in taken if path != "/"}
        for route in routes:
            key = (route.method, route.path)
            if key in taken or route.path in paths or self.find(*key) in own:
                raise UsageError(f"a page cannot be at {route.path}: something else is there")
            self._add(route)

    def _add(self, route: PageRoute) -> None:
        if not route.path.startswith("/") or (route.prefix and not route.path.endswith("/")):
            raise UsageError(f"a page cannot be at {route.path!r}: it begins with /, and all below it ends with one")
        if (route.method, route.path) in self._exact:
            raise UsageError(f"a page cannot be at {route.path}: there is another one")
        if route.prefix:
            self._prefixes.append(route)
            # The longest one that fits is meant.
            self._prefixes.sort(key=lambda one: -len(one.path))
        else:
            self._exact[route.method, route.path] = route

    def find(self, method: str, path: str) -> PageRoute | None:
        found = self._exact.get((method, path))
        if found is not None or not self._prefixes:
            return found
        below = (one for one in self._prefixes if one.method == method and path.startswith(one.path))
        return next(below, None)

    def methods(self, path: str) -> set[str]:
        """How something at this path can be asked for."""
        exact = {method for method, known in self._exact if known == path}
        return exact | {one.method for one in self._prefixes if path.startswith(one.path)}

    def answer(self, route: PageRoute, request: Request, writer: ResponseWriter) -> None:
        """Begin to make a page. Who goes away before it is there ends it."""
        if route.streamed is not None:
            route.streamed(request, writer)
        elif len(request.body) > LONGEST_FORM:
            writer.answer(Answer(413, TEXT, b"Content too large\n"))
        elif len(self._running) >= MOST_AT_ONCE:
            writer.answer(Answer(503, (*TEXT, (b"retry-after", b"1")), b"Service unavailable\n"))
        else:
            task = asyncio.get_running_loop().create_task(_make(route, request, writer))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            writer.on_close = task.cancel  # type: ignore[assignment]

    async def close(self) -> None:
        """End the pages that are still being made."""
        running = list(self._running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=LONGEST_SECONDS)


async def _make(route: PageRoute, request: Request, writer: ResponseWriter) -> None:
    try:
        async with asyncio.timeout(LONGEST_SECONDS):
            assert route.page is not None
            answer = await route.page(request)
    except TimeoutError:
        answer = Answer(504, TEXT, b"Gateway timeout\n")
    except Exception:
        log.exception("error while answering %s %s", request.method, request.path)
        answer = Answer(500, TEXT, b"Internal error\n")
    if request.cors:
        answer = Answer(answer.status, (*answer.headers, *request.cors), answer.body)
    writer.on_close = None
    writer.answer(answer)
