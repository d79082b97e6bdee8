"""A server whose tools are not for everybody: see access.toml beside it."""

from pathlib import Path

from portico import Server
from portico.extend import configure_access

server = Server("desk")
ORDERS = {"A-17": "a lamp", "A-18": "two chairs"}


@server.tool
def find_order(order: str) -> str:
    """What an order is for."""
    return ORDERS.get(order, "There is no such order.")


@server.tool
def refund(order: str) -> str:
    """Pay an order back."""
    return f"The order {order} was paid back."


@server.tool
def delete_order(order: str) -> str:
    """Forget an order."""
    return f"The order {order} is forgotten." if ORDERS.pop(order, None) else "There is no such order."


configure_access(server, Path(__file__).with_name("access.toml"))

if __name__ == "__main__":
    server.run()
