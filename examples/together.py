"""Servers in servers, and a middleware around all of it.

portico serve examples/together.py
"""

import logging
import time
from typing import Any

from portico import Server
from portico.extend import Call, Handler

log = logging.getLogger("together")

numbers = Server("numbers", version="1.0.0")
words = Server("words", version="1.0.0")


@numbers.tool(run_in_thread=False)
def double(number: float) -> float:
    """Twice a number."""
    return 2 * number


@words.tool(run_in_thread=False)
def shout(text: str) -> str:
    """The same, louder."""
    return text.upper()


def timed(handler: Handler) -> Handler:
    """A middleware: a function from Handler to Handler."""

    async def handle(call: Call) -> Any:
        began = time.perf_counter()
        try:
            return await handler(call)
        finally:
            log.info("%s took %.1f ms", call.method, 1000 * (time.perf_counter() - began))

    return handle


server = Server("together", version="1.0.0", middleware=[timed])
server.mount(numbers, namespace="numbers")
server.mount(words, namespace="words")

if __name__ == "__main__":
    server.run()
