"""`portico serve`"""

from __future__ import annotations

import argparse
from typing import Any

from portico._lazy import load_module
from portico.cli.data import store_url
from portico.cli.forms import serve_form
from portico.cli.logs import set_log_level
from portico.cli.target import load
from portico.store.folder import data_directory
from portico.wire.errors import UsageError


def run(words: list[str]) -> None:
    arguments = serve_form().parse_args(words)
    set_log_level("warning")
    if arguments.target is None:
        server, serving = _built_in(arguments)
    elif arguments.profile is not None:
        raise UsageError("--profile is for the services that come with Portico, not for a server of your own")
    else:
        server, serving = load(arguments.target), None
    if server.tasks is not None:
        server.store = store_url(arguments.store, arguments.data, server.info.name)
        server.tasks.concurrency = arguments.concurrency
    server.run(arguments.transport, **_options(arguments, serving))


def _built_in(arguments: argparse.Namespace) -> tuple[Any, Any]:
    """A server of our own services, and what its settings say about serving it. Imported here, because most serve one
    that they have written themselves."""
    assembly = load_module("portico.services.assembly")
    settings = assembly.read_settings(arguments.profile, arguments.config)
    names = None if arguments.services is None else [name for name in arguments.services.split(",") if name]
    data = data_directory(arguments.data)
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    store = store_url(arguments.store, arguments.data, assembly.NAME)
    place = assembly.ServicePlace(data=data, store=store, read_only=arguments.read_only)
    return assembly.assemble(names, settings, place), settings.serve


def _options(arguments: argparse.Namespace, serving: Any) -> dict[str, Any]:
    """How to serve: what was typed goes before what the settings say."""
    longest = arguments.max_message
    if longest is None and serving is not None:
        longest = serving.max_message
    if arguments.transport == "http":
        assume = serving.assume if serving is not None else None
        return _http(arguments) | {"assume": assume} | ({} if longest is None else {"longest_body": longest})
    lifecycle = arguments.lifecycle or (serving.lifecycle if serving is not None else None) or "auto"
    return {"lifecycle": lifecycle} | ({} if longest is None else {"longest": longest})


def _http(arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "host": arguments.host,
        "port": arguments.port,
        "path": arguments.path,
        "allow_hosts": arguments.allow_host,
        "allow_origins": arguments.allow_origin,
        "insecure": arguments.insecure,
        "sse": arguments.sse,
        "certificate": arguments.certificate,
        "key": arguments.key,
    }
