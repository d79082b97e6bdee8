"""A FastAPI application as an MCP server: each operation is a tool, called in this process.

Needs fastapi and portico[openapi].
"""

from __future__ import annotations

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from portico import Server


class Order(BaseModel):
    customer: str
    items: list[str]


app = FastAPI(title="Orders", version="1.0.0")
ORDERS: dict[int, Order] = {1: Order(customer="Ada", items=["ink"])}


@app.get("/orders/{number}", tags=["orders"])
def read_order(number: int) -> Order:
    """Read an order."""
    if number not in ORDERS:
        raise HTTPException(404, f"Unknown order {number}.")
    return ORDERS[number]


@app.post("/orders", tags=["orders"])
def place_order(order: Order) -> dict[str, int]:
    """Place an order and return its number."""
    ORDERS[len(ORDERS) + 1] = order
    return {"number": len(ORDERS)}


server = Server.from_fastapi(app, tags=["orders"])

if __name__ == "__main__":
    server.run()
