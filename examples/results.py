"""Return values of tools, and the content blocks that they become.

portico serve examples/results.py
"""

from base64 import b64decode
from dataclasses import dataclass

from portico import File, Image, Server, ToolResult
from portico.types import ResourceLink

server = Server("results", version="1.0.0")

PNG = b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==")


@dataclass
class Point:
    x: int
    y: int = 0


@server.tool
async def word() -> str:
    """Return text unchanged."""
    return "a word"


@server.tool
async def point() -> Point:
    """Return an object: JSON text and structured content."""
    return Point(1, 2)


@server.tool
async def primes() -> list[int]:
    """Return the first primes: not an object, so the structured content is `{"result": …}`."""
    return [2, 3, 5, 7]


@server.tool
async def nothing() -> None:
    """Return no content."""


@server.tool
def report() -> list[str | Image | File]:
    """Return several blocks: text, an image and a file."""
    return ["The figures of May:", Image(data=PNG, format="png"), File(data=b"1;2\n", mime_type="text/csv")]


@server.tool
def where() -> ResourceLink:
    """Return a link to a resource."""
    return ResourceLink(uri="results://may", name="may", title="The figures of May")


@server.tool
def measured() -> ToolResult:
    """Return a full result: text for the model, data for programs, metadata for the host."""
    return ToolResult(
        content="It took 12 ms.",
        structured={"milliseconds": 12},
        meta={"example.com/trace": "4bf92f35"},
    )


if __name__ == "__main__":
    server.run()
