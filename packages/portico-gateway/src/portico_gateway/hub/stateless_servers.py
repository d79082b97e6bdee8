"""Servers that are known to be stateless, so that one process can serve all hosts.

A server belongs here if its responses depend on the arguments of a call and on its configuration only: it keeps
nothing between calls, uses neither roots nor the working directory, and sends no requests to clients.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

STATELESS_PACKAGES = frozenset(
    (
        "@modelcontextprotocol/server-brave-search",
        "@modelcontextprotocol/server-google-maps",
        "@upstash/context7-mcp",
        "mcp-server-fetch",
        "mcp-server-time",
    )
)

# Programs that run a package by name, with the words before the name: options without a value, and subcommands.
_LAUNCHERS = {
    "npx": frozenset({"-y", "--yes"}),
    "bunx": frozenset({"--bun"}),
    "pnpx": frozenset[str](),
    "pnpm": frozenset({"dlx"}),
    "yarn": frozenset({"dlx"}),
    "uvx": frozenset[str](),
    "pipx": frozenset({"run"}),
}
_VERSION = re.compile(r"(?<=.)(@|==)[^/@]*$")


def find_package(command: Sequence[str]) -> str | None:
    """Return the package that a command runs, or None if that is not certain."""
    skipped = _LAUNCHERS.get(os.path.basename(command[0]))
    if skipped is None:
        # An installed program, such as the script `mcp-server-time` of a Python package.
        return os.path.basename(command[0])
    name = next((word for word in command[1:] if word not in skipped), "")
    # Any other option may take a value, so the next word need not be the package.
    return None if not name or name.startswith("-") else _VERSION.sub("", name)


def is_stateless(command: Sequence[str], cwd: str, path: str) -> bool:
    """Return whether a command runs a stateless server, independent of the working directory.

    `path` is the PATH in which the program is searched.
    """
    if find_package(command) not in STATELESS_PACKAGES:
        return False
    # A relative program, or one that is found in a relative directory, is another program in another directory.
    program = command[0]
    if os.path.dirname(program):
        if not os.path.isabs(program):
            return False
    elif not all(map(os.path.isabs, path.split(os.pathsep))):
        return False
    # An argument that names a file means another file in another directory.
    values = (word.rpartition("=")[2] for word in command[1:])
    return not any(value.startswith(".") or os.path.exists(os.path.join(cwd, value)) for value in values if value)
