"""A server in the words of FastMCP and of the official SDK, and tools in another shape."""

from portico import Context, Server, Tool, ToolError
from portico.server.transforms import ArgTransform, forward

mcp = Server("Bookshop")


@mcp.tool
async def find(title: str, ctx: Context) -> str:
    """Find a book."""
    await ctx.info(f"looking for {title}")
    if not title:
        raise ToolError("Say which book.")
    return f"{title}: shelf 7"


def search(q: str, limit: int = 10, key: str = "") -> list[str]:
    """Search."""
    return [f"{q} {number}" for number in range(limit)]


async def politely(query: str, **rest: object) -> list[str]:
    """Search, and say please."""
    found = await forward(query=query, **rest)
    return [f"please: {one}" for one in found.structured_content]


shape = {"q": ArgTransform(name="query", description="What to look for"), "key": ArgTransform(hide=True, default="k")}
mcp.add(Tool.from_tool(search, name="look_up", description="Look something up.", transform_args=shape))
mcp.add(Tool.from_tool(search, name="ask", transform_args=shape, transform_fn=politely))


if __name__ == "__main__":
    mcp.run(transport="stdio")
