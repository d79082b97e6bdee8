"""`portico dev`: serve a file over HTTP and reload it on change."""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import nullcontext

from portico.cli.data_dir import store_url
from portico.cli.logging import configure_logging
from portico.cli.reloader import Reloader
from portico.cli.specs import parser_for
from portico.cli.terminal_text import escape_control, plural
from portico.plugins import find_plugin, install_command
from portico.server.http import serve_http
from portico.server.server import Server
from portico.transports.event_loop import new_event_loop
from portico.transports.http_server.application import HttpApplication


def run(argv: list[str]) -> None:
    """Run `portico dev`."""
    arguments = parser_for("dev").parse(argv)
    configure_logging("warning")
    reloader = Reloader(arguments.target)
    server = reloader.load_initial()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(server, reloader, arguments))


async def _serve(server: Server, reloader: Reloader, arguments: argparse.Namespace) -> None:
    server.data_dir = arguments.data
    if server.tasks is not None:
        server.store = store_url(arguments.store, arguments.data, server.info.name)

    console = find_plugin("console")
    site = None if console is None else console.attach_dev_console(server, reloader, arguments)

    def use(exchange: HttpApplication) -> None:
        reloader.busy = lambda: exchange.metrics.in_flight > 0

    def ready(url: str) -> None:
        print(f"Serving {arguments.target} on {url}", file=sys.stderr)
        if console is None:
            print(f"  Console: not installed; install it with {install_command('console')}", file=sys.stderr)
        elif line := console.describe_link(site, url, arguments.data, sys.stderr):
            print(f"  Console: {line}", file=sys.stderr)
        if reloader.state.state == "broken":
            report()
        sys.stderr.flush()

    def report() -> None:
        message = escape_control(reloader.state.error or "")
        if reloader.state.state == "ok":
            tools = len(server.tools)
            message = f"{reloader.state.file} reloaded: {tools} {plural('tool', tools)}"
        print(message, file=sys.stderr, flush=True)

    reloader.listeners.append(report)
    server.on_http_start.append(use)
    async with nullcontext() if site is None else site.lifespan():
        following = asyncio.create_task(reloader.watch(server))
        try:
            await serve_http(server, on_ready=ready, host=arguments.host, port=arguments.port, path=arguments.path)
        finally:
            following.cancel()
