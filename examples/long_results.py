"""A server with long results, limited by a token budget per tool."""

from portico import Server
from portico.extend import ResultLimits

server = Server("archive")
server.add(ResultLimits(20_000, tools={"archive.export": 5_000}))


@server.tool
def export(rows: int) -> list[dict[str, str | int]]:
    """Export the records of the archive."""
    return [{"id": row, "title": f"Record {row}"} for row in range(rows)]


if __name__ == "__main__":
    server.run()
