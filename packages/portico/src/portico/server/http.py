"""HTTP serving of a Server: options, worker processes and the ASGI application."""

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

from portico._options import validate_options
from portico.protocol.errors import UsageError
from portico.protocol.versions import ProtocolVersion
from portico.rpc.handshake.session import LifecycleMode
from portico.server.context.replay_guard import set_process_store
from portico.server.context.request_state import set_process_keys, set_process_locator
from portico.server.dpop import SharedReplayCache
from portico.server.registry import replication
from portico.store.data_directory import named_store
from portico.store.database import parse_database_url
from portico.store.keys import MEMORY, configured_keys
from portico.telemetry import start_telemetry
from portico.transports import event_loop
from portico.transports.http_server import listener
from portico.transports.http_server.application import HttpApplication, HttpServerSettings
from portico.transports.http_server.asgi import AsgiApplication
from portico.transports.http_server.bind_address import BindAddress
from portico.transports.http_server.workers import assignment
from portico.transports.http_server.workers.assignment import ControlSocket
from portico.transports.http_server.workers.cluster import ClusterConfig, WorkerCluster
from portico.transports.http_server.workers.socket_dir import default_socket_dir
from portico.transports.http_server.workers.supervisor import Supervisor, handle_signals
from portico.transports.http_server.workers.worker import HttpWorker

if TYPE_CHECKING:
    from portico.server.server import Server

log = logging.getLogger("portico")

MAX_WORKERS = 512
_WITHOUT_KEY = "PORTICO_ENCRYPTION_KEYS is not set, so what other processes write to PostgreSQL is not trusted: %s"


def build_application(server: Server, settings: HttpServerSettings) -> HttpApplication:
    """Build the HTTP application of a server, and run its `on_http_start` callbacks."""
    start_telemetry(server.name)
    settings.allowed_hosts = (*settings.allowed_hosts, *_public_host(server))
    _share_proofs(server)
    application = HttpApplication(
        server.public_handler,
        settings,
        lambda: {"name": server.name, "version": server.version},
        server.custom_routes,
        server.auth,
    )
    for callback in server.on_http_start:
        callback(application)
    return application


def _share_proofs(server: Server) -> None:
    """Share DPoP replay protection and nonces with the server's other processes."""
    if server.auth is not None and server.auth.dpop_validator is not None:
        server.auth.dpop_validator.use_shared(
            SharedReplayCache(server.used_states), server.state_sealer.derive_key(b"dpop nonces")
        )


class HttpAppOptions(TypedDict, total=False):
    """Keywords of both `server.run("http")` and `server.http_app()`, which document them."""

    path: str
    token: str | None
    operator_token: str | None
    allowed_hosts: Sequence[str]
    allowed_origins: Sequence[str]
    trusted_proxies: Sequence[str]
    sse: bool
    default_protocol_version: ProtocolVersion | None
    lifecycle: LifecycleMode
    stateless: bool
    max_body_size: int
    max_concurrent_requests: int
    max_concurrent_requests_per_client: int
    max_sessions: int
    max_sessions_per_client: int
    session_idle_timeout: float


class HttpServerOptions(HttpAppOptions, total=False):
    """Keywords of `server.run("http")`."""

    host: str
    port: int
    unix_socket: str | None
    fd: int | Literal["systemd"] | None
    workers: int | Literal["auto"] | None
    insecure: bool
    ssl_certfile: str | None
    ssl_keyfile: str | None
    reuse_port: bool
    shutdown_timeout: float
    show_banner: bool


class AsgiAppOptions(HttpAppOptions, total=False):
    """Keywords of `server.http_app()`."""

    allow_loopback: bool


def run_http(
    server: Server, *, on_ready: Callable[[str], None] | None = None, **options: Unpack[HttpServerOptions]
) -> None:
    """Serve with the built-in listener until the process is asked to stop.

    `on_ready` receives the URL; without it, the URL is printed to stderr.
    """
    validate_options('run("http")', options, HttpServerOptions)
    address = BindAddress(**_fields(BindAddress, options))
    announce = (on_ready or _print_url) if options.get("show_banner", True) else None
    # The same command line starts supervisor and workers; a worker finds its assignment in the environment.
    post = assignment.receive_assignment()
    if post is not None:
        event_loop.run_with_lifespan(_create_worker(server, post, address, options).serve, server.lifespan)
    elif (count := _count_workers(options)) is not None:
        with _create_supervisor(server, address, options, count, announce) as supervisor, handle_signals(supervisor):
            status = supervisor.run()
        if status:
            raise SystemExit(status)
    else:
        event_loop.run_with_lifespan(partial(_serve_alone, server, address, options, announce))


async def run_http_async(server: Server, **options: Unpack[HttpServerOptions]) -> None:
    """Serve inside a running event loop."""
    validate_options('run_async("http")', options, HttpServerOptions)
    address = BindAddress(**_fields(BindAddress, options))
    announce = _print_url if options.get("show_banner", True) else None
    post = assignment.receive_assignment()
    if post is not None:
        async with server.lifespan():
            await _create_worker(server, post, address, options).serve()
    elif (count := _count_workers(options)) is not None:
        with _create_supervisor(server, address, options, count, announce) as supervisor:
            await _watch(supervisor)
    else:
        await _serve_alone(server, address, options, announce)


async def _watch(supervisor: Supervisor) -> None:
    """Run a supervisor in a thread so that this loop stays responsive."""
    running = asyncio.ensure_future(asyncio.to_thread(supervisor.run))
    try:
        with event_loop.handle_signals(supervisor.stop), event_loop.handle_signals(supervisor.reload, (signal.SIGHUP,)):
            status = await asyncio.shield(running)
    finally:
        # Wait for the thread even when cancelled: workers must not outlive their supervisor.
        supervisor.stop()
        await asyncio.wait([running])
    if status:
        raise SystemExit(status)


def _count_workers(options: HttpServerOptions) -> int | None:
    """Return the number of workers, or None to serve in this process."""
    workers: Any = options.get("workers")
    if workers is None:
        workers = os.environ.get("PORTICO_WORKERS") or None
    if workers is None:
        return None
    if workers == "auto":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not str(workers).isdecimal() or not 1 <= int(workers) <= MAX_WORKERS:
        raise UsageError(f"workers must be 1 to {MAX_WORKERS} or 'auto', got {workers!r}")
    if os.name != "posix":
        raise UsageError(
            "workers require a platform that can pass open sockets to other processes; this platform cannot"
        )
    return int(workers)


@contextmanager
def _create_supervisor(
    server: Server, address: BindAddress, options: HttpServerOptions, count: int, on_ready: Callable[[str], None] | None
) -> Iterator[Supervisor]:
    """Yield a supervisor with open sockets. Invalid options raise here, before any process is started."""
    path = _build_application_at(address, server, options).settings.path
    address.ssl_context()
    sockets = address.open_sockets(count)
    internal = address.open_internal(sockets[0][0]) if _spans_machines(_shared_store(server)) else []
    url = address.url(sockets[0][0], path)
    # Tokens travel in the assignment because command-line options of the supervisor may have set them.
    settled = {name: options.get(name) for name in ("token", "operator_token") if options.get(name)}
    with TemporaryDirectory(prefix="portico-") as folder:
        try:
            yield Supervisor(
                sockets,
                socket_dir=folder,
                options=settled,
                shutdown_timeout=address.shutdown_timeout,
                on_ready=lambda: on_ready(url) if on_ready is not None else None,
                internal=internal,
            )
        finally:
            for item in chain(chain.from_iterable(sockets), internal):
                item.close()
            address.unlink_socket()


def _create_worker(server: Server, post: ControlSocket, address: BindAddress, options: HttpServerOptions) -> HttpWorker:
    """Create the worker for an assignment, joined to the cluster of the shared store or of its supervisor."""
    worker_options, assignment = cast("HttpServerOptions", {**options, **post.assignment.options}), post.assignment
    application = build_application(server, _settings(server, worker_options, named=_bound_hosts(address)))
    store = _shared_store(server)
    if store is None:
        # A database of this cluster only, removed with the supervisor's directory.
        at = ClusterConfig(
            id=assignment.id,
            server=server.name,
            store=f"{assignment.folder}/fleet.db",
            folder=assignment.folder,
            key=assignment.key,
        )
        if server.tasks is not None:
            server.store = at.store
    elif _has_key(store):
        folder = default_socket_dir(store, server.name, fallback=assignment.folder)
        at = ClusterConfig(id=assignment.id, server=server.name, store=store, folder=folder)
    else:
        log.warning(_WITHOUT_KEY, "the workers of this supervisor share sessions and changes with each other alone")
        at = ClusterConfig(
            id=assignment.id, server=server.name, store=store, folder=assignment.folder, key=assignment.key
        )
    return HttpWorker(post, application, address, _create_cluster(server, application, at))


def _create_cluster(server: Server, application: HttpApplication, config: ClusterConfig) -> WorkerCluster:
    """Create the cluster membership, and connect it to the server's notifications and keys."""

    def use(keys: Sequence[bytes]) -> None:
        set_process_keys(keys)
        _share_proofs(server)

    # Set before the server answers: request states used here must be visible to all processes.
    set_process_store(config.store)

    def on_change(method: str, about: str | None) -> None:
        if method in replication.METHODS:
            replication.apply_remote_change(server, method, about)
        else:
            server.subscriptions.publish(method, about)

    fleet = WorkerCluster(config, application, use, on_change)
    server.subscriptions.broadcast_hook = replication.broadcast_unless_replicating(fleet.broadcast_change)
    set_process_locator(fleet.new_session_id)
    return fleet


def _shared_store(server: Server) -> str | None:
    """Return the store URL that the server's processes share, or None if it is in memory."""
    url = named_store(server.store)
    return url if url and parse_database_url(url) != ("sqlite", MEMORY) else None


def _has_key(store: str) -> bool:
    """Return whether the processes sharing a store also share a key outside it. SQLite stores have a key file."""
    return parse_database_url(store)[0] == "sqlite" or bool(configured_keys())


def _spans_machines(store: str | None) -> bool:
    return store is not None and parse_database_url(store)[0] == "postgresql" and _has_key(store)


@asynccontextmanager
async def _join_cluster(
    server: Server, application: HttpApplication, *, files: bool
) -> AsyncIterator[WorkerCluster | None]:
    """Enter the server's lifespan as a member of the cluster that shares its store.

    With `files`, SQLite stores also form a cluster.
    """
    store = _shared_store(server) if os.name == "posix" else None
    async with server.lifespan():
        if store is not None and not _has_key(store):
            # Anyone who can write to the database could impersonate any user: without a key its rows are not trusted.
            log.warning(_WITHOUT_KEY, "this process shares no sessions and no changes with others")
            store = None
        if store is None or (parse_database_url(store)[0] == "sqlite" and not files):
            yield None
            return
        fleet = _create_cluster(
            server,
            application,
            ClusterConfig(server=server.name, store=store, folder=default_socket_dir(store, server.name)),
        )
        try:
            await fleet.start()
            yield fleet
        finally:
            server.subscriptions.broadcast_hook = None
            set_process_locator(None)
            set_process_store(None)
            await fleet.close()


async def _serve_alone(
    server: Server,
    address: BindAddress,
    options: HttpServerOptions,
    on_ready: Callable[[str], None] | None,
    stop: asyncio.Event | None = None,
) -> None:
    """Serve in this process only; others may serve the same store at other addresses or on other machines."""
    application = _build_application_at(address, server, options)
    async with _join_cluster(server, application, files=False) as fleet:
        [sockets] = address.open_sockets()
        await _listen_for_machines(fleet, address, sockets[0])

        def ready(url: str, listening: socket.socket) -> None:
            if on_ready is not None:
                on_ready(url)

        await listener.serve(application, address, sockets, on_ready=ready, stop=stop)


async def _listen_for_machines(
    fleet: WorkerCluster | None, address: BindAddress, listening: socket.socket | None
) -> None:
    internal = [] if fleet is None else address.open_internal(listening)
    if fleet is not None and internal:
        await fleet.listen_for_machines(internal, address.internal_address(internal[0]), address.ssl_context())


async def serve_http(
    server: Server,
    *,
    on_ready: Callable[[str], None] | None = None,
    stop: asyncio.Event | None = None,
    **options: Unpack[HttpServerOptions],
) -> None:
    """Serve inside a running event loop. `on_ready` receives the URL, and setting `stop` ends it."""
    validate_options("serve_http()", options, HttpServerOptions)
    address = BindAddress(**_fields(BindAddress, options))
    await _serve_alone(server, address, options, on_ready, stop)


def _build_application_at(address: BindAddress, server: Server, options: HttpServerOptions) -> HttpApplication:
    """Build the application for an address. Raises UsageError if other machines could connect without a token."""
    settings = _settings(server, options, named=_bound_hosts(address))
    local = address.is_local()
    alone = _local_service(server)
    if alone is not None and not local:
        raise UsageError(
            f"{address.host} can be reached from other machines, but the service {alone!r} only serves this "
            "machine; remove the service, or set remote = true in its settings"
        )
    guarded = settings.token is not None or (server.auth is not None and not server.auth.allow_anonymous)
    if not local and not guarded and not options.get("insecure"):
        raise UsageError(
            f"{address.host} can be reached from other machines: set PORTICO_TOKEN, configure a token issuer with "
            "--auth-issuer (auth=…), or pass --insecure (insecure=True)"
        )
    if not local or _has_names(options):
        _check_public_url(server)
    elif not address.has_address():
        _check_audience(server, "a Unix socket has no URL")
    return build_application(server, settings)


def _check_public_url(server: Server) -> None:
    """Raise UsageError unless the audience of tokens is configured.

    When clients on other machines connect, the audience cannot be derived from the bound addresses, nor from requests,
    which clients control.
    """
    auth = server.auth
    if auth is not None and not auth.is_named:
        raise UsageError(
            "tokens are issued for the URL that clients use, and this server can be reached by other addresses "
            "than loopback: set the URL with --public-url https://… (public_url), or set --auth-audience"
        )


def _check_audience(server: Server, reason: str) -> None:
    """Raise UsageError if tokens would be compared with an unknown URL."""
    if server.auth is not None and server.auth.needs_name:
        raise UsageError(
            f"tokens are issued for the URL that clients use, and {reason}: set it with --public-url "
            "(public_url), such as https://mcp.example.com, or set --auth-audience"
        )


def _has_names(options: HttpAppOptions) -> bool:
    """Return whether the server is reached by other names than this machine's loopback names."""
    return bool(options.get("allowed_hosts") or read_list_variable("PORTICO_ALLOWED_HOSTS"))


def _bound_hosts(address: BindAddress) -> Sequence[str]:
    return () if address.host in ("0.0.0.0", "::", "") else (address.host,)


def http_app(server: Server, **options: Unpack[AsgiAppOptions]) -> AsgiApplication:
    """Return an ASGI application. When mounted, the remaining path is the endpoint."""
    validate_options("http_app()", options, AsgiAppOptions)
    if _has_names(options):
        _check_public_url(server)
    _check_audience(server, "an ASGI application does not bind the address that they use")
    application = build_application(server, _settings(server, options))

    @asynccontextmanager
    async def cluster_lifespan() -> AsyncIterator[None]:
        async with _join_cluster(server, application, files=True) as fleet:
            if _spans_machines(_shared_store(server)):
                await _listen_for_machines(fleet, BindAddress(), None)
            yield

    return AsgiApplication(application, cluster_lifespan)


def _local_service(server: Server) -> str | None:
    """Return the name of the first service that only serves this machine, or None."""
    return next((service.name for service in server.services if getattr(service, "local_only", False)), None)


def _settings(server: Server, options: HttpAppOptions, *, named: Sequence[str] = ()) -> HttpServerSettings:
    """Return the transport settings from options and environment variables."""
    hosts = (*options.get("allowed_hosts", ()), *read_list_variable("PORTICO_ALLOWED_HOSTS"), *named)
    origins = (*options.get("allowed_origins", ()), *read_list_variable("PORTICO_ALLOWED_ORIGINS"))
    proxies = (*options.get("trusted_proxies", ()), *read_list_variable("PORTICO_TRUSTED_PROXIES"))
    decided: dict[str, Any] = {
        "token": options.get("token") or os.environ.get("PORTICO_TOKEN") or None,
        "allowed_hosts": hosts,
        "allowed_origins": origins,
        "trusted_proxies": proxies,
        "local_only": _local_service(server) is not None,
        "stateless_session_key": server.state_sealer.key_material if options.get("stateless") else None,
    }
    return HttpServerSettings(**_fields(HttpServerSettings, options) | decided)


def _public_host(server: Server) -> list[str]:
    """Return the host of the public URL, with and without its port: a proxy may forward either (nginx: `$host`)."""
    url = server.auth.public_url if server.auth is not None else None
    if url is None:
        return []
    parts = urlsplit(url)
    return [parts.netloc] if parts.port is None else [parts.netloc, parts.netloc.rpartition(":")[0]]


def _fields(of: type[Struct], options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in of.__struct_fields__ if name in options}


def read_list_variable(name: str) -> list[str]:
    """Return the comma-separated values of an environment variable."""
    return [word.strip() for word in os.environ.get(name, "").split(",") if word.strip()]


def _print_url(url: str) -> None:
    print(f"Serving on {url}", file=sys.stderr, flush=True)
