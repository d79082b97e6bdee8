"""A server that logs a line for each request when run with `python examples/request_log.py`."""

import logging

from portico import Server
from portico.extend import enable_request_log

server = Server("request-log")


@server.tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    enable_request_log()  # before server.run()
    server.run()
