"""Mounted servers, with one middleware for all of them.

portico serve examples/mounting.py
"""

import logging
import time
from typing import Any

from portico import Server
from portico.extend import Call, Handler

log = logging.getLogger("mounting")

numbers = Server("numbers", version="1.0.0")
words = Server("words", version="1.0.0")


@numbers.tool(run_in_thread=False)
def double(number: float) -> float:
    """Double a number."""
    return 2 * number


@words.tool(run_in_thread=False)
def shout(text: str) -> str:
    """Convert text to upper case."""
    return text.upper()


def log_duration(handler: Handler) -> Handler:
    """Return a middleware that logs the duration of each call."""

    async def handle(call: Call) -> Any:
        started_at = time.perf_counter()
        try:
            return await handler(call)
        finally:
            log.info("%s took %.1f ms", call.method, 1000 * (time.perf_counter() - started_at))

    return handle


server = Server("mounting", version="1.0.0", middleware=[log_duration])
server.mount(numbers, namespace="numbers")
server.mount(words, namespace="words")

if __name__ == "__main__":
    server.run()
