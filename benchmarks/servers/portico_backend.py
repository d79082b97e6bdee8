"""The backend tool on Portico's own listener: `portico_backend.py PORT WORKERS`."""

import sys

from backend_tool import add_with_backends

from portico import Server

server = Server("backend", version="1.0.0")
server.tool(add_with_backends)

if __name__ == "__main__":
    server.run("http", host="127.0.0.1", port=int(sys.argv[1]), workers=int(sys.argv[2]), show_banner=False)
