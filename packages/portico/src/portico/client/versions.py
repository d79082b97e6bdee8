"""Version check of generated clients against the tools that a server lists."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from portico.client.client import Client
from portico.protocol.errors import PorticoError

# The member of a listed tool's `_meta` that holds its version.
VERSION = "portico/version"

_MAJOR = re.compile(r"v?(\d{1,9})")


class IncompatibleVersion(PorticoError):
    """The server has an incompatible major version of a tool. The tool was not called."""

    def __init__(self, tool: str, expected: str, actual: str) -> None:
        super().__init__(
            f"{tool}: this client was generated for version {expected}, but the server has the incompatible "
            f"version {actual}. Generate the client again: portico contracts codegen"
        )
        self.tool, self.expected, self.found = tool, expected, actual


class ToolVersions:
    """Rejects calls of tools with an incompatible major version. Minor and patch versions are compatible.

    The tools are listed before the first call. `by_server`: tools without a version of their own, for which the
    server's version counts. A tool whose version the server does not report is accepted: protocol versions before
    2025-06-18 cannot report it.
    """

    def __init__(self, client: Client, expected: Mapping[str, str], by_server: Collection[str] = ()) -> None:
        self._client, self._expected, self._by_server = client, expected, frozenset(by_server)
        self._refused: dict[str, str] | None = None

    async def require(self, tool: str) -> None:
        """Raise IncompatibleVersion if the server has another major version of this tool."""
        if self._refused is None:
            self._refused = await self._compare()
        if tool in self._refused:
            # The server may have been replaced since the tools were listed.
            self._refused = await self._compare(fresh=True)
        if tool in self._refused:
            raise IncompatibleVersion(tool, self._expected[tool], self._refused[tool])

    async def _compare(self, *, fresh: bool = False) -> dict[str, str]:
        """Return the server's versions of the incompatible tools, by tool name."""
        info = self._client.server_info
        result = dict.fromkeys(self._by_server, info.version if info is not None else "")
        for tool in await self._client.list_tools(refresh=fresh):
            version = (tool.meta or {}).get(VERSION)
            if isinstance(version, str):
                result[tool.name] = version
        return {
            name: result[name]
            for name, expected in self._expected.items()
            if name in result and not _is_compatible(expected, result[name])
        }


def _is_compatible(expected: str, actual: str) -> bool:
    ours, theirs = _MAJOR.match(expected), _MAJOR.match(actual)
    return ours is None or theirs is None or int(ours[1]) == int(theirs[1])
