"""Targets of the conformance suite: our server as a child or at an address, and our client or any command."""

from __future__ import annotations

import os
import shlex
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from support import oidc
from support.conformance.child import Child
from support.paths import ROOT

EXAMPLE = "examples/everything.py"
EXAMPLE_CLIENT = "examples/everything_client.py"
START_SECONDS = 30.0

FACE = """
[auth]
public_url = "http://127.0.0.1:{port}"

[auth.proxy]
issuer = "{login}"
client_id = "portico"
client_secret = "known to both"
scopes = {{ everything = "use everything" }}

[[auth.proxy.client]]
client_id = "suite"
client_name = "The suite"
redirect_uris = ["http://127.0.0.1:{callback}/callback"]
"""
REACH_SECONDS = 5.0
PAUSE = 0.02


class NotServing(Exception):
    """No server answers at the address; the text has the output of the child, if any."""


@dataclass(frozen=True)
class Server:
    """Something that listens."""

    url: str
    child: Child | None = None

    @property
    def target(self) -> list[str]:
        """Return the arguments for the suite."""
        return ["--url", self.url]

    def output_tail(self) -> str:
        """Return the end of the server's output, if it is ours."""
        if self.child is None:
            return ""
        ended = "" if self.child.code is None else f"The server has ended with {self.child.code}. "
        return f"{ended}The server said last:\n{self.child.output_tail() or '(nothing)'}"


@dataclass(frozen=True)
class Client:
    """A command that the suite runs, with the URL of a server of its own as the last word."""

    command: str

    @property
    def target(self) -> list[str]:
        """Return the arguments for the suite."""
        return ["--command", self.command]


@dataclass(frozen=True)
class Face(Server):
    """An authorization server, and the client that it knows."""

    callback_port: int = 0

    @property
    def target(self) -> list[str]:
        client = ["--client-id", "suite", "--port", str(self.callback_port)]
        return [*super().target, *client, "--resource", f"{self.url}/mcp"]


def our_client() -> Client:
    """Return the command of the example client. `exec`, because the suite can only end the shell it runs."""
    return Client(f"exec {shlex.quote(sys.executable)} {shlex.quote(str(ROOT / EXAMPLE_CLIENT))}")


@contextmanager
def serving(log: Path, upstream: str = "") -> Iterator[Server]:
    """The example with everything in it, over HTTP on a free port of the loopback, for as long as the `with`; behind a
    gateway that speaks the revision `upstream` to it, if there is one."""
    port = _free_port()
    served = str(_behind_gateway(log.with_suffix(".toml"), upstream)) if upstream else EXAMPLE
    command = [
        sys.executable,
        "-m",
        "portico",
        "serve",
        served,
        "--transport",
        "http",
        "--port",
        str(port),
        "--no-auth",
    ]
    # A token, a store or a data folder that the user has set for other servers is not for this one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PORTICO_")}
    # Tasks of an earlier run, or of another version, are not looked at.
    environment["PORTICO_DATA"] = str(log.parent / "data")
    with Child(command, log, cwd=ROOT, env=environment) as child:
        server = Server(f"http://127.0.0.1:{port}/mcp", child)
        _wait_for("127.0.0.1", port, START_SECONDS, server)
        yield server


@contextmanager
def facing(log: Path) -> Iterator[Face]:
    """Our authorization-server face in front of a real login, for as long as the `with`."""
    port, callback = _free_port(), _free_port()
    client = {
        "client_id": "portico",
        "client_secret": "known to both",
        "redirect_uris": [f"http://127.0.0.1:{port}/callback"],
    }
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PORTICO_")}
    with oidc.provider(log.parent, clients=[client]) as login:
        file = log.with_suffix(".toml")
        file.write_text(FACE.format(port=port, callback=callback, login=login), encoding="utf-8")
        served = [sys.executable, "-m", "portico", "serve", EXAMPLE, "--config", str(file)]
        command = [*served, "--transport", "http", "--port", str(port)]
        environment["PORTICO_DATA"] = str(log.parent / "data")
        with Child(command, log, cwd=ROOT, env=environment) as child:
            face = Face(f"http://127.0.0.1:{port}", child, callback)
            _wait_for("127.0.0.1", port, START_SECONDS, face)
            yield face


def _behind_gateway(file: Path, revision: str) -> Path:
    words = ", ".join(f"'{word}'" for word in (sys.executable, "-m", "portico", "serve", str(ROOT / EXAMPLE)))
    upstream = f"[upstream.everything]\ncommand = [{words}]\nprotocol_version = '{revision}'\n"
    file.write_text(f"[gateway]\nprefix = ''\n{upstream}", encoding="utf-8")
    return file


def reached(url: str) -> Server:
    """Return a server that runs already."""
    address = urlsplit(url)
    server = Server(url)
    _wait_for(address.hostname or "", address.port or 80, REACH_SECONDS, server)
    return server


def _free_port() -> int:
    with socket.socket() as item:
        item.bind(("127.0.0.1", 0))
        return int(item.getsockname()[1])


def _wait_for(host: str, port: int, seconds: float, server: Server) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if server.child is not None and server.child.code is not None:
            break
        try:
            socket.create_connection((host, port), timeout=1).close()
        except OSError:
            time.sleep(PAUSE)
        else:
            return
    raise NotServing(f"Nothing listens on {host}:{port} after at most {seconds:.0f} s. {server.output_tail()}".rstrip())
