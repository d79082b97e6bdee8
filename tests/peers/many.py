"""examples/everything.py with tools that come and go, for several processes: `many.py`, or `many:app` for uvicorn."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from everything import server

__all__ = ["app", "server"]


@server.declare
def extra() -> str:
    """One more."""
    return "extra"


@server.tool
def grow() -> str:
    """Offer one tool more, in all processes."""
    server.add(extra, everywhere=True)
    return "grown"


@server.tool
def shrink() -> str:
    """Undo it."""
    server.remove("extra", everywhere=True)
    return "shrunk"


app = server.asgi()
