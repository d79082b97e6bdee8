"""Command-line arguments of each command, by subject.

Nothing heavy is imported here, because completion and hooks read these modules too.
"""

from __future__ import annotations

import argparse

from portico._lazy import load_module
from portico.cli.commands import plugin_commands
from portico.cli.specs import client, serving, setup, store
from portico.cli.specs.parser import CommandParser, CommandSpec
from portico.transports.short_urls import with_scheme

COMMAND_SPECS: dict[str, CommandSpec] = {
    **serving.COMMAND_SPECS,
    **client.COMMAND_SPECS,
    **store.COMMAND_SPECS,
    **setup.COMMAND_SPECS,
}


def form_for(command: str) -> CommandSpec:
    """Return the specification of a command, of this package or of a plugin."""
    result: CommandSpec = COMMAND_SPECS.get(command) or load_module(plugin_commands()[command].forms).FORMS[command]
    return result


def parser_for(command: str, *, with_target: bool = True) -> CommandParser:
    """Return the argument parser of a command."""
    return form_for(command).create_parser(command, with_target=with_target)


def parse_target_command(command: str, argv: list[str]) -> argparse.Namespace:
    """Parse the arguments of a command that connects to a server. Words after `--` are a command instead of TARGET."""
    child: list[str] | None = None
    if "--" in argv:
        at = argv.index("--")
        argv, child = argv[:at], argv[at + 1 :]
    parser = parser_for(command, with_target=child is None)
    if child == []:
        parser.error("expected a command after --")
    arguments = parser.parse(argv)
    require_utf8(parser, [getattr(arguments, name, "") for name in ("tool", "uri", "name")])
    if child is not None:
        arguments.target = child
    elif isinstance(getattr(arguments, "target", None), str):
        arguments.target = with_scheme(arguments.target)
    return arguments


def parse_serve(words: list[str]) -> argparse.Namespace:
    """Parse the arguments of `serve`. Exits with an error for more than one of --tool-search and its alternatives."""
    # argparse would treat a TARGET after a bare --tool-search as its value.
    words = ["--tool-search=search" if word == "--tool-search" else word for word in words]
    parser = parser_for("serve")
    choices = {word.partition("=")[0] for word in words} & {"--tool-search", "--no-tool-search", "--code-mode"}
    if len(choices) > 1:
        parser.error(f"only one of {', '.join(sorted(choices))} is allowed")
    arguments = parser.parse(words)
    if arguments.target is not None:
        arguments.target = with_scheme(arguments.target)
    return arguments


def apply_serve_defaults(arguments: argparse.Namespace) -> argparse.Namespace:
    """Apply the defaults of `serve`: an address to listen on selects HTTP."""
    http_options = (arguments.host, arguments.port, arguments.unix_socket, arguments.fd, arguments.workers)
    if arguments.transport is None:
        arguments.transport = "stdio" if all(option is None for option in http_options) else "http"
    if arguments.transport == "stdio":
        _reject_http_options(arguments)
    arguments.host = "127.0.0.1" if arguments.host is None else arguments.host
    arguments.port = 8080 if arguments.port is None else arguments.port
    arguments.path = getattr(arguments, "path", None) or "/mcp"
    return arguments


# Options of HTTP that are not addresses. The last ones are lists or switches, so that empty means not given.
_HTTP_OPTIONS = (
    "host", "port", "unix_socket", "fd", "workers", "path", "public_url", "ssl_certfile", "ssl_keyfile",
    "allowed_host", "allowed_origin", "trusted_proxy", "stateless", "sse",
)  # fmt: skip


def _reject_http_options(arguments: argparse.Namespace) -> None:
    """Reject options that stdio would ignore: a user who limits hosts or sets a port expects HTTP."""
    # Imported here, because most commands do not need it.
    from portico.protocol.errors import UsageError

    for name in _HTTP_OPTIONS:
        if getattr(arguments, name, None) not in (None, False, []):
            raise UsageError(f"--{name.replace('_', '-')} requires --transport http, or --port; stdio does not use it")


def require_utf8(parser: CommandParser, values: list[str]) -> None:
    """Report a usage error for values that are not valid UTF-8."""
    for value in values:
        if not is_utf8(value):
            parser.error(f"{value!r} is not valid UTF-8")


def is_utf8(word: str) -> bool:
    """Return whether a word is valid UTF-8. Python decodes other bytes of a command line to lone surrogates."""
    return not any("\ud800" <= char <= "\udfff" for char in word)
