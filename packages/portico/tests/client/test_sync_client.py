"""The synchronous client."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from portico import Client, Context, Server, SyncClient, ToolError, UsageError
from portico.protocol.versions import SUPPORTED_PROTOCOL_VERSIONS
from support.paths import ROOT

HELLO = str(ROOT / "examples" / "hello.py")


def server() -> Server:
    server = Server("sums", version="1", list_page_size=2)

    @server.tool
    def add(a: int, b: int) -> int:
        return a + b

    @server.tool
    async def name(ctx: Context) -> str:
        answer = await ctx.elicit("Who?", str)
        return f"{answer.action} {answer.data}"

    @server.tool
    async def grow(ctx: Context) -> str:
        ctx.server.add(add_more)
        return "done"

    @server.resource("sums://{n}")
    def half(n: int) -> str:
        return str(n / 2)

    @server.prompt
    def ask(about: str) -> str:
        return f"Tell me about {about}"

    def add_more(a: int) -> int:
        return a

    return server


@pytest.fixture
def client() -> Iterator[SyncClient]:
    with SyncClient(server()) as client:
        yield client


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
def test_tool_is_called_and_waited_for(revision: str) -> None:
    with SyncClient(server(), protocol_version=revision) as client:
        assert client.protocol_version == revision
        assert client.call_tool("add", {"a": 1, "b": 2}).data in (3, "3")


ASYNC_ONLY = {"is_stateless", "lifespan", "upstream"}


def test_it_has_the_names_of_the_other_client() -> None:
    names = {name for name in vars(Client) if not name.startswith("_")}
    assert names - ASYNC_ONLY <= {name for name in vars(SyncClient) if not name.startswith("_")}


NAMES = [name for name in vars(Client) if not name.startswith("_") and name not in {"inputs", *ASYNC_ONLY}]


@pytest.mark.parametrize("name", NAMES)
def test_both_implementations_accept_the_same_input(name: str) -> None:
    item, other = getattr(Client, name), getattr(SyncClient, name)
    if callable(item):
        assert list(inspect.signature(item).parameters) == list(inspect.signature(other).parameters)


def test_lists_come_whole_or_one_by_one(client: SyncClient) -> None:
    assert [tool.name for tool in client.list_tools()] == ["add", "name", "grow"]
    assert [tool.name for tool in client.iter_tools()] == ["add", "name", "grow"]
    assert next(client.iter_tools()).name == "add"
    assert client.list_resources() == []
    assert [item.uri_template for item in client.list_resource_templates()] == ["sums://{n}"]
    assert [item.name for item in client.iter_prompts()] == ["ask"]


def test_rest_is_there_too(client: SyncClient) -> None:
    client.ping()
    assert client.server_info is not None
    assert client.server_info.name == "sums"
    [contents] = client.read_resource("sums://8")
    assert contents.text == "4.0"
    assert client.get_prompt("ask", {"about": "bees"}).messages[0].content.text == "Tell me about bees"


def test_rejection_is_raised_as_itself(client: SyncClient) -> None:
    with pytest.raises(ToolError, match="a"):
        client.call_tool("add", {"a": "x", "b": 2})


def test_handler_may_use_the_client_while_its_caller_waits() -> None:
    """It runs beside the loop, so asking the server again in the middle does not stand still."""

    def answer(params: Any) -> dict[str, Any]:
        return {"value": str(client.call_tool("add", {"a": 20, "b": 22}).data)}

    with SyncClient(server(), elicitation_handler=answer) as client:
        assert client.call_tool("name").data == "accept 42"


def test_several_threads_may_share_it(client: SyncClient) -> None:
    results: list[int] = []
    threads = [
        threading.Thread(target=lambda n=n: results.append(client.call_tool("add", {"a": n, "b": n}).data))
        for n in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(results) == [2 * n for n in range(20)]


def test_use_before_opening_raises_an_error() -> None:
    client = SyncClient(server())
    with pytest.raises(UsageError, match="with"):
        client.list_tools()
    with client:
        client.list_tools()
    with pytest.raises(UsageError, match="with"):
        client.list_tools()


def ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "portico-client"]


def test_nothing_runs_on_after_it_was_closed() -> None:
    with SyncClient(HELLO) as client:
        assert client.call_tool("greet", {"name": "Ada"}).data == "Hello, Ada!"
        assert ours()
    assert not ours()


def test_failed_open_leaves_no_thread() -> None:
    with pytest.raises(UsageError), SyncClient(5):
        pass
    assert not ours()


def test_changes_are_waited_for(client: SyncClient) -> None:
    with client.listen(tools=True) as changes:
        client.call_tool("grow")
        assert next(iter(changes)).kind == "tools"
