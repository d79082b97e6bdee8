"""Tool search and code mode of a server: at separate paths over HTTP, or instead of the tool list with an option."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from portico.cli.data_dir import store_url
from portico.server.policy.interfaces import Kind, QualifiedName
from portico.server.server import Server, ToolSearchConfig

log = logging.getLogger("portico")

TOOL_SEARCH_MODES = ("search", "code")

# The tools that these modes add, under the names that access rules use.
POLICY_TOOLS: list[tuple[Kind, QualifiedName]] = [
    *(("tool", QualifiedName("code", name)) for name in ("run", "describe_tools", "run_saved", "forget_saved")),
    ("tool", QualifiedName("tool_search", "find_tools")),
]


def mount_tool_search(server: Server, arguments: argparse.Namespace, config: ToolSearchConfig) -> None:
    """Add tool search and code mode to a server.

    Over HTTP both are available below the paths of the server and of its views. The mode of the command line, or else
    of the settings file, replaces the server's own tool list.
    """
    if arguments.transport == "http":
        views = {value.settings.path: value for value in getattr(server, "views", {}).values()}
        for path, part in {arguments.path: server, **views}.items():
            _mount_endpoints(server, part, path, arguments, config)
    # The default tool list does not apply if the command line selects a mode.
    chosen = config if arguments.face is None or not config.brief else ToolSearchConfig()
    mode = arguments.face or config.name
    if arguments.view is None and mode not in (None, "all"):
        server.public_handler = create_public_handler(mode, server, server, arguments, config, chosen)


def create_public_handler(
    mode: str,
    server: Server,
    part: Any,
    arguments: argparse.Namespace,
    config: ToolSearchConfig,
    chosen: ToolSearchConfig,
) -> Any:
    """Return the handler that clients see instead of a server or one of its views."""
    name = "search" if mode == "auto" else mode
    # The access policy is loaded only if there are rules.
    allows_some = getattr(getattr(server.policy, "access_policy", None), "is_allowed_for_some_caller", None)
    if name == "code" and allows_some is not None and not allows_some("tool", QualifiedName("code", "run")):
        log.warning('no access rule allows scripts, so code mode can only find tools; add a rule with tool = "code.*"')
    brief = {"omit_output_schemas": True} if chosen.brief else {}
    handler = _create_handler(name, server, part, arguments, config, chosen.always, **brief)
    server.add_lifespan(handler.own_tools.lifespan)
    from portico.search import auto_search

    return auto_search.AutoToolSearch(handler) if mode == "auto" else handler


def _mount_endpoints(
    server: Server, part: Any, path: str, arguments: argparse.Namespace, config: ToolSearchConfig
) -> None:
    """Add the modes below the path: a reverse proxy may forward nothing else."""
    for name in TOOL_SEARCH_MODES:
        endpoint = f"{path.rstrip('/')}/{name}"
        if endpoint not in server.endpoints:
            always = [] if config.brief else config.always
            _add_endpoint(
                server, name, endpoint, partial(_create_handler, name, server, part, arguments, config, always), part
            )


def _add_endpoint(server: Server, name: str, path: str, make: Callable[[], Any], part: Any = None) -> None:
    """Add an endpoint that is loaded by its first client."""
    # Scripts need a sandbox that is available on Linux only.
    from portico import plugins

    if name != "code" or (sys.platform == "linux" and plugins.find_plugin("services") is not None):
        from portico.search import lazy_handler

        handler = lazy_handler.LazyHandler(part or server, name, make)
        server.add_endpoint(path, handler)
        server.add_lifespan(handler.lifespan)


def _create_handler(
    name: str,
    server: Server,
    part: Any,
    arguments: argparse.Namespace,
    config: ToolSearchConfig,
    always: Sequence[str],
    **options: Any,
) -> Any:
    if name == "code":
        # An interrupted run continues after a restart, so it is stored with the data of this server.
        store = server.store or store_url(arguments.store, arguments.data, server.info.name)
        options |= {"store": store, **config.code}
        from portico import plugins

        return plugins.require_plugin("services", "code mode").code_mode()(part, pinned_tools=always, **options)
    from portico.search import tool_search

    return tool_search.ToolSearchServer(part, pinned_tools=always, **options)
