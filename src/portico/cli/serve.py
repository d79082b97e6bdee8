"""`portico serve`"""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import Any

from portico.cli.data import data_directory, store_url
from portico.cli.forms import serve_form
from portico.cli.logs import set_log_level
from portico.cli.target import load


def run(words: list[str]) -> None:
    arguments = serve_form().parse_args(words)
    set_log_level("warning")
    options = _http(arguments) if arguments.transport == "http" else {"lifecycle": arguments.lifecycle}
    if arguments.max_message is not None:
        options["longest_body" if arguments.transport == "http" else "longest"] = arguments.max_message
    server = load(arguments.target) if arguments.target is not None else _built_in(arguments)
    if server.tasks is not None:
        server.store = store_url(arguments.store, arguments.data, server.info.name)
        server.tasks.concurrency = arguments.concurrency
    server.run(arguments.transport, **options)


def _built_in(arguments: argparse.Namespace) -> Any:
    """A server of our own services. Imported here, because most serve one that they have written themselves."""
    assembly = import_module("portico.services.assembly")
    settings = assembly.read_settings(arguments.config) if arguments.config else assembly.Settings()
    names = None if arguments.services is None else [name for name in arguments.services.split(",") if name]
    data = data_directory(arguments.data)
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    store = store_url(arguments.store, arguments.data, assembly.NAME)
    place = assembly.Place(data=data, store=store, read_only=arguments.read_only)
    return assembly.assemble(names, settings, place)


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
