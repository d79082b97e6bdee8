"""Which hosts share a process."""

from __future__ import annotations

import pytest

from portico_gateway.hub.settings import AttachRequest, resolve_servers

PATH = "/usr/local/bin:/usr/bin"


def is_shared(command: list[str], path: str = PATH) -> bool:
    request = AttachRequest(1, ["server"], [], command, "/project", {"PATH": path}, False, 1)
    server = resolve_servers(request, {})[0]
    assert server.is_shared or server.cwd == "/project"
    return server.is_shared


@pytest.mark.parametrize(
    "command",
    [["mcp-server-time"], ["/opt/bin/mcp-server-time", "--local-timezone=UTC"], ["npx", "-y", "@upstash/context7-mcp"]],
)
def test_known_stateless_servers_are_shared(command: list[str]) -> None:
    assert is_shared(command)


@pytest.mark.parametrize(
    "command", [["./mcp-server-time"], ["bin/mcp-server-time"], ["node_modules/.bin/uvx", "mcp-server-time"]]
)
def test_a_program_of_the_project_runs_in_the_project(command: list[str]) -> None:
    assert not is_shared(command)


@pytest.mark.parametrize("path", ["./bin:/usr/bin", "/usr/bin:", "", "node_modules/.bin:/usr/bin"])
def test_a_program_that_is_found_in_the_project_runs_in_the_project(path: str) -> None:
    assert not is_shared(["mcp-server-time"], path)
