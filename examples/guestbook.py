"""A service built on portico.extend: a database, tools generated from a table, and a middleware.

portico serve examples/guestbook.py
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from msgspec import Struct

from portico import Server, Service, Tool, ToolError, tool
from portico.errors import InvalidParams, StoreError
from portico.extend import Call, Component, Database, Handler, Transaction
from portico.types import ToolAnnotations

ORDERS = {"newest": "id desc", "oldest": "id", "by_name": "name, id"}


class Entry(Struct):
    name: str
    text: str


class Guestbook(Service):
    """Entries written by visitors."""

    name = "guestbook"

    def __init__(self, store: str) -> None:
        super().__init__()
        self._database = Database(store)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        async with self._database:
            await self._database.write(create)
            yield

    def components(self) -> Iterator[Component]:
        yield from super().components()
        for name, order in ORDERS.items():
            read = partial(self._read, order)
            about = f"List the entries of the guest book, {name.replace('_', ' ')}."
            yield Tool(read, name=name, description=about, annotations=ToolAnnotations(read_only_hint=True))

    @tool
    async def sign(self, name: str, text: str) -> str:
        """Sign the guest book."""
        try:
            await self._database.write(
                lambda tx: tx.execute(
                    "insert into entries (name, text) values (:name, :text)", {"name": name, "text": text}
                )
            )
        except StoreError as failure:
            raise ToolError("The guest book is full.", error_type="StoreError", retryable=True) from failure
        return f"Thank you, {name}."

    async def _read(self, order: str) -> list[Entry]:
        return await self._database.read(
            lambda tx: tx.fetch_all(Entry, f"select name, text from entries order by {order}")
        )


def create(tx: Transaction) -> None:
    tx.execute_script(
        "create table if not exists entries (id integer primary key, name text not null, text text not null)"
    )


def reject_links(handler: Handler) -> Handler:
    """Return a middleware that rejects calls whose parameters contain a link."""

    async def handle(call: Call) -> Any:
        if call.method == "tools/call" and b"http" in bytes(call.params):
            raise InvalidParams("No links, please.")
        return await handler(call)

    return handle


server = Server("guestbook", version="1.0.0", middleware=[reject_links])
server.add(Guestbook(":memory:"))

if __name__ == "__main__":
    server.run()
