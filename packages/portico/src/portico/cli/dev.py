"""`portico dev`"""

from __future__ import annotations

import argparse
import asyncio
import sys

from portico.cli import local_token
from portico.cli.data_dir import store_url
from portico.cli.logging import set_log_level
from portico.cli.specs import parser_for
from portico.cli.terminal_text import plural, printable
from portico.server.http import serve_http
from portico.server.server import Server
from portico.store.data_directory import data_directory
from portico.transports.event_loop import new_loop
from portico.transports.http_server.application import Exchange
from portico_console.cli.console_link import HOW_TO_ENTER, describe_link, secret
from portico_console.console import Console
from portico_console.hot_reload import Reloader
from portico_console.session_auth import ConsoleAccess
from portico_console.site import SAVED, attach


def run(words: list[str]) -> None:
    arguments = parser_for("dev").read(words)
    set_log_level("warning")
    reloader = Reloader(arguments.target)
    server = reloader.first()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_serve(server, reloader, arguments))


async def _serve(server: Server, reloader: Reloader, arguments: argparse.Namespace) -> None:
    server.data = arguments.data
    if server.tasks is not None:
        server.store = store_url(arguments.store, arguments.data, server.info.name)

    def make() -> Console:
        saved = data_directory(arguments.data) / SAVED
        return Console(
            server, mode="dev", opens=True, auth_for=local_token.for_url, reloader=reloader, saved=saved
        )  # fmt: skip

    key = secret(arguments.port, arguments.data)
    site = attach(server, ConsoleAccess(), key, how=HOW_TO_ENTER, make=make, held=False)

    def use(exchange: Exchange) -> None:
        reloader.busy = lambda: exchange.metrics.in_flight > 0

    def ready(url: str) -> None:
        print(f"Serving {arguments.target} on {url}", file=sys.stderr)
        if line := describe_link(site, url, arguments.data, sys.stderr):
            print(f"  Console: {line}", file=sys.stderr)
        if reloader.state.state == "broken":
            print(f"  it cannot be loaded yet:\n{printable(reloader.state.error or '')}", file=sys.stderr)
        sys.stderr.flush()

    def report() -> None:
        if reloader.state.state == "ok":
            tools = len(server.tools)
            print(f"{reloader.state.file} reloaded: {tools} {plural('tool', tools)}", file=sys.stderr, flush=True)

    reloader.listeners.append(report)
    server.on_http.append(use)
    async with site.lifespan():
        following = asyncio.create_task(reloader.follow(server))
        try:
            await serve_http(server, ready=ready, host=arguments.host, port=arguments.port, path=arguments.path)
        finally:
            following.cancel()
