"""What the SDK asks of the services where they are installed (`portico.plugins`)."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from portico.server.server import FaceChoice, Server
    from portico.server.settings import Serving
    from portico_services.settings import ServeSettings

# Imports are inside the functions, so that serving a file does not load the services.


def read_settings(profile: str | None, config: str | None) -> ServeSettings:
    """Return the settings of a profile and a file together."""
    from portico_services import assembly

    return assembly.read_settings(profile, config)


def add_services(arguments: argparse.Namespace, into: Server | None = None) -> tuple[Server, Serving]:
    """Return a server with the built-in services that a command line names, and its [serve] settings."""
    from portico_services.cli import serve

    return serve.add_services(arguments, into)


def choose_listed_tools(server: Server, arguments: argparse.Namespace, serving: Serving) -> FaceChoice:
    """Return which tools of the services are listed; a client finds the others with find_tools."""
    from portico_services.cli import serve

    return serve.choose_listed_tools(server, arguments, serving)


def apply_profile(server: Server, arguments: argparse.Namespace) -> Serving:
    """Make a server look as a profile says, and return its [serve] settings."""
    from portico_services.cli import serve

    return serve.apply_profile(server, arguments)


def profile_names() -> list[str]:
    """Return the names of the profiles that are installed."""
    from portico_services.profiles import loader

    return loader.names()


def code_mode() -> Callable[..., Any]:
    """Return the class of the handler in front of a server in code mode."""
    from portico_services.codemode import CodeFace

    return CodeFace


def store_histories() -> dict[str, Path]:
    """Return the folders with the migrations of the services, by the name of their history."""
    from portico_services.memory.store import memory_store
    from portico_services.workitems import item_store

    return {memory_store.HISTORY: memory_store.MIGRATIONS, item_store.HISTORY: item_store.MIGRATIONS}


def lint_tools(tools: list[dict[str, Any]], server: str, version: str, revision: str) -> list[dict[str, Any]]:
    """Return what is wrong with the definitions of tools. Raises UsageError if a package for that is missing."""
    from portico_services.contracts import lint
    from portico_services.contracts.definitions import contract_of

    contract = contract_of(tools, server=server, version=version, revision=revision)
    return [msgspec.to_builtins(one) for one in lint.lint_tools(contract, contract.tools)]
