"""The built-in services in `portico serve`."""

from __future__ import annotations

import argparse
import logging
import os
from typing import Any

from portico import UsageError
from portico.cli.data_dir import made_directory, store_url
from portico.cli.logging import is_level_said
from portico.server.server import FaceChoice, Server
from portico.server.settings import Serving
from portico_services import assembly
from portico_services.settings import ServeSettings


def _settings(arguments: argparse.Namespace) -> ServeSettings:
    """What profile and configuration say. Lines for calls that they want are seen, unless a level says otherwise."""
    settings = assembly.read_settings(arguments.profile, arguments.config)
    if assembly.logs_calls(settings) and not is_level_said(arguments.log_level):
        logging.getLogger("portico.contracts").setLevel(logging.INFO)
    return settings


def add_services(arguments: argparse.Namespace, into: Server | None = None) -> tuple[Any, Any]:
    """Return a server of the built-in services, or one that they are added to, and its [serve] settings.

    The services are loaded when needed, because most users serve a server of their own.
    """
    settings = _settings(arguments)
    said = None if arguments.services is None else map(str.strip, arguments.services.split(","))
    names = None if said is None else [name for name in said if name]
    data = made_directory(arguments.data)
    store = store_url(arguments.store, arguments.data, assembly.NAME)
    files = tuple(assembly.files(arguments.profile, arguments.config))
    place = assembly.ServicePlace(
        data=data,
        store=store,
        read_only=arguments.read_only,
        roots=_paths("--root", arguments.root),
        projects=_paths("--project", arguments.project),
        operator=arguments.operator or settings.serve.operator,
        over_http=arguments.transport == "http",
        settings=files,
    )
    arguments.unavailable = {}
    server = assembly.assemble(names, settings, place, unavailable=arguments.unavailable, into=into)
    served = {service.name for service in server.services}
    for flag, given, service in (("--root", place.roots, "system"), ("--project", place.projects, "live")):
        if given and service not in served:
            raise UsageError(f"{flag} is for the service {service!r}, which is not served here")
    return server, settings.serve


def choose_listed_tools(server: Any, arguments: argparse.Namespace, serving: Any) -> FaceChoice:
    """Choose the tools that are listed; find_tools finds the rest. Services that were named are listed whole, except
    `--services memory`, whose tools for upkeep would take most of the room and are rarely used."""
    only_memory = arguments.services == "memory" and arguments.profile is None
    named = arguments.services is not None or arguments.profile is not None or serving.services is not None
    if named and not only_memory:
        return FaceChoice()
    if only_memory:
        # Not measured: that would load all of them at the start.
        listed = [name for name in assembly.LISTED_MEMORY if name in server.tools]
    else:
        listed = assembly.listed(server, files=bool(arguments.root))
    if server.instructions is not None:
        server.instructions = server.instructions.replace(assembly.INSTRUCTIONS, assembly.SHORT_INSTRUCTIONS)
    return FaceChoice("search", listed, brief=True)


def _paths(flag: str, given: list[str]) -> tuple[str, ...]:
    """What a flag names, which has to be there."""
    paths = tuple(os.path.abspath(os.path.expanduser(one)) for one in given)
    for path, said in zip(paths, given, strict=True):
        if not said or not os.path.exists(path):
            raise UsageError(f"{flag} {said!r}: there is no such folder or file")
    return paths


def apply_profile(server: Server, arguments: argparse.Namespace) -> Serving:
    """Make a server of the user's own look as a profile says, and return its [serve] settings."""
    settings = _settings(arguments)
    assembly.dress(server, settings)
    return settings.serve
