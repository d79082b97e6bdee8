"""A Server over HTTP: what the settings mean, and the two doors."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from portico.transport.http import listener
from portico.transport.http.asgi import Application
from portico.transport.http.exchange import Exchange, Settings
from portico.transport.http.listener import Place, is_loopback
from portico.wire.errors import UsageError

if TYPE_CHECKING:
    from portico.server.server import Server


def exchange(server: Server, settings: Settings) -> Exchange:
    return Exchange(server, settings, lambda: {"name": server.name, "version": server.version})


def run(
    server: Server,
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    path: str = "/mcp",
    token: str | None = None,
    insecure: bool = False,
    allow_hosts: Sequence[str] = (),
    allow_origins: Sequence[str] = (),
    sse: bool = False,
    certificate: str | None = None,
    key: str | None = None,
    reuse_port: bool = False,
    grace: float = 10.0,
    quiet: bool = False,
    **limits: Any,
) -> None:
    """Serve on our own listener. Beyond this machine only with a token, or with `insecure`."""
    token = token or os.environ.get("PORTICO_TOKEN") or None
    local = is_loopback(host)
    alone = next((one.name for one in server.services if getattr(one, "local_only", False)), None)
    if alone is not None and not local:
        raise UsageError(
            f"{host} can be reached from other machines, and the service {alone!r} is for this one alone; leave it "
            "out, or tell it that others are meant (remote=True)"
        )
    if not local and token is None and not insecure:
        raise UsageError(
            f"{host} can be reached from other machines: set PORTICO_TOKEN, or say --insecure (insecure=True)"
        )
    named = () if host in ("0.0.0.0", "::", "") else (host,)
    settings = Settings(
        path=path,
        token=token,
        sse=sse,
        loopback=True,
        allow_hosts=(*allow_hosts, *from_environment("PORTICO_ALLOW_HOST"), *named),
        allow_origins=(*allow_origins, *from_environment("PORTICO_ALLOW_ORIGIN")),
        **limits,
    )
    place = Place(host=host, port=port, certificate=certificate, key=key, reuse_port=reuse_port, grace=grace)
    listener.run(exchange(server, settings), place, server.lifespan, None if quiet else _announce)


def from_environment(name: str) -> list[str]:
    return [word.strip() for word in os.environ.get(name, "").split(",") if word.strip()]


def _announce(url: str) -> None:
    print(f"Serving on {url}", file=sys.stderr, flush=True)


def asgi(
    server: Server,
    *,
    path: str = "/mcp",
    token: str | None = None,
    allow_hosts: Sequence[str] = (),
    allow_origins: Sequence[str] = (),
    sse: bool = False,
    **limits: Any,
) -> Application:
    """An ASGI application. Mounted or not, what is left of the path is the endpoint."""
    settings = Settings(
        path=path,
        token=token,
        sse=sse,
        allow_hosts=(*allow_hosts, *from_environment("PORTICO_ALLOW_HOST")),
        allow_origins=(*allow_origins, *from_environment("PORTICO_ALLOW_ORIGIN")),
        **limits,
    )
    return Application(exchange(server, settings), server.lifespan)
