"""The faces that a server is served with: beside it over HTTP, in place of it with `--face`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from portico._lazy import load_module
from portico.server.server import Server

# Where each face is.
FACES = {
    "search": ("portico.faces.search", "SearchFace"),
    "code": ("portico.services.code", "CodeFace"),
}
# Those that are loaded by the first client that wants them.
_LATE = ("code",)


def put_on(server: Server, arguments: argparse.Namespace, always: Sequence[str] = ()) -> None:
    """Offer the faces of a server beside it, over HTTP, and show one in its place if that was asked for."""
    if arguments.transport == "http":
        for name in FACES:
            if f"/mcp/{name}" not in server.endpoints() and arguments.path != f"/mcp/{name}":
                _offer(server, name)
    if arguments.face not in (None, "all"):
        show(server, arguments.face, always)


def _offer(server: Server, name: str) -> None:
    if name not in _LATE:
        server.add_face(made(name, server))
    elif sys.platform == "linux":
        # Scripts need a jail that other systems do not have: there this face is for no one.
        face = load_module("portico.faces.late").LateFace(server, name, partial(made, name, server))
        server.add_endpoint(f"/mcp/{name}", face)
        server.hold(face.lifespan)


def show(server: Server, name: str, always: Sequence[str] = ()) -> None:
    """What clients meet in place of the server."""
    face = made("search" if name == "auto" else name, server, always=always)
    server.front = load_module("portico.faces.auto").AutoFace(face) if name == "auto" else face
    server.hold(face.desk.lifespan)


def made(name: str, server: Any, **options: Any) -> Any:
    module, kind = FACES[name]
    return getattr(load_module(module), kind)(server, **options)
