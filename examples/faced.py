"""A server with a face: over HTTP, /mcp lists everything, and /mcp/search two tools and those that are named.

portico serve examples/faced.py --port 8080
"""

from portico import Server
from portico.search import ToolSearchServer

server = Server("weather")


@server.tool
def forecast(city: str, days: int = 3) -> str:
    """What the weather will be like."""
    return f"{days} days of sun in {city}"


server.add_tool_search_endpoint(
    ToolSearchServer(server, pinned_tools=["forecast"])
)  # /mcp/search, where it is served over HTTP

if __name__ == "__main__":
    server.run()
