"""The tool of the backend table, the same for every framework: it reads and writes Redis and calls an HTTP API."""

import os

import httpx
import redis.asyncio

# Created on first use, because each worker process has its own event loop.
_clients = {}


def clients():
    if not _clients:
        _clients["redis"] = redis.asyncio.Redis.from_url(os.environ["BACKEND_REDIS"], max_connections=64)
        _clients["http"] = httpx.AsyncClient(base_url=os.environ["BACKEND_API"])
    return _clients["redis"], _clients["http"]


async def add_with_backends(a: int, b: int) -> int:
    """Add two numbers, after a lookup in Redis and one in an HTTP API."""
    cache, api = clients()
    await cache.set(f"sum:{a % 1000}", a + b)
    stored = int(await cache.get(f"sum:{a % 1000}"))
    response = await api.get("/price")
    return a + b if stored and response.json()["price"] else 0
