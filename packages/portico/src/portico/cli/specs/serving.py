"""The commands that serve: serve, dev, worker, record, replay."""

from __future__ import annotations

import argparse

from portico.cli.specs.options import (
    CWD,
    ENV,
    HEADER,
    SERVER_REFERENCE_HELP,
    STORE,
    TARGET,
    TARGET_HELP,
    TASK_CONCURRENCY,
    TOKEN,
    parse_count,
    parse_port,
    repeatable,
)
from portico.cli.specs.parser import CommandSpec, Option, argument, option

_TARGET = f"{SERVER_REFERENCE_HELP}; a gateway.toml or mcp.json; a URL to proxy (default: the built-in services)"
_CONFIG = option("--config", metavar="FILE", help="settings file (portico.toml)")
_TRANSPORTS = ("stdio", "http")


def _workers(text: str) -> int | str:
    return text if text == "auto" else parse_count(text)


def _descriptor(text: str) -> int | str:
    return text if text == "systemd" else parse_count(text)


def _address(default_port: int | None = None) -> tuple[Option, ...]:
    """Return --host and --port; without a default they stay None, and the caller selects the transport by them."""
    host = None if default_port is None else "127.0.0.1"
    return (
        option("--host", default=host, metavar="HOST", help="bind address (default: 127.0.0.1)"),
        option(
            "--port",
            type=parse_port,
            default=default_port,
            metavar="PORT",
            help="port (default: 8080; 0 for any free port)",
        ),
    )


_PATH = option("--path", metavar="PATH", help="endpoint path (default: /mcp)")

COMMAND_SPECS: dict[str, CommandSpec] = {
    "serve": CommandSpec(
        "portico serve [TARGET] [options]",
        "Serve a server over stdio or HTTP: your own, a gateway, or the built-in\nservices.",
        (argument("target", "file", nargs="?", help=_TARGET),),
        {
            "": (
                option(
                    "--transport",
                    choices=_TRANSPORTS,
                    help="transport (default: stdio; http if --host, --port, --unix-socket, --fd or --workers "
                    "is given)",
                ),
                _CONFIG,
                # Documented by `portico profiles`: few users need to emulate another server.
                option("--profile", metavar="NAME", help=argparse.SUPPRESS),
                option(
                    "--tool-search",
                    nargs="?",
                    const="search",
                    choices=("search", "auto"),
                    dest="face",
                    metavar="=auto",
                    help="list find_tools and call_tool instead of all tools; auto: only for large catalogs",
                ),
                option(
                    "--no-tool-search",
                    action="store_const",
                    const="all",
                    dest="face",
                    help="list all tools, whatever the settings specify",
                ),
                option(
                    "--code-mode",
                    action="store_const",
                    const="code",
                    dest="face",
                    help="list find_tools and run instead of all tools (portico-services)",
                ),
                option("--view", metavar="NAME", help="serve one view of a gateway file over stdio (portico-gateway)"),
                option(
                    "--lifecycle",
                    choices=("auto", "strict", "lenient"),
                    help="how strictly to enforce the initialize handshake (default: auto, by protocol version)",
                ),
                option(
                    "--max-message-size", type=int, metavar="BYTES", help="largest accepted message (default: 4 MiB)"
                ),
                HEADER,
            ),
            "logging": (
                option(
                    "--log-level",
                    metavar="LEVEL",
                    help="debug, info, warning, error or critical (default: PORTICO_LOG_LEVEL, or warning)",
                ),
                option("--log-format", choices=("text", "json"), help="log format; also logs one line per request"),
            ),
            "services": (
                option(
                    "--services", metavar="NAMES", help="built-in services to serve, comma-separated (portico-services)"
                ),
                repeatable("--allow-path", "PATH", "directory or file the system service may access"),
                repeatable("--python-project", "PATH", "project whose packages live Python can import"),
                option("--read-only", action="store_true", help="disable every tool that writes"),
                option(
                    "--service-admin",
                    action="store_true",
                    help="add tools that enable and disable services; over HTTP they need the operator token",
                ),
            ),
            "storage": (*STORE, TASK_CONCURRENCY),
            "HTTP": (
                *_address(),
                option("--unix-socket", metavar="PATH", help="Unix socket to listen on, accessible to this user only"),
                option(
                    "--fd",
                    nargs="?",
                    const="systemd",
                    type=_descriptor,
                    metavar="N",
                    help="inherited socket to listen on (default: the sockets passed by systemd)",
                ),
                option(
                    "--workers",
                    type=_workers,
                    metavar="N|auto",
                    help="worker processes; auto: one per core (default: PORTICO_WORKERS)",
                ),
                _PATH,
                repeatable("--allowed-host", "NAME", "accepted Host header, for example *.example.com"),
                repeatable("--allowed-origin", "URL", "accepted Origin header"),
                repeatable("--trusted-proxy", "ADDRESS", "proxy or network whose X-Forwarded-For header is trusted"),
                option("--public-url", metavar="URL", help="public URL of the server, without --path"),
                option(
                    "--stateless",
                    action="store_true",
                    help="keep no sessions; disables server-to-client requests, streams and subscriptions",
                ),
                option("--sse", action="store_true", help="also serve the 2024-11-05 endpoints /sse and /messages"),
                option("--ssl-certfile", metavar="FILE", help="TLS certificate chain"),
                option("--ssl-keyfile", metavar="FILE", help="TLS private key, if not in the certificate file"),
            ),
            "auth": (
                repeatable("--auth-issuer", "URL", "authorization server whose tokens are accepted"),
                option("--auth-audience", metavar="TEXT", help="required token audience (default: the public URL)"),
                option("--token-file", metavar="FILE", help="static access tokens; see `portico tokens`"),
                option(
                    "--no-auth", action="store_true", help="serve built-in services on this machine without a token"
                ),
                option("--insecure", action="store_true", help="accept remote clients without authentication"),
            ),
            "console": (
                option(
                    "--console",
                    default="local",
                    metavar="WHO",
                    help="who may open the console: off, local (browsers on this machine; default) or scope:NAME "
                    "(portico-console)",
                ),
            ),
        },
        examples=("serve --port 8080", "serve my_server.py", "serve mcp.json --port 8080"),
    ),
    "dev": CommandSpec(
        "portico dev FILE [options]",
        "Serve a file over HTTP and reload it on change, with a console if\n"
        "portico-console is installed. Clients stay connected and are notified; if the\n"
        "file fails to load, the last working version stays in service.",
        (argument("target", "file", metavar="FILE", help="path/to/file.py[:object]"),),
        {"": (*_address(8080), option(*_PATH.names, **_PATH.options, default="/mcp"), *STORE)},
        examples=("dev my_server.py",),
    ),
    "worker": CommandSpec(
        "portico worker TARGET [options]",
        "Run a server's queued tasks without serving requests. Any number of workers may\nshare one store.",
        (argument("target", "file", help=SERVER_REFERENCE_HELP),),
        {"": (_CONFIG, *STORE, TASK_CONCURRENCY)},
        examples=("worker my_server.py --store postgresql://db/tasks",),
    ),
    "record": CommandSpec(
        "portico record TARGET -o FILE [options]\n       portico record -o FILE [options] -- COMMAND …",
        "Capture the messages between a client and a server, without the secrets in\n"
        "them. The client starts this command instead of the server and connects to it\n"
        "over stdio, or over HTTP with --port.",
        (TARGET,),
        {
            "": (
                option(
                    "-o",
                    "--output",
                    required=True,
                    metavar="FILE",
                    help="recording to write; an existing file is overwritten",
                ),
                HEADER,
                TOKEN,
                ENV,
                CWD,
                option("--host", metavar="HOST", help="bind address over HTTP (default: 127.0.0.1)"),
                option(
                    "--port", type=parse_port, metavar="PORT", help="record over HTTP at this port; 0 for any free port"
                ),
            )
        },
        f"{TARGET_HELP}\n`portico replay FILE` serves the recording.",
        examples=("record my_server.py -o session.jsonl",),
    ),
    "replay": CommandSpec(
        "portico replay FILE [options]",
        "Serve a recording: the same request gets the same response, with the same\n"
        "server-to-client requests and notifications before it. Equal requests are\n"
        "answered in the order of the recording.",
        (argument("file", "file", metavar="FILE", help="Python file with a Server"),),
        {
            "": (
                option(
                    "--transport",
                    choices=_TRANSPORTS,
                    help="transport (default: stdio; http if --host or --port is given)",
                ),
                *_address(),
            )
        },
        "Exit status: 0 success; 1 requests that are not in the recording, which are\nlisted on standard error.",
        examples=("replay session.jsonl",),
    ),
}
