"""The faces that a server is served with: beside it over HTTP, in place of it with `--face`."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from portico._lazy import LazyModule
from portico.cli.data_dir import store_url
from portico.server.policy.interfaces import Kind, Owned
from portico.server.server import FaceChoice, Server

if TYPE_CHECKING:
    from portico import plugins
    from portico.search import auto_search, lazy_handler, tool_search
else:
    plugins = LazyModule("portico.plugins")
    tool_search = LazyModule("portico.search.tool_search")
    auto_search = LazyModule("portico.search.auto_search")
    lazy_handler = LazyModule("portico.search.lazy_handler")

log = logging.getLogger("portico")

FACES = ("search", "code")

# The tools that they add, as rules know them.
TOOLS: list[tuple[Kind, Owned]] = [
    *(("tool", Owned("code", name)) for name in ("run", "describe_tools", "run_saved", "forget_saved")),
    ("tool", Owned("faces", "find_tools")),
]


def put_on(server: Server, arguments: argparse.Namespace, said: FaceChoice) -> None:
    """Offer the faces of a server and of its views beside them, over HTTP, and show one in its place: the one of the
    command line, or else what a file says."""
    if arguments.transport == "http":
        views = {one.settings.path: one for one in getattr(server, "views", {}).values()}
        for path, part in {arguments.path: server, **views}.items():
            _offer_beside(server, part, path, arguments, said)
    # What is listed by default is not what was asked for.
    chosen = said if arguments.face is None or not said.brief else FaceChoice()
    wanted = arguments.face or said.name
    if arguments.view is None and wanted not in (None, "all"):
        server.front = worn(wanted, server, server, arguments, said, chosen)


def worn(
    wanted: str, server: Server, part: Any, arguments: argparse.Namespace, said: FaceChoice, chosen: FaceChoice
) -> Any:
    """What clients meet in place of a server, or of a view of it."""
    name = "search" if wanted == "auto" else wanted
    # Rules are loaded where there are some.
    allows_some = getattr(getattr(server.protection, "guard", None), "allows_some", None)
    if name == "code" and allows_some is not None and not allows_some("tool", Owned("code", "run")):
        log.warning('no rule allows scripts, so this face can only find tools: one with tool = "code.*" would')
    brief = {"brief": True} if chosen.brief else {}
    face = _made(name, server, part, arguments, said, chosen.always, **brief)
    server.hold(face.desk.lifespan)
    return auto_search.AutoFace(face) if wanted == "auto" else face


def _offer_beside(server: Server, part: Any, path: str, arguments: argparse.Namespace, said: FaceChoice) -> None:
    """Below its own path: what is in front of it may pass on nothing else."""
    for name in FACES:
        below = f"{path.rstrip('/')}/{name}"
        if below not in server.endpoints():
            always = [] if said.brief else said.always
            _offer(server, name, below, partial(_made, name, server, part, arguments, said, always), part)


def _offer(server: Server, name: str, path: str, make: Callable[[], Any], part: Any = None) -> None:
    """It is loaded by the first client that wants it."""
    # Scripts need a sandbox that other systems do not have.
    if name != "code" or (sys.platform == "linux" and plugins.find_plugin("services") is not None):
        face = lazy_handler.LateFace(part or server, name, make)
        server.add_endpoint(path, face)
        server.hold(face.lifespan)


def _made(
    name: str,
    server: Server,
    part: Any,
    arguments: argparse.Namespace,
    said: FaceChoice,
    always: Sequence[str],
    **options: Any,
) -> Any:
    if name == "code":
        # A run that was cut off goes on after a restart, so it is kept where the data of this server is.
        kept = server.store or store_url(arguments.store, arguments.data, server.info.name)
        options |= {"store": kept, **said.code}
        return plugins.require_plugin("services", "code mode").code_mode()(part, always=always, **options)
    return tool_search.SearchFace(part, always=always, **options)
