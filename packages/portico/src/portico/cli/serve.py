"""`portico serve` and `portico work`"""

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
from portico.cli.logging import is_level_said, set_log_level
from portico.cli.specs import complete_serving, parser_for
from portico.cli.terminal_text import is_terminal
from portico.compat.fastmcp.config_file import fastmcp_source
from portico.protocol.errors import UsageError
from portico.server.server import FaceChoice, Server
from portico.store.data_directory import data_directory
from portico.transports import importer, stdio
from portico.transports.event_loop import new_loop, on_signals

if TYPE_CHECKING:
    from portico import plugins
    from portico.auth import settings as auth_settings
    from portico.cli import local_token, welcome
    from portico.client import client
    from portico.server import http, settings
    from portico.server.policy import settings as access_settings
    from portico.transports.http_server import bind_address
else:
    plugins = LazyModule("portico.plugins")
    auth_settings = LazyModule("portico.auth.settings")
    local_token = LazyModule("portico.cli.local_token")
    welcome = LazyModule("portico.cli.welcome")
    client = LazyModule("portico.client.client")
    http = LazyModule("portico.server.http")
    settings = LazyModule("portico.server.settings")
    access_settings = LazyModule("portico.server.policy.settings")
    bind_address = LazyModule("portico.transports.http_server.bind_address")


def run(words: list[str]) -> None:
    arguments = complete_serving(parser_for("serve").read(words))
    # A person who serves over HTTP wants to see that clients come; on stdio the lines would be in a client's log.
    shown = arguments.transport == "http" and is_terminal(sys.stderr)
    set_log_level("warning", level=arguments.log_level, form=arguments.log_format, requests=shown)
    if not is_level_said(arguments.log_level):
        # An operator who changes the file of a running gateway sees that it was applied.
        logging.getLogger("portico.gateway.configuration").setLevel(logging.INFO)
    if arguments.target is None:
        services = _services("serving the built-in services")
        server, serving = services.add_services(arguments)
        server.faces = services.choose_listed_tools(server, arguments, serving)
    else:
        _check_service_options(arguments)
        if arguments.profile is not None:
            server = load(arguments.target)
            serving = _services("--profile").apply_profile(server, arguments)
        elif is_url(arguments.target):
            server, serving = _proxy(arguments.target, arguments.header), _serving(arguments)
        else:
            server, serving = load(arguments.target), _serving(arguments)
        if arguments.services is not None:
            _services("--services").add_services(arguments, into=server)
    if arguments.header and not is_url(arguments.target or ""):
        raise UsageError("--header is for a TARGET that is a URL")
    server.data = arguments.data
    if arguments.store and server.store is None:
        server.store = store_url(arguments.store, arguments.data, server.info.name)
    _apply_access(server, arguments)
    _set_up_tasks(server, arguments)
    if _is_gateway(arguments):
        server.store = store_url(arguments.store, arguments.data, server.info.name)
    options = _options(arguments, serving)
    if arguments.workers is not None and arguments.transport != "http":
        raise UsageError("--workers is for --transport http: on stdio there is one client")
    if serving is not None and (serving.face or serving.always):
        server.faces = FaceChoice(serving.face, serving.always)
    if serving is not None and serving.code:
        server.faces = replace(server.faces, code=serving.code)
    tool_search.put_on(server, arguments, server.faces)
    if arguments.view is not None:
        _serve_view(server, arguments, options)
        return
    if arguments.transport == "http":
        console = plugins.find_plugin("console")
        site = None if console is None else console.attach_console(server, arguments)
        _run(server, arguments, options, _protect(server, arguments, options, serving), site)
    else:
        if sys.stdin.isatty():
            welcome.waiting(server, arguments)
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
    http.run(server, announce=announce, **options)


def _is_gateway(arguments: argparse.Namespace) -> bool:
    target = arguments.target
    return target is not None and target.endswith((".json", ".toml")) and fastmcp_source(target) is None


def _serving(arguments: argparse.Namespace) -> Any:
    """What a file says about serving a server of the user's own. Raises UsageError for what is nothing that it may
    say."""
    if arguments.config is None:
        return None
    services = plugins.find_plugin("services")
    if services is not None:
        # It checks the tables of the services, too.
        return services.read_settings(None, arguments.config).serve
    return settings.read_settings(arguments.config).serve


def _services(purpose: str) -> Any:
    return plugins.require_plugin("services", purpose)


def _apply_access(server: Server, arguments: argparse.Namespace) -> None:
    """Who may do what: as the file says, and for who comes in as the line says."""
    flags = {
        "issuers": tuple(arguments.auth_issuer),
        "audience": arguments.audience,
        "public_url": arguments.public_url,
        "tokens": os.path.abspath(arguments.auth_tokens) if arguments.auth_tokens else None,
    }
    given = {name: part for name, part in flags.items() if part}
    if arguments.config is None and not given:
        return
    said = access_settings.AccessSettings() if arguments.config is None else access_settings.read_file(arguments.config)
    if given:
        below = said.sections.get("auth")
        if below is None and (arguments.target or "").endswith(".toml"):
            # A gateway's own file may say the rest.
            below = access_settings.read_file(arguments.target).sections.get("auth")
        said.sections["auth"] = auth_settings.changed(below, given)
    access_settings.apply(server, said)


def _serve_view(server: Server, arguments: argparse.Namespace, options: dict[str, Any]) -> None:
    """One view of a gateway, on stdio; over HTTP each has its path."""
    if arguments.transport == "http":
        raise UsageError("--view is for stdio: over HTTP each view has a path of its own")
    views: dict[str, Any] = getattr(server, "views", {})
    if arguments.view not in views:
        known = f"there are {', '.join(views)}" if views else "there is none"
        raise UsageError(f"there is no view {arguments.view!r} in {arguments.target or 'this server'}; {known}")
    view: Any = views[arguments.view]
    if arguments.face not in (None, "all"):
        view = tool_search.worn(arguments.face, server, view, arguments, server.faces, server.faces)
    stdio.run(view, server.lifespan, **options)


# The services that hold a person's own: what was said, planned, run and stored.
_PERSONAL = frozenset({"memory", "tasks", "live", "system"})
# The service that switches the others on and off, if it was asked for.
OPERATOR = "operator"


def _protect(
    server: Server, arguments: argparse.Namespace, options: dict[str, Any], serving: Any
) -> Callable[[str], None] | None:
    """Add the local tokens of a server over HTTP to its options, and return the function that announces its URL.

    Other users of this machine can reach a loopback address, so the built-in services and gateways require a token.
    """
    port = arguments.port if arguments.unix is None and arguments.fd is None else 0
    announce: Callable[[str], None] | None = None
    if not _is_personal(server, arguments) or server.auth is not None or os.environ.get("PORTICO_TOKEN"):
        pass
    elif arguments.open or (serving is not None and serving.open):
        why = "--open" if arguments.open else "open = true in its settings"
        announce = partial(_announce_open, f"No token is required ({why}): every user of this machine has access.")
    elif _is_near(arguments):
        known = local_token.find(port, arguments.data) if port else None
        options["token"] = known or local_token.make()
        announce = partial(_announce_token, options["token"], arguments.data, known is None)
    announce = _with_operator(server, arguments, options, port, announce)
    if arguments.target is None:
        announce = welcome.after(announce, server, arguments)
    return announce


def _is_personal(server: Server, arguments: argparse.Namespace) -> bool:
    """Return whether a server holds personal data or credentials."""
    services = {service.name for service in server.services}
    # With an operator, services that are not served yet may be switched on.
    return bool(_PERSONAL & services) or OPERATOR in services or _is_gateway(arguments)


def _is_near(arguments: argparse.Namespace) -> bool:
    """Return whether other users of this machine, and nobody else, can connect.

    The path of a Unix socket is for this user alone; other addresses require authentication or --insecure anyway.
    """
    return arguments.unix is None and bind_address.Place(host=arguments.host, fd=arguments.fd).is_local()


def _with_operator(
    server: Server,
    arguments: argparse.Namespace,
    options: dict[str, Any],
    port: int,
    announce: Callable[[str], None] | None,
) -> Callable[[str], None] | None:
    """Add the operator's token, which the status of a gateway and the switching of services require."""
    if _is_gateway(arguments):
        hint = "`portico gateway status` shows its upstreams"
    elif OPERATOR in {service.name for service in server.services}:
        hint = "The operator's token switches services: PORTICO_TOKEN=$(cat {path})"
    else:
        return announce
    given = os.environ.get("PORTICO_OPERATOR_TOKEN")
    known = local_token.find(port, arguments.data, OPERATOR) if port else None
    options["operator_token"] = given or known or local_token.make()
    if given:
        return announce
    return partial(_announce_operator, options["operator_token"], arguments.data, hint, announce)


def _announce_operator(
    token: str, data: str | None, hint: str, announce: Callable[[str], None] | None, url: str
) -> None:
    """Store the operator's token in a file for this user alone, and print what it is for."""
    path = local_token.keep(token, urlsplit(url).port or 0, data, OPERATOR)
    if announce is not None:
        announce(url)
    else:
        print(f"Serving on {url}", file=sys.stderr)
    print(f"  {hint.format(path=quote(path))}", file=sys.stderr, flush=True)


def _announce_open(how: str, url: str) -> None:
    print(f"Serving on {url}\n  {how}", file=sys.stderr, flush=True)


def _announce_token(token: str, data: str | None, is_new: bool, url: str) -> None:
    """Print the token once, if a terminal shows it; print the path of its file otherwise."""
    path = local_token.keep(token, urlsplit(url).port or 0, data)
    value = token if is_new and is_terminal(sys.stderr) else f"$(cat {quote(path)})"
    folder = data_directory(data)
    # Commands look into the directory that the environment names.
    condition = "" if folder == data_directory() else f" with PORTICO_DATA={quote(str(folder))}"
    print(
        f"Serving on {url}\n"
        f"  A token is required. Your own `portico` commands find it{condition}; other clients use:\n"
        f"  export PORTICO_TOKEN={value}",
        file=sys.stderr,
        flush=True,
    )


def run_work(words: list[str]) -> None:
    arguments = parser_for("work").read(words)
    set_log_level("info")
    server = load(arguments.target)
    if server.tasks is None:
        raise UsageError(f"{arguments.target} has no tool that may become a task, so there is nothing to work on")
    server.data = arguments.data
    if arguments.config is not None:
        # What was allowed may not be any more when its turn comes, and what is done is recorded.
        _serving(arguments)
        access_settings.apply(server, access_settings.read_file(arguments.config))
    _set_up_tasks(server, arguments)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_work(server))


async def _work(server: Server) -> None:
    """Runs tasks until a signal comes. Tasks that are running then go back into the queue."""
    stop = asyncio.Event()
    with on_signals(stop.set):
        async with server.lifespan():
            print(f"Working on the tasks of {server.info.name}", file=sys.stderr, flush=True)
            await stop.wait()


def _proxy(url: str, words: list[str]) -> Server:
    """Return a gateway with one server behind it, whose names stay as they are.

    `${NAME}` in a header is a variable of the environment. A token is found as the client commands find it.
    """
    headers = parse_headers(words)
    token = None if any(name.lower() == "authorization" for name in headers) else local_token.for_request(url)
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    entry = {"url": url, "headers": headers}
    about = asyncio.run(_greet(entry))
    return cast("Server", plugins.require_plugin("gateway", "a proxy").make_proxy(about, entry))


async def _greet(entry: dict[str, Any]) -> dict[str, Any]:
    """Return what a server says of itself. Raises the Error of one that cannot be reached: a gateway would be empty."""
    async with client.Client(entry) as upstream:
        info = upstream.server_info
        about = {} if info is None else {"version": info.version, "title": info.title}
        said = {"name": "proxy" if info is None else info.name, "instructions": upstream.instructions, **about}
        return {name: one for name, one in said.items() if one}


def load(target: str) -> Server:
    """Return the Server that a target names. Without an object it is `server`, or the only Server in the module."""
    source = fastmcp_source(target)
    if source is not None:
        target = source
    if target.endswith((".json", ".toml")):
        return cast("Server", plugins.require_plugin("gateway", f"{target}, a gateway file,").load_gateway(target))
    # A client would take such a target for a command; here it can only be a path.
    if not importer.is_named(target) and ("/" in target or "\\" in target):
        raise UsageError(f"there is no file {target}")
    server = importer.load(target)
    if not isinstance(server, Server):
        raise UsageError(f"{target} is not a Server")
    return server


def _set_up_tasks(server: Server, arguments: argparse.Namespace) -> None:
    if server.tasks is not None:
        server.store = store_url(arguments.store, arguments.data, server.info.name)
        server.tasks.concurrency = arguments.concurrency


def _check_service_options(arguments: argparse.Namespace) -> None:
    """Raise UsageError for options of the built-in services where none is served."""
    if arguments.services is not None and _is_gateway(arguments):
        raise UsageError(
            "--services cannot be combined with a gateway file: add the services to it as an upstream with "
            'command = ["portico", "serve", "--services", "…"]'
        )
    given = {"--root": arguments.root, "--project": arguments.project, "--read-only": arguments.read_only}
    for flag, value in {**given, "--operator": arguments.operator}.items():
        if value and arguments.services is None:
            raise UsageError(f"{flag} is an option of the built-in services; --services NAMES adds them to this server")


def _options(arguments: argparse.Namespace, serving: Any) -> dict[str, Any]:
    """The options of `Server.run`: what was typed, or else what the settings say."""
    longest = arguments.max_message
    if longest is None and serving is not None:
        longest = serving.max_message
    lifecycle = arguments.lifecycle or (serving.lifecycle if serving is not None else None) or "auto"
    if arguments.transport == "http":
        told = {"assume": serving.assume if serving is not None else None, "lifecycle": lifecycle}
        return _http(arguments) | told | ({} if longest is None else {"longest_body": longest})
    return {"lifecycle": lifecycle} | ({} if longest is None else {"longest": longest})


def _http(arguments: argparse.Namespace) -> dict[str, Any]:
    names = ("host", "port", "unix", "fd", "workers", "path", "stateless", "insecure", "sse", "certificate", "key")
    given = {name: getattr(arguments, name) for name in names}
    lists = {"allow_hosts": "allow_host", "allow_origins": "allow_origin", "trusted_proxies": "trusted_proxy"}
    return given | {name: getattr(arguments, option) for name, option in lists.items()}
