"""Types are the contract: what a tool accepts, what it gives, and what a model reads when it gets it wrong.

portico serve examples/orders.py
"""

from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal

from msgspec import Meta

from portico import Server, ToolError

server = Server("orders", version="1.0.0")

Quantity = Annotated[int, Meta(ge=1, le=100, description="How many")]
Country = Annotated[str, Meta(pattern="^[A-Z]{2}$", description="Two letters, such as NO")]


class Delivery(Enum):
    POST = "post"
    COURIER = "courier"


@dataclass
class Address:
    """Where it goes."""

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
    """Order something from the shop.

    The price is that of the day on which the order is placed.

    Args:
        product: The name of the product, as in the catalogue.
        by: The day on which it has to arrive.
    """
    if product not in PRICES:
        raise ToolError(f"There is no product {product!r}. There is: {', '.join(PRICES)}.")
    receipts.append(Receipt(len(receipts) + 1, quantity * PRICES[product]))
    return receipts[-1]


@server.tool(name="catalogue.prices", description="What everything costs.", run_in_thread=False)
def prices() -> dict[str, float]:
    return PRICES


# A schema of somebody else's: passed on as it is, and the function takes all arguments as one dict.
EITHER: dict[str, Any] = {
    "type": "object",
    "properties": {"number": {"type": "integer"}, "email": {"type": "string"}},
    "oneOf": [{"required": ["number"]}, {"required": ["email"]}],
    "additionalProperties": False,
}


@server.tool(input_schema=EITHER)
async def find_order(arguments: dict[str, Any]) -> str:
    """Find an order, by its number or by who placed it."""
    return f"Nothing was found by {next(iter(arguments))}."


if __name__ == "__main__":
    server.run()
