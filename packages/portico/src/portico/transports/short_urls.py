"""URLs typed without a scheme or host: `localhost:8080/mcp`, `:8080`."""

from __future__ import annotations

import re

_HOST_AND_PORT = re.compile(r"(?P<host>[A-Za-z0-9][A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}(?:[/?#]\S*)?")
# The notation of httpie and of `listen` directives: no host is this machine.
_PORT = re.compile(r":\d{1,5}(?:[/?#]\S*)?")
_LOCAL_PATH = re.compile(r"(?:localhost|127\.0\.0\.1|\[::1\])/\S*")


def with_scheme(text: str) -> str:
    """Return the URL for `host:port/path` or `:port/path`. Any other text is returned unchanged.

    Loopback addresses get http, all others https: a token must not cross a network unencrypted because a scheme was
    omitted.
    """
    if _PORT.fullmatch(text):
        text = f"localhost{text}"
    match = _HOST_AND_PORT.fullmatch(text)
    if match is None:
        return f"http://{text}" if _LOCAL_PATH.fullmatch(text) else text
    host = match["host"].strip("[]").lower()
    is_local = host in ("localhost", "::1") or host.endswith(".localhost") or re.fullmatch(r"127(\.\d+){3}", host)
    return f"{'http' if is_local else 'https'}://{text}"
