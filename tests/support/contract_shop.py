"""A shop server with every kind of tool."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from msgspec import Struct

from portico import Context, Image, Server, ToolError
from portico_services.contracts.service import typed_error

PIXEL = b"\x89PNG"


class Address(Struct):
    """Where something goes."""

    street: Annotated[str, "The street"]
    city: Annotated[str, "The city"]
    next: Annotated[Address | None, "Where it goes from there"] = None


class Receipt(Struct):
    """What was bought."""

    number: Annotated[int, "Counts up"]
    total: Annotated[float, "In the shop's currency"]
    to: Annotated[Address | None, "Where it goes"] = None


def make() -> Server:
    server = Server("shop", version="1.4.0", instructions="Ask before you buy.")

    @server.tool(
        version="2.1.0", annotations={"readOnlyHint": False, "openWorldHint": False}, aliases=["shop.purchase"]
    )
    async def buy(
        product: Annotated[str, "What to buy"],
        quantity: Annotated[int, "How many"] = 1,
        size: Annotated[Literal["small", "large"], "Which size"] = "small",
        to: Annotated[Address | None, "Where it goes"] = None,
    ) -> Receipt:
        """Buy something."""
        if product == "sock":
            details = {"product": "sock"}
            raise ToolError("There are no socks.", error_type="ResourceNotFound", details=details, retryable=True)
        return Receipt(1, quantity * 2.5, to)

    @server.tool(annotations={"readOnlyHint": True})
    async def count() -> int:
        """How many things there are."""
        return 3

    @server.tool(annotations={"readOnlyHint": True}, structured_output=False)
    async def advice(about: Annotated[str, "What about"] = "everything") -> str:
        """Advice, in words."""
        return f"Buy {about}."

    @server.tool
    async def picture() -> list[Any]:
        """A picture, and words about it."""
        return ["A picture:", Image(data=PIXEL, format="png")]

    @server.tool
    async def crash() -> str:
        """Raise an unexpected exception."""
        raise RuntimeError("/etc/secret")

    @server.tool
    async def read_file(path: Annotated[str, "Which file"]) -> Any:
        """Read a file that is not there."""
        return typed_error("FileNotFoundError", f"There is no file {path}.", {"path": path})

    @server.tool
    async def ask(ctx: Context) -> str:
        """Ask the user something."""
        return str((await ctx.elicit("Sure?", bool)).data)

    @server.tool
    async def work(ctx: Context, steps: Annotated[int, "How many"] = 2) -> str:
        """Work in steps, and tell of each."""
        for step in range(1, steps + 1):
            ctx.report_progress(step, steps, f"step {step}")
            ctx.info(f"did {step}")
            await asyncio.sleep(0)
        return "done"

    @server.tool
    async def hang() -> str:
        """Never comes back."""
        await asyncio.Event().wait()
        return ""

    return server
