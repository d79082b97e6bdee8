"""The faces that a server is served with: beside it over HTTP, in place of it with `--face`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from portico._lazy import load_module
from portico.server.server import Server

# Where each face is.
FACES = {"search": ("portico.faces.search", "SearchFace")}


def put_on(server: Server, arguments: argparse.Namespace, always: Sequence[str] = ()) -> None:
    """Offer the faces of a server beside it, over HTTP, and show one in its place if that was asked for; or if only
    some of its tools are `always` to be listed."""
    if arguments.transport == "http":
        for name in FACES:
            if f"/mcp/{name}" not in server.endpoints() and arguments.path != f"/mcp/{name}":
                server.add_face(made(name, server))
    if arguments.face not in (None, "all") or (always and arguments.face is None):
        show(server, arguments.face or "search", () if arguments.face else always)


def show(server: Server, name: str, always: Sequence[str] = ()) -> None:
    """What clients meet in place of the server."""
    face = made("search" if name == "auto" else name, server, **({"always": always, "brief": True} if always else {}))
    server.front = load_module("portico.faces.auto").AutoFace(face) if name == "auto" else face
    server.hold(face.desk.lifespan)


def made(name: str, server: Any, **options: Any) -> Any:
    module, kind = FACES[name]
    return getattr(load_module(module), kind)(server, **options)
