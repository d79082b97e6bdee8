"""A server written as for FastMCP or the official SDK, and transformed tools."""

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


async def search_uppercase(query: str, **rest: object) -> list[str]:
    """Search, and return uppercase titles."""
    result = await forward(query=query, **rest)
    return [title.upper() for title in result.structured_content]


arguments = {
    "q": ArgTransform(name="query", description="Words in the title"),
    "key": ArgTransform(hide=True, default="k"),
}
mcp.add(Tool.from_tool(search, name="search_titles", description="Search titles.", transform_args=arguments))
mcp.add(Tool.from_tool(search, name="search_loud", transform_args=arguments, transform_fn=search_uppercase))


if __name__ == "__main__":
    mcp.run(transport="stdio")
