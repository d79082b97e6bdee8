"""`portico record` and `portico replay`"""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING, Any

from portico._lazy import LazyModule
from portico.cli.connect import connection_options
from portico.cli.logging import set_log_level
from portico.cli.specs import complete_serving, parse, parser_for
from portico.cli.terminal_text import printable
from portico.client.client import Client
from portico.protocol.meta import Implementation
from portico.server.server import Server
from portico.transports import stdio
from portico.transports.event_loop import new_loop
from portico.transports.targets import Target, target_of

if TYPE_CHECKING:
    from portico.testing.recording import file as tape_module
    from portico.testing.recording import proxy as proxy_module
    from portico.testing.recording import replay as replay_module
else:
    proxy_module = LazyModule("portico.testing.recording.proxy")
    replay_module = LazyModule("portico.testing.recording.replay")
    tape_module = LazyModule("portico.testing.recording.file")

NOT_RECORDED = 1
MOST_SHOWN = 20


def run_record(words: list[str]) -> None:
    arguments = parse("record", words)
    set_log_level("warning")
    arguments.oauth = False
    # Before the file: what is in it is not lost for a target that is none.
    target = _target(arguments)
    tape = tape_module.TapeWriter(arguments.out)
    try:
        if arguments.port is None and arguments.host is None:
            _record_stdio(arguments, target, tape)
        else:
            _record_http(arguments, tape)
    finally:
        tape.close()
    _tell(f"{tape.count} message{'' if tape.count == 1 else 's'} in {arguments.out}")


def _record_stdio(arguments: argparse.Namespace, target: Target, tape: Any) -> None:
    proxy = proxy_module.Proxy(target, tape)
    stdin, stdout = stdio.claim()
    if sys.stderr.isatty():
        _tell(f"recording to {arguments.out}, until the client goes away")
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(proxy.serve(stdin, stdout))


def _record_http(arguments: argparse.Namespace, tape: Any) -> None:
    """A server that passes everything on: clients may come and go, and what is written is one conversation."""
    options = connection_options(arguments.target, arguments)
    info, instructions = asyncio.run(_introduction(Client(arguments.target, **options)))
    server = Server(info.name, instructions, version=info.version, title=info.title, description=info.description)
    server.mount(Client(arguments.target, undeclared=True, trace=tape.note, **options))
    if sys.stderr.isatty():
        _tell(f"recording to {arguments.out}, until it is stopped")
    server.run("http", host=arguments.host or "127.0.0.1", port=8080 if arguments.port is None else arguments.port)


async def _introduction(client: Client) -> tuple[Implementation, str | None]:
    """What the server is called, so that the one in front of it is called the same."""
    async with client:
        return client.server_info or Implementation("record", "0"), client.instructions


def _target(arguments: argparse.Namespace) -> Target:
    options = connection_options(arguments.target, arguments)
    headers: dict[str, str] = options["headers"]
    if options["auth"]:
        headers = {"Authorization": f"Bearer {options['auth']}", **headers}
    return target_of(arguments.target, env=options["env"], cwd=options["cwd"], headers=headers or None)


def run_replay(words: list[str]) -> int:
    arguments = complete_serving(_completed(parser_for("replay").read(words)))
    set_log_level("warning")
    replay = replay_module.Replay.load(arguments.file)
    server = replay.server()
    if arguments.transport == "http":
        server.run("http", host=arguments.host, port=arguments.port)
    else:
        server.run("stdio")
    return _summary(replay)


def _completed(arguments: argparse.Namespace) -> argparse.Namespace:
    arguments.unix = arguments.fd = arguments.workers = None
    return arguments


def _summary(replay: Any) -> int:
    """What was asked and is not in the recording. It is in the exit status too, so that a test fails by it."""
    for shown in replay.unknown[:MOST_SHOWN]:
        _tell(f"not recorded: {shown}")
    if len(replay.unknown) > MOST_SHOWN:
        _tell(f"… and {len(replay.unknown) - MOST_SHOWN} more that were not recorded")
    return NOT_RECORDED if replay.unknown else 0


def _tell(text: str) -> None:
    print(f"portico: {printable(text)}", file=sys.stderr, flush=True)
