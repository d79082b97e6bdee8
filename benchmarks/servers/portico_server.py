"""The benchmark's server on Portico. `--tools N` registers N generated tools instead of the three named ones."""

import sys

from portico import Server


def named(server):
    @server.tool
    def add_sync(a: int, b: int) -> int:
        """Add two numbers in a worker thread."""
        return a + b

    @server.tool
    async def add_async(a: int, b: int) -> int:
        """Add two numbers on the loop."""
        return a + b

    @server.tool(run_in_thread=False)
    def add_inline(a: int, b: int) -> int:
        """Add two numbers without leaving the loop."""
        return a + b


def numbered(server, count):
    for n in range(count):

        async def add(a: int, b: int) -> int:
            """Add two numbers."""
            return a + b

        server.tool(name=f"tool_{n}")(add)


def build(tools=0):
    server = Server("bench", version="1.0.0")
    numbered(server, tools) if tools else named(server)
    return server


def serve(server):
    server.run()


# Not argparse: its import would be counted in the time from start to first answer.
if __name__ == "__main__":
    serve(build(int(sys.argv[2]) if sys.argv[1:2] == ["--tools"] else 0))
