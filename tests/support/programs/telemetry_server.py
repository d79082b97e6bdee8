"""A server for telemetry tests: a tool that works, one that fails, one that crashes."""

from portico import Server, ToolError

server = Server("watched")


@server.tool
async def double(n: int) -> int:
    """Twice as much."""
    return 2 * n


@server.tool
async def refuse() -> str:
    """Says no."""
    raise ToolError("not today")


@server.tool
def breaks() -> str:
    """Has a mistake."""
    return inner()


def inner() -> str:
    return {}["nothing"]
