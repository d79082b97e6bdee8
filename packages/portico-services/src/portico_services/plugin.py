"""Entry points of the services for the SDK (`portico.plugins`)."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from portico.server.server import Server, ToolSearchConfig
    from portico.server.settings import ServeSection
    from portico_services.settings import SettingsFile

# Imports are inside the functions so that serving a user's file does not load the services.


def read_settings(profile: str | None, config: str | None) -> SettingsFile:
    """Return the merged settings of a profile and a configuration file."""
    from portico_services import assembly

    return assembly.read_settings(profile, config)


def add_services(arguments: argparse.Namespace, into: Server | None = None) -> tuple[Server, ServeSection]:
    """Return a server with the built-in services that a command line selects, and its [serve] settings."""
    from portico_services.cli import serve

    return serve.add_services(arguments, into)


def choose_listed_tools(server: Server, arguments: argparse.Namespace, serving: ServeSection) -> ToolSearchConfig:
    """Return which tools of the services are listed; clients find the others with find_tools."""
    from portico_services.cli import serve

    return serve.choose_listed_tools(server, arguments, serving)


def apply_profile(server: Server, arguments: argparse.Namespace) -> ServeSection:
    """Apply a profile to a server and return its [serve] settings."""
    from portico_services.cli import serve

    return serve.apply_profile(server, arguments)


def profile_names() -> list[str]:
    """Return the names of the installed profiles."""
    from portico_services.profiles import loader

    return loader.list_profiles()


def code_mode() -> Callable[..., Any]:
    """Return the handler class that serves a server in code mode."""
    from portico_services.codemode import CodeModeServer

    return CodeModeServer


def store_histories() -> dict[str, Path]:
    """Return the migration directories of the services by the name of their history."""
    from portico_services.memory.store import memory_store
    from portico_services.workitems import item_store

    return {
        memory_store.MIGRATION_HISTORY: memory_store.MIGRATIONS,
        item_store.MIGRATION_HISTORY: item_store.MIGRATIONS,
    }


# Rules about the sections of a written specification.
_SPECIFICATION_RULES = frozenset({"purpose", "undeclared", "examples"})


def lint_tools(tools: list[dict[str, Any]], server: str, version: str, revision: str) -> list[dict[str, Any]]:
    """Return the lint findings for the tools of any server. Raises UsageError if a required package is missing.

    Use cases, notes and examples are requirements of a written specification, which most servers do not have, so these
    findings are left out, and errors are warnings: `portico contracts lint` applies all rules.
    """
    from portico_services.contracts import lint
    from portico_services.contracts.definitions import contract_from_tools

    # The definitions come from `tools/list`, so servers that were not written with Portico can be linted too.
    contract = contract_from_tools(tools, server=server, version=version, revision=revision)
    findings = [msgspec.to_builtins(finding) for finding in lint.lint_tools(contract, contract.tools)]
    return [
        finding | {"severity": "warning" if finding["severity"] == "error" else finding["severity"]}
        for finding in findings
        if finding["rule"] not in _SPECIFICATION_RULES
    ]
