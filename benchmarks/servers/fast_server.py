"""The benchmark's server on FastMCP: no banner; peers.py switches its logging off through its own settings."""

import sys

from fastmcp import FastMCP


def named(server):
    @server.tool
    def add_sync(a: int, b: int) -> int:
        """Add two numbers in a worker thread."""
        return a + b

    @server.tool
    async def add_async(a: int, b: int) -> int:
        """Add two numbers on the loop."""
        return a + b


def numbered(server, count):
    for n in range(count):

        async def add(a: int, b: int) -> int:
            """Add two numbers."""
            return a + b

        server.tool(name=f"tool_{n}")(add)


def build(tools=0):
    server = FastMCP("bench", version="1.0.0")
    numbered(server, tools) if tools else named(server)
    return server


def serve(server):
    server.run(show_banner=False)


if __name__ == "__main__":
    serve(build(int(sys.argv[2]) if sys.argv[1:2] == ["--tools"] else 0))
