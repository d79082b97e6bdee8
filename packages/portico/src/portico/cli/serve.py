"""`portico serve` and `portico worker`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from shlex import quote
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from msgspec.structs import replace

from portico._lazy import LazyModule
from portico.cli import tool_search
from portico.cli.connection_errors import is_url, parse_headers
from portico.cli.data_dir import store_url
from portico.cli.logging import configure_logging, is_level_set
from portico.cli.specs import apply_serve_defaults, parse_serve, parser_for
from portico.cli.terminal_text import is_terminal
from portico.compat.fastmcp.config_file import Deployment, fastmcp_deployment, fastmcp_source
from portico.protocol.errors import UsageError
from portico.server.server import Server, ToolSearchConfig
from portico.settings_file import locate
from portico.store.data_directory import resolve_data_directory
from portico.transports import importer, stdio
from portico.transports.event_loop import handle_signals, new_event_loop

# Deferred: over stdio every client starts its own process, which needs few of these modules.
if TYPE_CHECKING:
    from portico import plugins
    from portico.cli import local_token
    from portico.server import settings
else:
    plugins = LazyModule("portico.plugins")
    local_token = LazyModule("portico.cli.local_token")
    settings = LazyModule("portico.server.settings")


def run(argv: list[str]) -> None:
    """Run `portico serve`."""
    arguments = parse_serve(argv)
    deployment = fastmcp_deployment(arguments.target or "")
    # Before `apply_serve_defaults`: afterwards an option that was left out looks like one that was set.
    if deployment is not None:
        _deploy(deployment, arguments)
    apply_serve_defaults(arguments)
    # At a terminal over HTTP the request log shows that clients connect; on stdio it would fill the client's log.
    show_welcome = arguments.transport == "http" and is_terminal(sys.stderr)
    configure_logging("warning", level=arguments.log_level, format=arguments.log_format, requests=show_welcome)
    if not is_level_set(arguments.log_level):
        # Operators who change the file of a running gateway see that it was applied.
        logging.getLogger("portico.gateway.configuration").setLevel(logging.INFO)
    if arguments.target is None:
        services = _services("serving the built-in services")
        server, serving = services.add_services(arguments)
        server.tool_search = services.choose_listed_tools(server, arguments, serving)
    else:
        _check_service_options(arguments)
        if arguments.profile is not None:
            server = load_server(arguments.target)
            serving = _services("--profile").apply_profile(server, arguments)
        elif is_url(arguments.target):
            server, serving = _proxy(arguments.target, arguments.header), _load_serve_section(arguments)
        else:
            server, serving = load_server(arguments.target), _load_serve_section(arguments)
        if arguments.services is not None:
            _services("--services").add_services(arguments, into=server)
    # Rejected rather than ignored: the header is usually a credential, and the user expects it to be sent.
    if arguments.header and not is_url(arguments.target or ""):
        raise UsageError("--header requires a TARGET that is a URL")
    server.data_dir = arguments.data
    # A store that the program sets itself takes precedence over the command line.
    if arguments.store and server.store is None:
        server.store = store_url(arguments.store, arguments.data, server.info.name)
    _apply_access(server, arguments)
    _set_up_tasks(server, arguments)
    if _is_gateway(arguments):
        server.store = store_url(arguments.store, arguments.data, server.info.name)
    options = _options(arguments, serving)
    if arguments.workers is not None and arguments.transport != "http":
        raise UsageError("--workers requires --transport http: stdio has a single client")
    if serving is not None and (serving.tool_exposure or serving.always_visible):
        server.tool_search = ToolSearchConfig(serving.tool_exposure, serving.always_visible)
    if serving is not None and serving.code_limits:
        server.tool_search = replace(server.tool_search, code=serving.code_limits)
    tool_search.mount_tool_search(server, arguments, server.tool_search)
    if arguments.view is not None:
        _serve_view(server, arguments, options)
        return
    if arguments.transport == "http":
        console = plugins.find_plugin("console")
        site = None if console is None else console.attach_console(server, arguments)
        _run(server, arguments, options, _protect(server, arguments, options, serving), site)
    else:
        # At a terminal no client will ever write to standard input, and the command would appear to hang.
        if sys.stdin.isatty():
            from portico.cli import welcome

            welcome.print_stdio_hint(server, arguments)
        server.run("stdio", **options)


def _run(
    server: Server,
    arguments: argparse.Namespace,
    options: dict[str, Any],
    announce: Callable[[str], None] | None,
    site: Any,
) -> None:
    if site is not None:
        announce = partial(plugins.find_plugin("console").announce_console, site, announce, arguments.data)
    from portico.server import http

    http.run_http(server, on_ready=announce, **options)


def _deploy(deployment: Deployment, arguments: argparse.Namespace) -> None:
    """Apply the `deployment` of a fastmcp.json. Command-line options take precedence."""
    addresses = (arguments.host, arguments.port, arguments.unix_socket, arguments.fd, arguments.workers)
    # An address on the command line already selects HTTP, so the transport of the file must not override it.
    if arguments.transport is None and all(item is None for item in addresses):
        arguments.transport = "stdio" if deployment.transport in (None, "stdio") else "http"
        arguments.sse = arguments.sse or deployment.transport == "sse"
    if arguments.transport != "stdio":
        arguments.host = arguments.host or deployment.host
        arguments.port = deployment.port if arguments.port is None else arguments.port
        # FastMCP's paths end with a slash. `/sse` is a fixed path here.
        if deployment.path and deployment.transport != "sse":
            arguments.path = arguments.path or f"/{deployment.path.strip('/')}"
    arguments.log_level = arguments.log_level or (deployment.log_level or "").lower() or None
    if deployment.cwd:
        if (arguments.workers or os.environ.get("PORTICO_WORKERS")) and not os.path.isabs(arguments.target):
            # Each worker runs the same command line again, in the directory that the file names.
            raise UsageError(
                f"{arguments.target} sets `deployment.cwd`, so workers cannot find it by a relative path: use "
                f"{os.path.abspath(arguments.target)}"
            )
        # Paths on the command line are relative to the directory in which it was typed.
        for name in ("target", "config", "data", "token_file", "unix_socket", "ssl_certfile", "ssl_keyfile"):
            if getattr(arguments, name):
                setattr(arguments, name, os.path.abspath(getattr(arguments, name)))
        if arguments.store and "://" not in arguments.store:
            arguments.store = os.path.abspath(arguments.store)
    deployment.apply(arguments.target)


def _is_gateway(arguments: argparse.Namespace) -> bool:
    target = arguments.target
    return target is not None and target.endswith((".json", ".toml")) and fastmcp_source(target) is None


def _load_serve_section(arguments: argparse.Namespace) -> Any:
    """Return the serve settings of the settings file for a user's own server. Raises UsageError for an invalid file."""
    if arguments.config is None:
        return None
    services = plugins.find_plugin("services")
    if services is not None:
        # This validates the tables of the services, too.
        read = services.read_settings(None, arguments.config)
    else:
        read = settings.read_settings(arguments.config)
    if read.server != settings.ServerSection():
        # Rejected rather than ignored: `strict_arguments` or `capabilities` would not apply.
        raise UsageError(
            f"{locate(arguments.config, 'server')}: [server] applies to the built-in services; set these "
            "options where your program creates its Server, or use --profile"
        )
    return read.serve


def _services(purpose: str) -> Any:
    return plugins.require_plugin("services", purpose)


def _apply_access(server: Server, arguments: argparse.Namespace) -> None:
    """Apply access settings from the file; command-line options override its [auth] section."""
    options = {
        "issuers": tuple(arguments.auth_issuer),
        "audience": arguments.auth_audience,
        "public_url": arguments.public_url,
        "token_file": os.path.abspath(arguments.token_file) if arguments.token_file else None,
    }
    overrides = {name: part for name, part in options.items() if part}
    if arguments.config is None and not overrides:
        return
    from portico.server.policy import settings as access_settings

    access = (
        access_settings.AccessSettings() if arguments.config is None else access_settings.read_file(arguments.config)
    )
    if overrides:
        settings = access.sections.get("auth")
        if settings is None and (arguments.target or "").endswith(".toml"):
            # A gateway file may contain the rest.
            settings = access_settings.read_file(arguments.target).sections.get("auth")
        from portico.auth import settings as auth_settings

        access.sections["auth"] = auth_settings.with_overrides(settings, overrides)
    access_settings.apply(server, access)


def _serve_view(server: Server, arguments: argparse.Namespace, options: dict[str, Any]) -> None:
    """Serve one view of a gateway over stdio. Over HTTP each view has its own path."""
    if arguments.transport == "http":
        raise UsageError("--view requires stdio: over HTTP each view has its own path")
    # Only gateways have views.
    views: dict[str, Any] = getattr(server, "views", {})
    if arguments.view not in views:
        available = f"expected one of {', '.join(views)}" if views else "it has no views"
        raise UsageError(f"unknown view {arguments.view!r} in {arguments.target or 'this server'}; {available}")
    view: Any = views[arguments.view]
    if arguments.face not in (None, "all"):
        view = tool_search.create_public_handler(
            arguments.face, server, view, arguments, server.tool_search, server.tool_search
        )
    stdio.run(view, server.lifespan, **options)


# Names of the services with personal data: memories, work items, code sessions and files. Over HTTP they require a
# token even on a loopback address. A service that is missing here would be open to every user of the machine.
_PERSONAL_SERVICES = frozenset({"memory", "tasks", "live", "system"})
# The service that enables and disables the others, if it was requested.
OPERATOR_SERVICE = "operator"


def _protect(
    server: Server, arguments: argparse.Namespace, options: dict[str, Any], serving: Any
) -> Callable[[str], None] | None:
    """Add the local tokens of an HTTP server to its options, and return the function that announces its URL.

    Other users of this machine can reach a loopback address, so built-in services and gateways require a token.
    """
    port = arguments.port if arguments.unix_socket is None and arguments.fd is None else 0
    announce: Callable[[str], None] | None = None
    if not _is_personal(server, arguments) or server.auth is not None or os.environ.get("PORTICO_TOKEN"):
        pass
    elif arguments.no_auth or (serving is not None and serving.no_auth):
        reason = "--no-auth" if arguments.no_auth else "no_auth = true in its settings"
        announce = partial(
            _announce_without_token, f"No token is required ({reason}): every user of this machine has access."
        )
    elif _is_near(arguments):
        # A token that exists for this port is used again, so that clients configured with it survive a restart.
        running_token = local_token.find_token(port, arguments.data) if port else None
        options["token"] = running_token or local_token.generate_token()
        announce = partial(_announce_token, options["token"], arguments.data, running_token is None)
    announce = _with_operator(server, arguments, options, port, announce)
    if arguments.target is None:
        from portico.cli import welcome

        announce = welcome.after(announce, server, arguments)
    return announce


def _is_personal(server: Server, arguments: argparse.Namespace) -> bool:
    """Return whether a server holds personal data or credentials."""
    services = {service.name for service in server.services}
    # With the operator service, services that are not served yet may be enabled later.
    return bool(_PERSONAL_SERVICES & services) or OPERATOR_SERVICE in services or _is_gateway(arguments)


def _is_near(arguments: argparse.Namespace) -> bool:
    """Return whether only this machine's users can connect.

    A Unix socket is accessible to this user only; other addresses require authentication or --insecure anyway.
    """
    from portico.transports.http_server import bind_address

    return arguments.unix_socket is None and bind_address.BindAddress(host=arguments.host, fd=arguments.fd).is_local()


def _with_operator(
    server: Server,
    arguments: argparse.Namespace,
    options: dict[str, Any],
    port: int,
    announce: Callable[[str], None] | None,
) -> Callable[[str], None] | None:
    """Add the operator token, which gateway status and the switching of services require."""
    if _is_gateway(arguments):
        hint = "`portico gateway status` shows its upstreams"
    elif OPERATOR_SERVICE in {service.name for service in server.services}:
        hint = "The operator token enables and disables services: PORTICO_TOKEN=$(cat {path})"
    else:
        return announce
    operator_token = os.environ.get("PORTICO_OPERATOR_TOKEN")
    running_token = local_token.find_token(port, arguments.data, OPERATOR_SERVICE) if port else None
    options["operator_token"] = operator_token or running_token or local_token.generate_token()
    # It comes from the environment, where the operator already has it: writing it to a file would only add a copy.
    if operator_token:
        return announce
    return partial(_announce_operator, options["operator_token"], arguments.data, hint, announce)


def _announce_operator(
    token: str, data: str | None, hint: str, announce: Callable[[str], None] | None, url: str
) -> None:
    """Store the operator token in a file that only this user can read, and print its purpose."""
    # Saved only when the server listens: with --port 0 the port, which names the file, is unknown until then.
    path = local_token.save_token(token, urlsplit(url).port or 0, data, OPERATOR_SERVICE)
    if announce is not None:
        announce(url)
    else:
        print(f"Serving on {url}", file=sys.stderr)
    print(f"  {hint.format(path=quote(path))}", file=sys.stderr, flush=True)


def _announce_without_token(notice: str, url: str) -> None:
    print(f"Serving on {url}\n  {notice}", file=sys.stderr, flush=True)


def _announce_token(token: str, data: str | None, is_new: bool, url: str) -> None:
    """Print the token once if the output is a terminal, otherwise the path of its file."""
    path = local_token.save_token(token, urlsplit(url).port or 0, data)
    # A journal or a log file has other readers, and a reused token was already shown when it was created.
    value = token if is_new and is_terminal(sys.stderr) else f"$(cat {quote(path)})"
    folder = resolve_data_directory(data)
    # Commands read the data directory that the environment names.
    condition = "" if folder == resolve_data_directory() else f" with PORTICO_DATA={quote(str(folder))}"
    print(
        f"Serving on {url}\n"
        f"  A token is required. Your own `portico` commands find it{condition}; other clients use:\n"
        f"  export PORTICO_TOKEN={value}",
        file=sys.stderr,
        flush=True,
    )


def run_worker(argv: list[str]) -> None:
    """Run `portico worker`."""
    arguments = parser_for("worker").parse(argv)
    configure_logging("info")
    server = load_server(arguments.target)
    if server.tasks is None:
        raise UsageError(f"{arguments.target} has no tools that can run as tasks")
    server.data_dir = arguments.data
    if arguments.config is not None:
        # Access is checked again when a task runs, because permissions may have changed, and calls are audited.
        _load_serve_section(arguments)
        from portico.server.policy import settings as access_settings

        access_settings.apply(server, access_settings.read_file(arguments.config))
    _set_up_tasks(server, arguments)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_work(server))


async def _work(server: Server) -> None:
    """Run tasks until a signal arrives. Running tasks then return to the queue."""
    stop = asyncio.Event()
    with handle_signals(stop.set):
        async with server.lifespan():
            print(f"Running the tasks of {server.info.name}", file=sys.stderr, flush=True)
            await stop.wait()


def _proxy(url: str, header_options: list[str]) -> Server:
    """Return a gateway with one upstream whose names are unchanged.

    `${NAME}` in a header is an environment variable. A token is found in the same way as for client commands.
    """
    headers = parse_headers(header_options)
    token = None if any(name.lower() == "authorization" for name in headers) else local_token.for_request(url)
    if token is not None:
        # An explicit header takes precedence over a token that was found.
        headers["Authorization"] = f"Bearer {token}"
    entry = {"url": url, "headers": headers}
    info = asyncio.run(_read_upstream_info(entry))
    return cast("Server", plugins.require_plugin("gateway", "a proxy").make_proxy(info, entry))


async def _read_upstream_info(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the upstream's name, version and instructions.

    Raises an error if the upstream is unreachable, because the gateway would be empty.
    """
    from portico.client import client

    async with client.Client(entry) as upstream:
        info = upstream.server_info
        info_options = {} if info is None else {"version": info.version, "title": info.title}
        options = {
            "name": "proxy" if info is None else info.name,
            "instructions": upstream.instructions,
            **info_options,
        }
        return {name: value for name, value in options.items() if value}


def load_server(target: str) -> Server:
    """Return the Server that a target names; without an object, `server` or the only Server of the module."""
    source = fastmcp_source(target)
    if source is not None:
        target = source
    if target.endswith((".json", ".toml")):
        return cast("Server", plugins.require_plugin("gateway", f"{target}, a gateway file,").load_gateway(target))
    # A client would treat such a target as a command; here it can only be a path.
    if not importer.is_import_string(target) and ("/" in target or "\\" in target) and not os.path.exists(target):
        raise UsageError(f"file {target} not found")
    server = importer.import_server(target)
    if not isinstance(server, Server):
        raise UsageError(f"{target} is not a Server")
    return server


def _set_up_tasks(server: Server, arguments: argparse.Namespace) -> None:
    if server.tasks is not None:
        server.store = store_url(arguments.store, arguments.data, server.info.name)
        server.tasks.concurrency = arguments.task_concurrency


def _check_service_options(arguments: argparse.Namespace) -> None:
    """Raise UsageError for options of the built-in services if none are served."""
    if arguments.services is not None and _is_gateway(arguments):
        raise UsageError(
            "--services cannot be combined with a gateway file: add the services to it as an upstream with "
            'command = ["portico", "serve", "--services", "…"]'
        )
    # Ignored silently, --read-only and --allow-path would look like limits that protect something.
    set_options = {
        "--allow-path": arguments.allow_path,
        "--python-project": arguments.python_project,
        "--read-only": arguments.read_only,
        "--service-admin": arguments.service_admin,
    }
    for flag, value in set_options.items():
        if value and arguments.services is None:
            raise UsageError(f"{flag} requires built-in services; add them to this server with --services NAMES")


def _options(arguments: argparse.Namespace, serving: Any) -> dict[str, Any]:
    """Return the options of `Server.run`: from the command line, otherwise from the settings."""
    max_size = arguments.max_message_size
    if max_size is None and serving is not None:
        max_size = serving.max_message_size
    lifecycle = arguments.lifecycle or (serving.lifecycle if serving is not None else None) or "auto"
    if arguments.transport == "http":
        default_version = serving.default_protocol_version if serving is not None else None
        serving_options = {"default_protocol_version": default_version, "lifecycle": lifecycle}
        return _http(arguments) | serving_options | ({} if max_size is None else {"max_body_size": max_size})
    return {"lifecycle": lifecycle} | ({} if max_size is None else {"max_message_size": max_size})


def _http(arguments: argparse.Namespace) -> dict[str, Any]:
    same = ("host", "port", "unix_socket", "fd", "workers", "path", "stateless", "insecure", "sse")
    names = (*same, "ssl_certfile", "ssl_keyfile")
    http_options = {name: getattr(arguments, name) for name in names}
    # Flags that may be repeated are named in the singular.
    renamed = {
        "allowed_hosts": "allowed_host",
        "allowed_origins": "allowed_origin",
        "trusted_proxies": "trusted_proxy",
    }
    return http_options | {name: getattr(arguments, option) for name, option in renamed.items()}
