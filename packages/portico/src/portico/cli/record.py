"""`portico record` captures a server's messages; `portico replay` serves them back."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any

from portico.cli.connect import connection_options
from portico.cli.logging import configure_logging
from portico.cli.specs import apply_serve_defaults, parse_target_command, parser_for
from portico.cli.terminal_text import escape_control
from portico.client.client import Client
from portico.protocol.meta import Implementation
from portico.server.server import Server
from portico.transports import stdio
from portico.transports.event_loop import new_event_loop
from portico.transports.targets import Target, parse_target

# So that a test suite notices requests that the recording does not cover.
EXIT_NOT_RECORDED = 1
MAX_SHOWN_REQUESTS = 20


def run_record(argv: list[str]) -> None:
    """Run `portico record`."""
    arguments = parse_target_command("record", argv)
    configure_logging("warning")
    arguments.oauth = False
    # Before the file is opened, so that an invalid target does not overwrite an existing recording.
    target = _target(arguments)
    from portico.testing.recording import file as recording_file

    recorder = recording_file.Recorder(arguments.output)
    try:
        if arguments.port is None and arguments.host is None:
            _record_stdio(arguments, target, recorder)
        else:
            _record_http(arguments, recorder)
    finally:
        recorder.close()
    _print_status(f"{recorder.count} message{'' if recorder.count == 1 else 's'} in {arguments.output}")


def _record_stdio(arguments: argparse.Namespace, target: Target, recorder: Any) -> None:
    from portico.testing.recording import proxy as proxy_module

    proxy = proxy_module.RecordingProxy(target, recorder)
    stdin, stdout = stdio.claim_stdio()
    if sys.stderr.isatty():
        _print_status(f"recording to {arguments.output} until the client disconnects")
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(proxy.serve(stdin, stdout))


def _record_http(arguments: argparse.Namespace, recorder: Any) -> None:
    """Record over HTTP with a server that forwards everything: clients may come and go, and all share one recording."""
    options = connection_options(arguments.target, arguments)
    info, instructions = asyncio.run(_introduction(Client(arguments.target, **options)))
    server = Server(info.name, instructions, version=info.version, title=info.title, description=info.description)
    server.mount(Client(arguments.target, ignore_capabilities=True, on_message_bytes=recorder.record, **options))
    if sys.stderr.isatty():
        _print_status(f"recording to {arguments.output} until interrupted")
    server.run("http", host=arguments.host or "127.0.0.1", port=8080 if arguments.port is None else arguments.port)


async def _introduction(client: Client) -> tuple[Implementation, str | None]:
    """Return the server's info and instructions, so that the recording proxy presents itself as that server."""
    async with client:
        return client.server_info or Implementation("record", "0"), client.instructions


def _target(arguments: argparse.Namespace) -> Target:
    options = connection_options(arguments.target, arguments)
    headers: dict[str, str] = options["headers"]
    if options["auth"]:
        headers = {"Authorization": f"Bearer {options['auth']}", **headers}
    return parse_target(arguments.target, env=options["env"], cwd=options["cwd"], headers=headers or None)


def run_replay(argv: list[str]) -> int:
    """Run `portico replay`."""
    arguments = apply_serve_defaults(_set_missing_options(parser_for("replay").parse(argv)))
    configure_logging("warning")
    from portico.testing.recording import replay as replay_module

    replay = replay_module.ReplayHandler.load(arguments.file)
    server = replay.server()
    if arguments.transport == "http":
        server.run("http", host=arguments.host, port=arguments.port)
    else:
        server.run("stdio")
    return _summary(replay)


def _set_missing_options(arguments: argparse.Namespace) -> argparse.Namespace:
    # `replay` has no such options, but shares the defaults of `serve`.
    arguments.unix_socket = arguments.fd = arguments.workers = None
    return arguments


def _summary(replay: Any) -> int:
    """Report requests that are not in the recording, and return an exit status with which tests fail."""
    for request_text in replay.unmatched_requests[:MAX_SHOWN_REQUESTS]:
        _print_status(f"not recorded: {request_text}")
    if len(replay.unmatched_requests) > MAX_SHOWN_REQUESTS:
        _print_status(
            f"… and {len(replay.unmatched_requests) - MAX_SHOWN_REQUESTS} more requests that were not recorded"
        )
    return EXIT_NOT_RECORDED if replay.unmatched_requests else 0


def _print_status(text: str) -> None:
    print(f"portico: {escape_control(text)}", file=sys.stderr, flush=True)
