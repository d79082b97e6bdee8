"""One server, every way to serve it.

portico serve examples/served.py
portico serve examples/served.py --transport http
uvicorn --app-dir examples served:app
"""

import sys

from portico import Server

server = Server("served", version="1.0.0")


@server.tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


app = server.http_app()


def main() -> None:
    """`python examples/served.py http` serves over HTTP, without the word on stdio."""
    if "http" in sys.argv:
        server.run("http", host="127.0.0.1", port=8080)
    server.run()


def together() -> object:
    """The same server as a part of a FastAPI application."""
    from fastapi import FastAPI

    tools = server.http_app()
    api = FastAPI(lifespan=tools.lifespan)
    api.mount("/tools", tools)
    return api


if __name__ == "__main__":
    main()
