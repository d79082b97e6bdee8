"""A Server over HTTP: what the settings mean, and the two doors."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from itertools import chain
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, cast
from urllib.parse import urlsplit

from msgspec import Struct

from portico._options import check_options
from portico.protocol.errors import UsageError
from portico.protocol.versions import Revision
from portico.rpc.handshake.session import Lifecycle
from portico.server.context.replay_guard import use_store
from portico.server.context.request_state import use_keys, use_place
from portico.server.dpop import SharedReplays
from portico.server.registry import replication
from portico.store.database import parse
from portico.store.keys import MEMORY, configured_keys
from portico.telemetry import start_telemetry
from portico.transports import event_loop
from portico.transports.http_server import listener
from portico.transports.http_server.application import Exchange, Settings
from portico.transports.http_server.asgi import Application
from portico.transports.http_server.bind_address import Place
from portico.transports.http_server.workers import assignment
from portico.transports.http_server.workers.assignment import Post
from portico.transports.http_server.workers.cluster import Fleet, FleetPlace
from portico.transports.http_server.workers.socket_dir import shared_folder
from portico.transports.http_server.workers.supervisor import Supervisor, obeying_signals
from portico.transports.http_server.workers.worker import FleetWorker

if TYPE_CHECKING:
    from portico.server.server import Server

log = logging.getLogger("portico")

MOST_WORKERS = 512
_WITHOUT_KEY = "PORTICO_SEALING_KEYS is not set, so what other processes write to PostgreSQL is not trusted: %s"


def exchange(server: Server, settings: Settings) -> Exchange:
    start_telemetry(server.name)
    settings.allow_hosts = (*settings.allow_hosts, *_public_host(server))
    _share_proofs(server)
    made = Exchange(
        server.front, settings, lambda: {"name": server.name, "version": server.version}, server.pages, server.auth
    )
    for told in server.on_http:
        told(made)
    return made


def _share_proofs(server: Server) -> None:
    """Proofs of DPoP are good once in all processes, and each knows the nonces of the others."""
    if server.auth is not None and server.auth.proofs is not None:
        server.auth.proofs.share(SharedReplays(server.spent), server.seal.derived(b"dpop nonces"))


class EndpointOptions(TypedDict, total=False):
    """The keywords of both `server.run("http")` and `server.asgi()`, which say what each of them means."""

    path: str
    token: str | None
    operator_token: str | None
    allow_hosts: Sequence[str]
    allow_origins: Sequence[str]
    trusted_proxies: Sequence[str]
    sse: bool
    assume: Revision | None
    lifecycle: Lifecycle
    stateless: bool
    longest_body: int
    most_in_flight: int
    most_in_flight_per_client: int
    most_sessions: int
    most_sessions_per_client: int
    idle_session: float


class HttpOptions(EndpointOptions, total=False):
    host: str
    port: int
    unix: str | None
    fd: int | Literal["systemd"] | None
    workers: int | Literal["auto"] | None
    insecure: bool
    certificate: str | None
    key: str | None
    reuse_port: bool
    grace: float
    quiet: bool


class AsgiOptions(EndpointOptions, total=False):
    loopback: bool


def run(server: Server, *, announce: Callable[[str], None] | None = None, **options: Unpack[HttpOptions]) -> None:
    """Serve on our own listener until the process is told to stop. `announce` is told the URL, in place of stderr."""
    check_options('run("http")', options, HttpOptions)
    place = Place(**_fields(Place, options))
    told = None if options.get("quiet") else announce or _announce
    post = assignment.take()
    if post is not None:
        event_loop.run(_worker(server, post, place, options).serve, server.lifespan)
    elif (count := _processes(options)) is not None:
        with _supervised(server, place, options, count, told) as supervisor, obeying_signals(supervisor):
            status = supervisor.run()
        if status:
            raise SystemExit(status)
    else:
        event_loop.run(partial(_serve_alone, server, place, options, told))


async def run_async(server: Server, **options: Unpack[HttpOptions]) -> None:
    """The same on a loop that runs already."""
    check_options('run_async("http")', options, HttpOptions)
    place = Place(**_fields(Place, options))
    told = None if options.get("quiet") else _announce
    post = assignment.take()
    if post is not None:
        async with server.lifespan():
            await _worker(server, post, place, options).serve()
    elif (count := _processes(options)) is not None:
        with _supervised(server, place, options, count, told) as supervisor:
            await _watch(supervisor)
    else:
        await _serve_alone(server, place, options, told)


async def _watch(supervisor: Supervisor) -> None:
    """Run a supervisor in a thread, while this loop does other things."""
    running = asyncio.ensure_future(asyncio.to_thread(supervisor.run))
    try:
        with event_loop.on_signals(supervisor.stop), event_loop.on_signals(supervisor.replace_all, (signal.SIGHUP,)):
            status = await asyncio.shield(running)
    finally:
        supervisor.stop()
        await asyncio.wait([running])
    if status:
        raise SystemExit(status)


def _processes(options: HttpOptions) -> int | None:
    """How many workers there are to be; None: none but this process."""
    said: Any = options.get("workers")
    if said is None:
        said = os.environ.get("PORTICO_WORKERS") or None
    if said is None:
        return None
    if said == "auto":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not str(said).isdecimal() or not 1 <= int(said) <= MOST_WORKERS:
        raise UsageError(f"workers are 1 to {MOST_WORKERS}, or auto: not {said!r}")
    if os.name != "posix":
        raise UsageError("workers need a system that hands open sockets on to other processes; this one does not")
    return int(said)


@contextmanager
def _supervised(
    server: Server, place: Place, options: HttpOptions, count: int, told: Callable[[str], None] | None
) -> Iterator[Supervisor]:
    """A supervisor with open sockets. What is wrong with the options is found here, before anything is started."""
    path = _exchange_at(place, server, options).settings.path
    place.tls()
    sockets = place.open(count)
    internal = place.open_internal(sockets[0][0]) if _spans_machines(_shared_store(server)) else []
    url = place.url(sockets[0][0], path)
    settled = {name: options.get(name) for name in ("token", "operator_token") if options.get(name)}
    with TemporaryDirectory(prefix="portico-") as folder:
        try:
            yield Supervisor(
                sockets,
                folder=folder,
                options=settled,
                grace=place.grace,
                ready=lambda: told(url) if told is not None else None,
                internal=internal,
            )
        finally:
            for one in chain(chain.from_iterable(sockets), internal):
                one.close()
            place.leave()


def _worker(server: Server, post: Post, place: Place, options: HttpOptions) -> FleetWorker:
    given, told = cast("HttpOptions", {**options, **post.assignment.options}), post.assignment
    made = exchange(server, _settings(server, given, named=_named(place)))
    store = _shared_store(server)
    if store is None:
        # A database of the fleet's own, which ends with it.
        at = FleetPlace(
            id=told.id, server=server.name, store=f"{told.folder}/fleet.db", folder=told.folder, key=told.key
        )
        if server.tasks is not None:
            server.store = at.store
    elif _has_key(store):
        at = FleetPlace(id=told.id, server=server.name, store=store, folder=shared_folder(store, server.name))
    else:
        log.warning(_WITHOUT_KEY, "the workers of this supervisor share sessions and changes with each other alone")
        at = FleetPlace(id=told.id, server=server.name, store=store, folder=told.folder, key=told.key)
    return FleetWorker(post, made, place, _fleet(server, made, at))


def _fleet(server: Server, made: Exchange, place: FleetPlace) -> Fleet:
    def use(keys: Sequence[bytes]) -> None:
        use_keys(keys)
        _share_proofs(server)

    use_store(place.store)

    def hear(method: str, about: str | None) -> None:
        if method in replication.METHODS:
            replication.follow(server, method, about)
        else:
            server.subscriptions.publish(method, about)

    fleet = Fleet(place, made, use, hear)
    server.subscriptions.spread = replication.unless_following(fleet.spread)
    use_place(fleet.new_id)
    return fleet


def _shared_store(server: Server) -> str | None:
    """What the processes of one server share; nothing that is in the memory of one of them."""
    url = server.store or os.environ.get("PORTICO_STORE")
    return url if url and parse(url) != ("sqlite", MEMORY) else None


def _has_key(store: str) -> bool:
    """Whether processes that share a store also share a key that is not in it. A file has one beside it."""
    return parse(store)[0] == "sqlite" or bool(configured_keys())


def _spans_machines(store: str | None) -> bool:
    return store is not None and parse(store)[0] == "postgresql" and _has_key(store)


@asynccontextmanager
async def _among_others(server: Server, made: Exchange, *, files: bool) -> AsyncIterator[Fleet | None]:
    """The server's lifespan, in which it is one of the processes that share its store; `files`: also one in a file."""
    store = _shared_store(server) if os.name == "posix" else None
    async with server.lifespan():
        if store is not None and not _has_key(store):
            # A role that can write to the database could act as any user: without a key its rows are not trusted.
            log.warning(_WITHOUT_KEY, "this process shares no sessions and no changes with others")
            store = None
        if store is None or (parse(store)[0] == "sqlite" and not files):
            yield None
            return
        fleet = _fleet(
            server, made, FleetPlace(server=server.name, store=store, folder=shared_folder(store, server.name))
        )
        try:
            await fleet.start()
            yield fleet
        finally:
            server.subscriptions.spread = None
            use_place(None)
            use_store(None)
            await fleet.close()


async def _serve_alone(
    server: Server,
    place: Place,
    options: HttpOptions,
    told: Callable[[str], None] | None,
    stop: asyncio.Event | None = None,
) -> None:
    """Serve in this process; others may do so at other addresses, or on other machines."""
    made = _exchange_at(place, server, options)
    async with _among_others(server, made, files=False) as fleet:
        [sockets] = place.open()
        await _listen_for_machines(fleet, place, sockets[0])

        def ready(url: str, listening: socket.socket) -> None:
            if told is not None:
                told(url)

        await listener.serve(made, place, sockets, ready=ready, stop=stop)


async def _listen_for_machines(fleet: Fleet | None, place: Place, listening: socket.socket | None) -> None:
    internal = [] if fleet is None else place.open_internal(listening)
    if fleet is not None and internal:
        await fleet.listen_for_machines(internal, place.internal_address(internal[0]), place.tls())


async def serve_http(
    server: Server,
    *,
    ready: Callable[[str], None] | None = None,
    stop: asyncio.Event | None = None,
    **options: Unpack[HttpOptions],
) -> None:
    """The same on a loop that runs already. `ready` is told the URL, and `stop` ends it."""
    check_options("serve_http()", options, HttpOptions)
    place = Place(**_fields(Place, options))
    await _serve_alone(server, place, options, ready, stop)


def _exchange_at(place: Place, server: Server, options: HttpOptions) -> Exchange:
    """Beyond this machine only with a token, or with `insecure`."""
    settings = _settings(server, options, named=_named(place))
    local = place.is_local()
    alone = _local_service(server)
    if alone is not None and not local:
        raise UsageError(
            f"{place.host} can be reached from other machines, and the service {alone!r} is for this one alone; leave "
            "it out, or tell it that others are meant: remote = true in its settings"
        )
    guarded = settings.token is not None or (server.auth is not None and not server.auth.anonymous)
    if not local and not guarded and not options.get("insecure"):
        raise UsageError(
            f"{place.host} can be reached from other machines: set PORTICO_TOKEN, say who gives out tokens with "
            "--auth-issuer (auth=…), or say --insecure (insecure=True)"
        )
    if not local or _has_names(options):
        _check_public_url(server)
    elif not place.has_address():
        _check_audience(server, "a Unix socket has no URL")
    return exchange(server, settings)


def _check_public_url(server: Server) -> None:
    """Raise UsageError unless the configuration says what tokens are for: where clients of other machines come in, that
    cannot be derived from the addresses that are bound, nor from requests, which clients make up."""
    auth = server.auth
    if auth is not None and not auth.is_named:
        raise UsageError(
            "tokens are for the URL that clients use, and this server is not reached by a loopback address alone: set "
            "it with --public-url https://… (public_url), or set --audience"
        )


def _check_audience(server: Server, reason: str) -> None:
    """Raise UsageError if tokens would be compared with a URL that is not known."""
    if server.auth is not None and server.auth.needs_name:
        raise UsageError(
            f"tokens are for the URL that clients use, and {reason}: set it with --public-url (public_url), such as "
            "https://mcp.example.com, or set --audience"
        )


def _has_names(options: EndpointOptions) -> bool:
    """Whether it is known by other names than this machine's own."""
    return bool(options.get("allow_hosts") or from_environment("PORTICO_ALLOW_HOST"))


def _named(place: Place) -> Sequence[str]:
    return () if place.host in ("0.0.0.0", "::", "") else (place.host,)


def asgi(server: Server, **options: Unpack[AsgiOptions]) -> Application:
    """An ASGI application. Mounted or not, what is left of the path is the endpoint."""
    check_options("asgi()", options, AsgiOptions)
    if _has_names(options):
        _check_public_url(server)
    _check_audience(server, "an ASGI application does not bind the address that they use")
    made = exchange(server, _settings(server, options))

    @asynccontextmanager
    async def living() -> AsyncIterator[None]:
        async with _among_others(server, made, files=True) as fleet:
            if _spans_machines(_shared_store(server)):
                await _listen_for_machines(fleet, Place(), None)
            yield

    return Application(made, living)


def _local_service(server: Server) -> str | None:
    """The first service that is for this machine alone."""
    return next((one.name for one in server.services if getattr(one, "local_only", False)), None)


def _settings(server: Server, options: EndpointOptions, *, named: Sequence[str] = ()) -> Settings:
    """What both doors go by: what was given, and what the environment says."""
    hosts = (*options.get("allow_hosts", ()), *from_environment("PORTICO_ALLOW_HOST"), *named)
    origins = (*options.get("allow_origins", ()), *from_environment("PORTICO_ALLOW_ORIGIN"))
    proxies = (*options.get("trusted_proxies", ()), *from_environment("PORTICO_TRUSTED_PROXY"))
    decided: dict[str, Any] = {
        "token": options.get("token") or os.environ.get("PORTICO_TOKEN") or None,
        "allow_hosts": hosts,
        "allow_origins": origins,
        "trusted_proxies": proxies,
        "local_only": _local_service(server) is not None,
        "carried_key": server.seal.lasting if options.get("stateless") else None,
    }
    return Settings(**_fields(Settings, options) | decided)


def _public_host(server: Server) -> list[str]:
    """Return the host of the public URL, with and without its port: a proxy may pass on either (nginx: `$host`)."""
    url = server.auth.public_url if server.auth is not None else None
    if url is None:
        return []
    place = urlsplit(url)
    return [place.netloc] if place.port is None else [place.netloc, place.netloc.rpartition(":")[0]]


def _fields(of: type[Struct], options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in of.__struct_fields__ if name in options}


def from_environment(name: str) -> list[str]:
    return [word.strip() for word in os.environ.get(name, "").split(",") if word.strip()]


def _announce(url: str) -> None:
    print(f"Serving on {url}", file=sys.stderr, flush=True)
