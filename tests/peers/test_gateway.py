"""Clients of other projects with a gateway in front of our example server, in all four version pairs."""

from __future__ import annotations

import json
import sys
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.node_scripts import Conversation

HERE = Path(__file__).resolve().parent
SERVED = [str(HERE.parent.parent / "examples" / "everything.py"), f"{HERE / 'server.py'}:server"]
ERAS = ("2025-11-25", "2026-07-28")
PROMPT = {"type": "ref/prompt", "name": "test_prompt_with_arguments"}


@pytest.fixture(scope="session")
def gateway_file(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """`gateway_file("2025-11-25")`: a gateway to the server, with which it speaks that revision."""

    def write(revision: str, served: str = SERVED[0]) -> str:
        own = {"prefix": "", "protocol_version": revision}
        entry = {"command": sys.executable, "args": ["-m", "portico", "serve", served], "portico": own}
        file = tmp_path_factory.mktemp("gateway") / "mcp.json"
        file.write_text(json.dumps({"mcpServers": {"one": entry}}), encoding="utf-8")
        return str(file)

    return write


@pytest.fixture(scope="module")
def gateways(gateway_file: Callable[..., str], servers_by_name: dict[str, str]) -> None:
    servers_by_name.update({f"gateway to {era}": gateway_file(era) for era in ERAS})


@pytest.mark.revisions(since="2025-11-25")
@pytest.mark.parametrize("behind", ERAS)
@pytest.mark.usefixtures("gateways")
async def test_python_client_has_all_that_the_server_has(connect, behind):
    _, transport, revision = connect.args[1:]
    if transport == "stdio" and revision == behind:
        pytest.skip("On stdio, which starts two processes each time, only from one era to the other.")
    async with connect(f"gateway to {behind}") as peer:
        assert {"test_simple_text", "test_sampling"} <= {tool.name for tool in await peer.tools()}
        await _calls(peer)
        await _reads(peer)
        await _is_asked(peer)


async def _calls(peer: Any) -> None:
    response = await peer.call("test_simple_text")
    assert response.content[0].text == "This is a simple text response for testing."
    assert (await peer.call("test_error_handling")).is_error
    steps: list[Any] = []

    async def on_progress(progress: float, total: float, message: str) -> None:
        steps.append((progress, total, message))

    await peer.call("test_tool_with_progress", on_progress=on_progress)
    await peer.heard.wait_for(lambda: len(steps) == 3)
    assert steps[-1] == (100, 100, "Completed step 100 of 100")
    await peer.call("test_tool_with_logging")
    await peer.heard.wait_for(lambda: len(peer.heard.logs) == 3)
    assert peer.heard.logs[0] == ("info", "Tool execution started")


async def _reads(peer: Any) -> None:
    import mcp_types as types

    assert "test://static-text" in [str(resource.uri) for resource in await peer.resources()]
    (blob,) = await peer.read("test://static-binary")
    assert b64decode(blob.blob)[1:4] == b"PNG"
    (made,) = await peer.read("test://template/123/data")
    assert "123" in made.text
    got = await peer.prompt("test_prompt_with_arguments", {"arg1": "a", "arg2": "b"})
    assert got.messages[0].content.text == "Prompt with arguments: arg1='a', arg2='b'"
    assert await peer.complete(types.PromptReference(**PROMPT), "arg1", "par") == ["paris", "park", "party"]


async def _is_asked(peer: Any) -> None:
    peer.person.content = {"username": "alice", "email": "alice@example.com"}
    response = await peer.call("test_elicitation", {"message": "Who are you?"})
    assert "User(username='alice', email='alice@example.com')" in response.content[0].text
    response = await peer.call("test_sampling", {"prompt": "What is the capital of France?"})
    assert response.content[0].text == "LLM response: Paris"
    response = await peer.call("test_input_required_result_list_roots")
    assert response.content[0].text == "1 roots: file:///project"
    peer.person.content = {"name": "Alice", "color": "blue"}
    response = await peer.call("test_input_required_result_multi_round")
    assert response.content[0].text == "Alice likes blue."
    peer.person.action = "decline"
    response = await peer.call("test_elicitation", {"message": "Who are you?"})
    assert response.content[0].text == "User response: action=decline, content=None"


# The TypeScript clients, and the Inspector


@pytest.mark.parametrize(
    ("client", "transport", "revision", "behind"),
    [
        ("v1", "http", "2025-11-25", "2026-07-28"),
        ("v1", "stdio", "2025-11-25", "2025-11-25"),
        ("v2", "http", "2026-07-28", "2026-07-28"),
        ("v2", "stdio", "2026-07-28", "2025-11-25"),
    ],
)
def test_typescript_client_has_all_that_the_server_has(
    client, transport, revision, behind, scripts, gateway_file, servers_by_name, serve
):
    files = [gateway_file(behind, served) for served in SERVED]
    if transport == "stdio":
        words = [json.dumps([sys.executable, "-m", "portico", "serve", file]) for file in files]
        result = Conversation(scripts.run(f"{client}.mjs", revision, *words))
    else:
        for file in files:
            servers_by_name[file] = file
        with serve(files[0]) as everything, serve(files[1]) as small:
            result = Conversation(scripts.run(f"{client}.mjs", revision, everything, small))
    assert result["opening"]["revision"] == revision
    assert {"test_simple_text", "test_image_content"} <= {*result["tools"]}
    assert result["text"] == "This is a simple text response for testing."
    assert result["contents"] == ["text", "image", "resource"]
    assert result["structured"] == {"city": "Paris", "degrees": 21.5}
    assert result["tool says no"]["isError"] is True
    assert result.error("unknown tool")["code"] == -32602
    assert result["fifty calls"] == [at + 2 if at % 2 else at * 2 for at in range(50)]
    steps = [[done, 100, f"Completed step {done} of 100"] for done in (0, 50, 100)]
    # On stdio the TypeScript SDK drops a progress that it reads in one piece with the result.
    heard = [steps] if transport == "http" else [steps, steps[:-1]]
    assert result["progress"] in [["Completed all steps.", item] for item in heard]
    assert result["logs"] == ["info", "warning", "error"]
    assert json.loads(result["read"][0]["text"])["id"] == "123"
    assert result["prompt"][0]["content"]["text"] == "Prompt with arguments: arg1='hello', arg2='world'"
    assert result["complete"] == ["paris", "park", "party"]
    assert result["sampling"] == ["LLM response: Paris", "What is the capital of France?"]
    assert result["roots"] == "1 roots: file:///project"
    assert result["refusal"] == "User response: action=decline, content=None"
    assert result["three questions"] == "Paris Alice, you have 1 roots."
    assert result["two rounds"] == "Alice likes blue."


@pytest.mark.parametrize(("transport", "era", "behind"), [("http", "modern", ERAS[0]), ("stdio", "legacy", ERAS[1])])
def test_inspector_lists_calls_reads_and_gets(transport, era, behind, scripts, gateway_file, servers_by_name, serve):
    file = gateway_file(behind)
    servers_by_name[file] = file

    def inspected(where: list[str], method: str, *options: str) -> Any:
        ended = scripts.inspect(*where, "--method", method, *options, "--protocol-era", era, "--format", "json")
        assert ended.code == 0, ended
        return json.loads(ended.out)["result"]

    def look(where: list[str]) -> None:
        tools = inspected(where, "tools/list", "--strict")["tools"]
        assert "test_x_mcp_header" in {tool["name"] for tool in tools}
        called = inspected(where, "tools/call", "--tool-name", "test_x_mcp_header", "--tool-arg", "region=west")
        assert called["content"] == [{"type": "text", "text": "Routed to west."}]
        (contents,) = inspected(where, "resources/read", "--uri", "test://static-text")["contents"]
        assert contents["text"] == "This is the content of the static text resource."
        named = ("--prompt-name", "test_prompt_with_arguments", "--prompt-args", "arg1=a", "arg2=b")
        (message,) = inspected(where, "prompts/get", *named)["messages"]
        assert message["content"]["text"] == "Prompt with arguments: arg1='a', arg2='b'"

    if transport == "stdio":
        look([sys.executable, "-m", "portico", "serve", file])
    else:
        with serve(file) as url:
            look([url])
