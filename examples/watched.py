"""A server that logs one line for each request, also when it is run as a program: `python examples/watched.py`."""

import logging

from portico import Server
from portico.extend import log_requests

server = Server("watched")


@server.tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    log_requests()  # before the server is run
    server.run()
