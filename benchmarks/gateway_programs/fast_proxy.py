"""The benchmark's proxy on FastMCP: `python fast_proxy.py PORT URL`. Its own server, without its logs."""

import sys

from fastmcp.server import create_proxy

if __name__ == "__main__":
    port, url = sys.argv[1:]
    create_proxy(url).run(transport="http", host="127.0.0.1", port=int(port), path="/mcp", show_banner=False)
