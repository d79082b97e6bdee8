"""Dependency injection, with a dependency that asks the user."""

from collections.abc import AsyncIterator
from typing import Annotated

from portico import Depends, Server
from portico.compat.mcp_sdk import Elicit

server = Server("bookshop")
STOCK = {"Dune": 7, "Neuromancer": 0}


async def stock() -> AsyncIterator[dict[str, int]]:
    yield STOCK  # for example a connection; code after the yield closes it


def consent(title: str, books: dict[str, int] = Depends(stock)) -> bool | Elicit[bool]:
    if books.get(title):
        return True
    return Elicit(f"{title} is out of stock. Wait two weeks?", bool)


@server.tool
async def order(title: str, agreed: Annotated[bool, Depends(consent)]) -> str:
    """Order a book."""
    return f"Ordered {title}." if agreed else "No order placed."


if __name__ == "__main__":
    server.run()
