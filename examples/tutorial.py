"""The server of the tutorial, docs/tutorial/first-server.md.

portico serve examples/tutorial.py --port 8080 --token-file tokens.toml
"""

from typing import Annotated

from portico import Context, Server, ToolError

server = Server("calculator", version="1.0.0")


@server.tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool(scopes=["calculator:divide"])
async def divide(ctx: Context, a: float, b: Annotated[float, "must not be 0"]) -> float:
    """Divide a by b."""
    if b == 0:
        raise ToolError("b must not be 0.")
    await ctx.info(f"dividing {a} by {b}")
    return a / b


if __name__ == "__main__":
    server.run()
