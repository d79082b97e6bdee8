"""Types as the contract of a tool: arguments, result and error messages.

portico serve examples/orders.py
"""

from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal

from msgspec import Meta

from portico import Server, ToolError

server = Server("orders", version="1.0.0")

Quantity = Annotated[int, Meta(ge=1, le=100, description="Number of items")]
Country = Annotated[str, Meta(pattern="^[A-Z]{2}$", description="ISO 3166 code of two letters, such as NO")]


class Delivery(Enum):
    POST = "post"
    COURIER = "courier"


@dataclass
class Address:
    """Delivery address."""

    street: str
    city: str
    country: Country = "NO"


@dataclass
class Receipt:
    number: int
    total: float


PRICES = {"shirt": 20.0, "scarf": 12.5}
receipts: list[Receipt] = []


@server.tool(
    title="Place an order",
    version="1.2.0",
    annotations={"destructiveHint": False, "openWorldHint": False},
    aliases=["buy"],
)
async def place_order(
    product: str,
    quantity: Quantity,
    address: Address,
    size: Literal["small", "medium", "large"] = "medium",
    delivery: Delivery = Delivery.POST,
    by: date | None = None,
) -> Receipt:
    """Place an order.

    The price of the day applies.

    Args:
        product: Name of the product in the catalogue.
        by: Latest delivery date.
    """
    if product not in PRICES:
        raise ToolError(f"Unknown product {product!r}: expected one of {', '.join(PRICES)}.")
    receipts.append(Receipt(len(receipts) + 1, quantity * PRICES[product]))
    return receipts[-1]


@server.tool(name="catalogue.prices", description="List the price of every product.", run_in_thread=False)
def prices() -> dict[str, float]:
    return PRICES


# An explicit schema: listed unchanged, and the function receives all arguments as one dict.
EITHER: dict[str, Any] = {
    "type": "object",
    "properties": {"number": {"type": "integer"}, "email": {"type": "string"}},
    "oneOf": [{"required": ["number"]}, {"required": ["email"]}],
    "additionalProperties": False,
}


@server.tool(input_schema=EITHER)
async def find_order(arguments: dict[str, Any]) -> str:
    """Find an order by its number or the customer's email."""
    return f"No order with this {next(iter(arguments))}."


if __name__ == "__main__":
    server.run()
