"""The versions of tools that a generated client was written for, compared with those that its server lists."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from portico.client.client import Client
from portico.protocol.errors import Error

# The member of a listed tool's `_meta` that has its version.
VERSION = "portico/version"

_MAJOR = re.compile(r"v?(\d{1,9})")


class IncompatibleVersion(Error):
    """The server has another major version of a tool than the client was generated for. Nothing was called."""

    def __init__(self, tool: str, expected: str, found: str) -> None:
        super().__init__(
            f"{tool}: this client was generated for version {expected}, and the server has version {found}, which is"
            " not compatible. Generate the client again: portico contracts codegen"
        )
        self.tool, self.expected, self.found = tool, expected, found


class ToolVersions:
    """Refuses calls of tools whose major version is another one. A different minor or patch version is compatible.

    The tools are listed before the first call. `by_server`: tools that declare no version, so that the server's counts.
    A tool whose version the server does not report is called: protocol versions before 2025-06-18 cannot say it.
    """

    def __init__(self, client: Client, expected: Mapping[str, str], by_server: Collection[str] = ()) -> None:
        self._client, self._expected, self._by_server = client, expected, frozenset(by_server)
        self._refused: dict[str, str] | None = None

    async def require(self, tool: str) -> None:
        """Raise IncompatibleVersion if the server has another major version of this tool."""
        if self._refused is None:
            self._refused = await self._compare()
        if tool in self._refused:
            # The server may have been replaced since.
            self._refused = await self._compare(fresh=True)
        if tool in self._refused:
            raise IncompatibleVersion(tool, self._expected[tool], self._refused[tool])

    async def _compare(self, *, fresh: bool = False) -> dict[str, str]:
        """Return the versions that the server has, of those tools with which this client is not compatible."""
        info = self._client.server_info
        found = dict.fromkeys(self._by_server, info.version if info is not None else "")
        for tool in await self._client.list_tools(fresh=fresh):
            version = (tool.meta or {}).get(VERSION)
            if isinstance(version, str):
                found[tool.name] = version
        return {
            name: found[name]
            for name, expected in self._expected.items()
            if name in found and not _is_compatible(expected, found[name])
        }


def _is_compatible(expected: str, found: str) -> bool:
    ours, theirs = _MAJOR.match(expected), _MAJOR.match(found)
    return ours is None or theirs is None or int(ours[1]) == int(theirs[1])
