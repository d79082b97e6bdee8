"""One server on every transport.

portico serve examples/serving.py
portico serve examples/serving.py --transport http
uvicorn --app-dir examples serving:app
"""

import sys

from portico import Server

server = Server("serving", version="1.0.0")


@server.tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


app = server.http_app()


def main() -> None:
    """`python examples/serving.py http` serves over HTTP; without the argument it serves on stdio."""
    if "http" in sys.argv:
        server.run("http", host="127.0.0.1", port=8080)
    server.run()


def mount_in_fastapi() -> object:
    """Mount the server in a FastAPI application."""
    from fastapi import FastAPI

    tools = server.http_app()
    api = FastAPI(lifespan=tools.lifespan)
    api.mount("/tools", tools)
    return api


if __name__ == "__main__":
    main()
