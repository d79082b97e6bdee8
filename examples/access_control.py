"""A server with access rules, which are in access.toml."""

from pathlib import Path

from portico import Server
from portico.extend import configure_access

server = Server("desk")
ORDERS = {"A-17": "a lamp", "A-18": "two chairs"}


@server.tool
def find_order(order: str) -> str:
    """Find an order by its number."""
    return ORDERS.get(order, "Unknown order.")


@server.tool
def refund(order: str) -> str:
    """Refund an order."""
    return f"Order {order} was refunded."


@server.tool
def delete_order(order: str) -> str:
    """Delete an order."""
    return f"Order {order} was deleted." if ORDERS.pop(order, None) else "Unknown order."


configure_access(server, Path(__file__).with_name("access.toml"))

if __name__ == "__main__":
    server.run()
