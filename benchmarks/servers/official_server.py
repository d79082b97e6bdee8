"""The benchmark's server on the official Python SDK, its high-level class, with logging off below CRITICAL."""

import sys

from mcp.server import MCPServer


def named(server):
    @server.tool()
    def add_sync(a: int, b: int) -> int:
        """Add two numbers in a worker thread."""
        return a + b

    @server.tool()
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
    server = MCPServer("bench", version="1.0.0", log_level="CRITICAL")
    numbered(server, tools) if tools else named(server)
    return server


def serve(server):
    server.run()


if __name__ == "__main__":
    serve(build(int(sys.argv[2]) if sys.argv[1:2] == ["--tools"] else 0))
