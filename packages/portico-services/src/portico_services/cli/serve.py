"""Built-in services in `portico serve`."""

from __future__ import annotations

import argparse
import logging
import os
from typing import Any

from portico import UsageError
from portico.cli.data_dir import ensure_data_dir, store_url
from portico.cli.logging import is_level_set
from portico.extend import ResultLimits
from portico.server.server import Server, ToolSearchConfig
from portico.server.settings import ServeSection
from portico_services import assembly
from portico_services.settings import SettingsFile


def _settings(arguments: argparse.Namespace) -> SettingsFile:
    """Read the settings of the profile and the configuration file. Enables the call log if they request it, unless a
    log level is set.
    """
    settings = assembly.read_settings(arguments.profile, arguments.config)
    if assembly.wants_call_log(settings) and not is_level_set(arguments.log_level):
        logging.getLogger("portico.contracts").setLevel(logging.INFO)
    return settings


def add_services(arguments: argparse.Namespace, into: Server | None = None) -> tuple[Any, Any]:
    """Return a server with the built-in services, or `into` with the services added, and its [serve] settings.

    The services are imported on demand, because most users serve their own server.
    """
    settings = _settings(arguments)
    names = None
    if arguments.services is not None:
        names = [name for item in arguments.services.split(",") if (name := item.strip())]
        # An empty string serves none, for example to see what a profile alone provides.
        if arguments.services and not names:
            raise UsageError("--services must name at least one service, such as --services memory,tasks")
    data = ensure_data_dir(arguments.data)
    store = store_url(arguments.store, arguments.data, assembly.NAME)
    files = tuple(assembly.settings_paths(arguments.profile, arguments.config))
    environment = assembly.ServiceEnvironment(
        data=data,
        store=store,
        read_only=arguments.read_only,
        roots=_paths("--allow-path", arguments.allow_path),
        projects=_paths("--python-project", arguments.python_project),
        operator=arguments.service_admin or settings.serve.service_admin,
        over_http=arguments.transport == "http",
        settings=files,
    )
    # Filled by `build_server` and reported by the caller.
    arguments.unavailable = {}
    server = assembly.build_server(names, settings, environment, unavailable=arguments.unavailable, into=into)
    if into is None and arguments.profile is None:
        # The reader is a model. A profile lists exactly the tools of the server it imitates.
        server.add(ResultLimits())
    served = {service.name for service in server.services}
    for flag, values, service in (
        ("--allow-path", environment.roots, "system"),
        ("--python-project", environment.projects, "live"),
    ):
        # Without this check a typo in --services would silently drop a permission that the user granted.
        if values and service not in served:
            raise UsageError(f"{flag} requires the service {service!r}, which is not served")
    return server, settings.serve


def choose_listed_tools(server: Any, arguments: argparse.Namespace, serving: Any) -> ToolSearchConfig:
    """Choose the tools to list; find_tools finds the others.

    Services named explicitly are listed completely, except for `--services memory`, whose maintenance tools would take
    most of the space and are rarely used.
    """
    # A profile lists exactly the tools of the server it imitates.
    only_memory = arguments.services == "memory" and arguments.profile is None
    named = arguments.services is not None or arguments.profile is not None or serving.services is not None
    if named and not only_memory:
        return ToolSearchConfig()
    if only_memory:
        # A fixed list, because measuring the tools would import all of them at startup.
        listed = [name for name in assembly.LISTED_MEMORY if name in server.tools]
    else:
        listed = assembly.select_default_tools(server, files=bool(arguments.allow_path))
    if server.instructions is not None:
        server.instructions = server.instructions.replace(assembly.INSTRUCTIONS, assembly.DEFAULT_LIST_INSTRUCTIONS)
    return ToolSearchConfig("search", listed, brief=True)


def _paths(flag: str, values: list[str]) -> tuple[str, ...]:
    """Return the absolute paths of a flag. Raises `UsageError` if one does not exist."""
    paths = tuple(os.path.abspath(os.path.expanduser(item)) for item in values)
    for path, value in zip(paths, values, strict=True):
        if not value or not os.path.exists(path):
            raise UsageError(f"{flag} {value!r}: no such file or directory")
    return paths


def apply_profile(server: Server, arguments: argparse.Namespace) -> ServeSection:
    """Apply a profile to the user's own server and return its [serve] settings."""
    settings = _settings(arguments)
    assembly.apply_compat(server, settings)
    return settings.serve
