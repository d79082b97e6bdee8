"""Serve examples/everything.py with tools that are added and removed, in one or several processes."""

import runpy
from pathlib import Path

server = runpy.run_path(str(Path(__file__).resolve().parents[2] / "examples" / "everything.py"))["server"]

__all__ = ["app", "server"]


@server.declare
def extra() -> str:
    """One more."""
    return "extra"


@server.tool
def grow() -> str:
    """Offer one tool more, in all processes."""
    server.add(extra, replicate=True)
    return "grown"


@server.tool
def shrink() -> str:
    """Undo it."""
    server.remove("extra", replicate=True)
    return "shrunk"


app = server.http_app()
