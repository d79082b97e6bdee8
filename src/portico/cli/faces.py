"""The faces that a server is served with: beside it over HTTP, in place of it with `--face`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from portico._lazy import load_module
from portico.cli.data import store_url
from portico.server.server import FaceChoice, Server

# Where each face is.
FACES = {
    "search": ("portico.faces.search", "SearchFace"),
    "code": ("portico.services.code", "CodeFace"),
}


def put_on(server: Server, arguments: argparse.Namespace, said: FaceChoice) -> None:
    """Offer the faces of a server beside it, over HTTP, and show one in its place: the one of the command line, or else
    what a file says."""
    if arguments.transport == "http":
        for name in FACES:
            # Below the server's own path: what is in front of it may pass on nothing else.
            path = f"{arguments.path.rstrip('/')}/{name}"
            if path not in server.endpoints():
                _offer(
                    server, name, path, partial(_made, name, server, arguments, said, [] if said.brief else said.always)
                )
    wanted = arguments.face or said.name
    if wanted not in (None, "all"):
        # What is listed by default is not what was asked for.
        chosen = said if arguments.face is None or not said.brief else FaceChoice()
        name = "search" if wanted == "auto" else wanted
        face = _made(name, server, arguments, said, chosen.always, **({"brief": True} if chosen.brief else {}))
        server.front = load_module("portico.faces.auto").AutoFace(face) if wanted == "auto" else face
        server.hold(face.desk.lifespan)


def _offer(server: Server, name: str, path: str, make: Callable[[], Any]) -> None:
    """It is loaded by the first client that wants it."""
    # Scripts need a jail that other systems do not have: there this face is for no one.
    if name != "code" or sys.platform == "linux":
        face = load_module("portico.faces.late").LateFace(server, name, make)
        server.add_endpoint(path, face)
        server.hold(face.lifespan)


def _made(
    name: str, server: Server, arguments: argparse.Namespace, said: FaceChoice, always: Sequence[str], **options: Any
) -> Any:
    if name == "code":
        # A run that was cut off goes on after a restart, so it is kept where the data of this server is.
        kept = server.store or store_url(arguments.store, arguments.data, server.info.name)
        options |= {"store": kept, **said.code}
    module, kind = FACES[name]
    return getattr(load_module(module), kind)(server, always=always, **options)
