"""A server that logs one line for each request, also when it is run as a program: `python examples/watched.py`."""

import logging

from portico import Server
from portico.extend import enable_request_log

server = Server("watched")


@server.tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    enable_request_log()  # before the server is run
    server.run()
