"""The upstream of the gateways: `python adding_server.py [PORT]`, on stdio or over HTTP.

It says its sum as text alone: FastMCP's proxy passes on no structured value but an object.
"""

import sys

from portico import Server
from portico.protocol.content import TextContent

server = Server("bench", version="1.0.0")


@server.tool
async def add_async(a: int, b: int) -> TextContent:
    """Add two numbers on the loop."""
    return TextContent(text=str(a + b))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("http", host="127.0.0.1", port=int(sys.argv[1]), show_banner=False)
    else:
        server.run()
