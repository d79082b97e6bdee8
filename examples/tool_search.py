"""Tool search over HTTP: /mcp lists every tool, /mcp/search lists two search tools and the pinned ones.

portico serve examples/tool_search.py --port 8080
"""

from portico import Server
from portico.search import ToolSearchServer

server = Server("weather")


@server.tool
def forecast(city: str, days: int = 3) -> str:
    """Forecast the weather of a city."""
    return f"{days} days of sun in {city}"


server.add_tool_search_endpoint(ToolSearchServer(server, pinned_tools=["forecast"]))  # served at /mcp/search

if __name__ == "__main__":
    server.run()
