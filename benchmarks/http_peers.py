"""Servers of the HTTP table and how each is served: one worker, logging off, on its documented HTTP server.

The Python SDKs are run by uvicorn on uvloop and httptools, which is quicker than their own `run()`: that one takes the
event loop and the parser of a plain uvicorn.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from peers import (
    PEERS,
    SERVERS,
    NotInstalled,
    Peer,
    go_program,
    install_pinned,
    node_and_npm,
    npm_install,
    place,
    tree_environment,
    versions,
)

UVICORN = ("uvicorn==0.54.0", "uvloop==0.23.0", "httptools==0.9.0")
GRANIAN = "granian==2.8.7"
MSGSPEC = "msgspec==0.22.0"
TYPESCRIPT = {"@modelcontextprotocol/server": "2.4.0", "@modelcontextprotocol/node": "2.1.2", "zod": "4.6.7"}

ON_UVICORN = ("-m", "uvicorn", "--host", "127.0.0.1", "--port", "{port}", "--workers", "1", "--loop", "uvloop")
ON_UVICORN += ("--http", "httptools", "--no-access-log", "--log-level", "critical")
ON_GRANIAN = ("-m", "granian", "--host", "127.0.0.1", "--port", "{port}", "--workers", "1", "--loop", "uvloop")
ON_GRANIAN += ("--http", "1", "--no-log")


@dataclass(frozen=True)
class HttpPeer(Peer):
    """One row of the HTTP table: a server and its request."""

    family: str = ""  # what --only goes by
    serve: tuple[str, ...] = ()  # the command after its Python or its program; {port} is filled in
    tool: str | None = "add_async"  # a ping, if there is no such tool
    session: bool = False
    fresh: bool = False  # each request has a different header, as with tracing clients
    warm: int = 1  # seconds under load that are thrown away

    @property
    def asked(self) -> str:
        if self.family == "bare":
            return "tools/call, its JSON alone"
        what = f"tools/call, {BODIES[self.tool]}" if self.tool else "ping"
        return what + (", session" if self.session else "") + (", new head each" if self.fresh else "")

    @property
    def label(self) -> str:
        return f"{self.title}: {self.asked}"


BODIES = {"add_async": "async def", "add_inline": "inline", "add_with_backends": "Redis and an HTTP API"}


def portico(key: str, title: str, *serve: str, **fields: object) -> HttpPeer:
    return HttpPeer(key=key, title=title, package="portico", family="portico", serve=serve, **fields)


def bare(key: str, title: str, package: str, *serve: str) -> HttpPeer:
    """Return the lower bounds: decode and encode the JSON of the call with msgspec, without the protocol."""
    return HttpPeer(key=f"bare-{key}", title=f"bare {title}", package=package, family="bare", serve=serve)


ENVIRONMENTS = {peer.key: peer.env for peer in PEERS}

HTTP_PEERS = (
    portico("portico", "Portico", "portico_http.py", "{port}"),
    portico("portico-inline", "Portico", "portico_http.py", "{port}", tool="add_inline"),
    portico("portico-fresh", "Portico", "portico_http.py", "{port}", fresh=True),
    portico("portico-session", "Portico", "portico_http.py", "{port}", session=True),
    portico("portico-granian", "Portico on granian", *ON_GRANIAN, "--interface", "asgi", "portico_asgi:app"),
    portico("portico-uvicorn", "Portico on uvicorn", *ON_UVICORN, "portico_asgi:app"),
    HttpPeer("mcp", "official SDK", "mcp", family="mcp", serve=(*ON_UVICORN, "official_asgi:app")),
    HttpPeer(
        "fastmcp",
        "FastMCP",
        "fastmcp",
        family="fastmcp",
        serve=(*ON_UVICORN, "fast_asgi:app"),
        env=ENVIRONMENTS["fastmcp"],
    ),
    HttpPeer(
        "go",
        "Go SDK",
        "kubernetes-mcp-server-linux-amd64",
        family="go",
        serve=("--port", "{port}", "--bind-address", "127.0.0.1"),
        tool=None,
        session=True,
    ),
    HttpPeer(
        "typescript",
        "TypeScript SDK",
        "@modelcontextprotocol/server",
        family="typescript",
        serve=("{port}",),
        env={"NODE_ENV": "production"},
        warm=5,  # measured: until then each second is quicker than the last
    ),
    bare("protocol", "Protocol, httptools and uvloop", "httptools", "bare_protocol.py", "{port}"),
    bare("rsgi", "RSGI on granian", "granian", *ON_GRANIAN, "--interface", "rsgi", "bare_rsgi:app"),
    bare("granian", "ASGI on granian", "granian", *ON_GRANIAN, "--interface", "asgi", "bare_asgi:app"),
    bare("uvicorn", "ASGI on uvicorn", "uvicorn", *ON_UVICORN, "bare_asgi:app"),
)
FAMILIES = tuple(dict.fromkeys(peer.family for peer in HTTP_PEERS))


def prepare_http(peer: HttpPeer) -> HttpPeer:
    """Return the peer ready to start, or with the reason why it cannot."""
    prepared = {"go": go, "typescript": typescript, "mcp": python_sdk, "fastmcp": python_sdk}
    try:
        return prepared.get(peer.family, this_tree)(peer)
    except NotInstalled as why:
        return replace(peer, reason=str(why))


@cache
def tree_with_servers() -> Path:
    """Install Portico and the ASGI servers, for Portico and for the bare applications."""
    return tree_environment("here-http", GRANIAN, *UVICORN, MSGSPEC)


def this_tree(peer: HttpPeer) -> HttpPeer:
    python = str(tree_with_servers())
    result = versions(replace(peer, python=python))
    on = next((name for name in ("granian", "uvicorn") if name in peer.serve), None)
    note = f"{on} {result[on]}" if on and peer.package != on else ""
    return replace(peer, python=python, program=(python,), version=result[peer.package], note=note)


def python_sdk(peer: HttpPeer) -> HttpPeer:
    pinned = install_pinned(peer.package, *UVICORN)
    how = "its ASGI application with json_response and stateless_http; " + ", ".join(UVICORN).replace("==", " ")
    note = "; ".join([how, *pinned.rejected])
    return replace(peer, python=pinned.python, program=(pinned.python,), version=pinned.version, note=note)


def go(peer: HttpPeer) -> HttpPeer:
    result = go_program(peer)
    return replace(result, note=f"{result.note}; it does not speak 2026-07-28, and answers with events")


def typescript(peer: HttpPeer) -> HttpPeer:
    home = place("typescript", "-".join(TYPESCRIPT.values()))
    node, _ = node_and_npm()
    if not (home / "installed").exists():
        npm_install(home, *(f"{name}@{version}" for name, version in TYPESCRIPT.items()))
        (home / "installed").touch()
    server = home / "typescript_server.mjs"
    shutil.copyfile(SERVERS / server.name, server)
    output = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=30, check=False).stdout.strip()
    beside = ", ".join(f"{name} {version}" for name, version in TYPESCRIPT.items() if name != peer.package)
    note = f"createMcpHandler on node's http, responseMode json; Node.js {output}, {beside}"
    return replace(peer, program=(node, str(server)), version=TYPESCRIPT[peer.package], note=note)
