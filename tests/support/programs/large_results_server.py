"""A stdio server with large results of several kinds: `large_results_server.py [MAX_TOKENS]`."""

import sys

from portico import Server
from portico.extend import ResultLimits
from portico.protocol.content import BlobResourceContents, EmbeddedResource, ImageContent

server = Server("large-results")


@server.tool(structured_output=False)
def text(size: int) -> str:
    """Return lines of 16 characters."""
    return "0123456789abcde\n" * (size // 16)


@server.tool(structured_output=False)
def json_text(size: int) -> str:
    """Return an array of objects of 32 characters."""
    return "[" + ",".join(['{"id":1234567,"name":"abcdefg"}'] * (size // 32)) + "]"


@server.tool
def rows(size: int) -> list[dict[str, str | int]]:
    """Return an array of objects of 32 characters."""
    return [{"id": 1234567, "name": "abcdefg"}] * (size // 32)


@server.tool
def image(size: int) -> ImageContent:
    """Return an image of this many characters in base64."""
    return ImageContent(data="QUJD" * (size // 4), mime_type="image/png")


@server.tool
def blob(size: int) -> EmbeddedResource:
    """Return binary content of this many characters in base64."""
    data = "QUJD" * (size // 4)
    return EmbeddedResource(resource=BlobResourceContents(uri="file:///b", mime_type="application/zip", blob=data))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.add(ResultLimits(int(sys.argv[1])))
    server.run()
