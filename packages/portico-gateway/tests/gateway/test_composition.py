"""A gateway is a server with upstreams: the methods of Server work on both."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from portico import Client, Server, Service
from portico.protocol.errors import UsageError
from portico_gateway import Gateway
from portico_gateway.hub.server_gateway import ServerGateway


def echo(name: str = "echo") -> Server:
    server = Server(name)

    @server.tool
    async def say(text: str) -> str:
        return f"{name}: {text}"

    return server


async def tools(server: Server) -> set[str]:
    async with Client(server) as client:
        return {tool.name for tool in await client.list_tools()}


@pytest.mark.parametrize("make", [Server, partial(Gateway, max_result_tokens=0)], ids=["server", "gateway"])
@pytest.mark.parametrize(("namespace", "name"), [(None, "say"), ("my_ns", "my_ns_say")])
async def test_mount_and_unmount_mean_the_same_on_a_gateway(
    make: Callable[..., Server], namespace: str | None, name: str
) -> None:
    server, inner = make(name="outer"), echo()
    server.mount(inner, namespace)
    async with Client(server) as client:
        assert (await client.call_tool(name, {"text": "hi"})).text == "echo: hi"
    server.unmount(inner)
    assert await tools(server) == set()


@pytest.mark.parametrize("make", [Server, partial(Gateway, max_result_tokens=0)], ids=["server", "gateway"])
async def test_add_remove_and_services_mean_the_same_on_a_gateway(make: Callable[..., Server]) -> None:
    server, notes = make(name="outer"), Service("notes")

    @notes.tool
    async def note() -> str:
        return "noted"

    server.add(notes)
    assert server.services == (notes,)
    assert await tools(server) == {"note"}
    server.remove("notes")
    assert server.services == ()
    assert await tools(server) == set()
    with pytest.raises(TypeError):
        server.add("alias", echo())  # type: ignore[call-arg]


async def test_upstream_is_added_and_removed_by_its_alias() -> None:
    gateway = Gateway(max_result_tokens=0)
    gateway.add_upstream("one", echo())
    assert await tools(gateway) == {"one_say"}
    with pytest.raises(UsageError):
        gateway.remove("one")
    gateway.remove_upstream("one")
    assert await tools(gateway) == set()
    with pytest.raises(UsageError, match=r"unknown upstream 'one' \(known: none\)"):
        gateway.remove_upstream("one")


@pytest.mark.parametrize("gateway", [Gateway, ServerGateway])
def test_gateways_override_no_member_of_a_server(gateway: type[Server]) -> None:
    own = {name for cls in gateway.__mro__[: gateway.__mro__.index(Server)] for name in vars(cls)}
    assert {name for name in own if hasattr(Server, name) and not name.startswith("__")} == set()
