"""The exchanges of LLM-Pharo-MCP's protocol guide, with `--profile pharo`. The image is a Python."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from support.paths import ROOT

pytestmark = pytest.mark.broken_frames("the profile wants members that no revision has")

Serve = Callable[..., Awaitable[Any]]
PAGE = (ROOT / "docs" / "reference" / "profiles.md").read_text()

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-03-26",
        "capabilities": {},
        "clientInfo": {"name": "claude-desktop", "version": "1.0.0"},
    },
}


@pytest.fixture
async def pharo(serve: Serve) -> Any:
    child = await serve("pharo")
    await child.open("2025-03-26")
    return child


async def test_handshake_is_the_documented_one(serve: Serve) -> None:
    """To the letter: the sample without its white space."""
    child = await serve("pharo")
    assert await child.exchange(json.dumps(INITIALIZE)) == (
        '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-03-26","capabilities":{"tools":{"listChanged":false},'
        '"resources":{"subscribe":false,"listChanged":false},"prompts":{"listChanged":false}},'
        '"serverInfo":{"name":"pharo-mcp","version":"0.1.0"}}}'
    )
    child.notify("notifications/initialized")
    assert await child.exchange('{ "jsonrpc": "2.0", "id": 2, "method": "ping" }') == (
        '{"jsonrpc":"2.0","id":2,"result":{}}'
    )


async def test_evaluate_answers_to_the_letter(pharo: Any) -> None:
    """A success says nothing of errors."""
    response = await pharo.exchange(
        '{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"evaluate","arguments":{"expression":"3 + 4"}}}'
    )
    assert response == '{"jsonrpc":"2.0","id":4,"result":{"content":[{"type":"text","text":"7"}]}}'


async def test_expression_that_fails_is_an_error_result(pharo: Any) -> None:
    result = (await pharo.call("evaluate", expression="undefined_variable"))["result"]
    assert result["isError"] is True
    assert result["content"][0]["text"].startswith("Error: ")
    assert "undefined_variable" in result["content"][0]["text"]


async def test_tools_have_names_of_one_kind(pharo: Any) -> None:
    tools = await pharo.tools()
    schema = tools["evaluate"]["inputSchema"]
    assert schema["required"] == ["expression"]
    assert schema["properties"]["expression"]["type"] == "string"
    assert {"system-info", "search-methods", "list-classes", "method-source"} <= tools.keys()
    assert not [name for name in tools if "_" in name]
    assert not [name for name, one in tools.items() if "_details" in one["description"]]


@pytest.mark.parametrize("name", ["class-details", "class_details", "live.class_details", "live_class_details"])
async def test_our_own_names_can_still_be_called(pharo: Any, name: str) -> None:
    data = json.loads((await pharo.call(name, className="bool"))["result"]["content"][0]["text"])
    assert (data["name"], data["superclass"]) == ("bool", "int")


async def test_resources_are_listed_under_the_schemes_of_pharo(pharo: Any) -> None:
    listed = (await pharo.result("resources/list"))["resources"]
    assert all(template["uri"].startswith("pharo://") for template in listed)
    (version,) = (template for template in listed if template["uri"] == "pharo://system/version")
    assert (version["name"], version["mimeType"]) == ("System Version", "text/plain")
    assert version["description"]
    templates = (await pharo.result("resources/templates/list"))["resourceTemplates"]
    assert all(template["uriTemplate"].startswith("pharo://") for template in templates)
    (details,) = (template for template in templates if template["uriTemplate"] == "pharo://class/{className}")
    assert (details["name"], details["mimeType"]) == ("Class Details", "application/json")


@pytest.mark.parametrize("scheme", ["pharo", "python"])
async def test_version_is_read_by_either_scheme(pharo: Any, scheme: str) -> None:
    uri = f"{scheme}://system/version"
    (contents,) = (await pharo.result("resources/read", {"uri": uri}))["contents"]
    assert contents["type"] == "text"
    assert contents["text"].startswith("Python 3.")
    assert (contents["uri"], contents["mimeType"]) == (uri, "text/plain")


@pytest.mark.parametrize("revision", ["2025-06-18", "2025-11-25"])
async def test_later_revisions_know_no_type_of_contents(serve: Serve, revision: str) -> None:
    child = await serve("pharo")
    await child.open(revision)
    (contents,) = (await child.result("resources/read", {"uri": "pharo://system/version"}))["contents"]
    assert contents.keys() == {"uri", "mimeType", "text"}


async def test_class_is_read_through_its_template(pharo: Any) -> None:
    (contents,) = (await pharo.result("resources/read", {"uri": "pharo://class/bool"}))["contents"]
    data = json.loads(contents["text"])
    assert (data["name"], data["superclass"]) == ("bool", "int")
    assert data.keys() >= {"fields", "instanceVariables", "methods"}
    answer = await pharo.child.request("resources/read", {"uri": "pharo://class/NoSuchClass"})
    assert answer["error"]["code"] == -32002


async def test_prompts_are_the_documented_ones(pharo: Any) -> None:
    prompts = {prompt["name"]: prompt for prompt in (await pharo.result("prompts/list"))["prompts"]}
    assert {"name": "className", "description": "The class to review", "required": True} in (
        prompts["review-class"]["arguments"]
    )
    result = await pharo.result(
        "prompts/get", {"name": "review-class", "arguments": {"className": "OrderedCollection"}}
    )
    assert result["description"] == "Code review for OrderedCollection"
    (message,) = result["messages"]
    assert (message["role"], message["content"]["type"]) == ("user", "text")
    assert message["content"]["text"].startswith("Please review the class OrderedCollection.")
    assert "class-details" in message["content"]["text"]
    assert "class_details" not in message["content"]["text"]


async def test_mistakes_have_their_codes_and_ids(pharo: Any) -> None:
    assert await pharo.exchange('{"jsonrpc":"2.0","id":1,"method":"unknown/method"}') == (
        '{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"Method not found: unknown/method"}}'
    )
    answer = await pharo.request(
        {"jsonrpc": "2.0", "id": "p", "method": "prompts/get", "params": {"name": "review-class"}}
    )
    assert (answer["id"], answer["error"]["code"]) == ("p", -32602)
    assert "className" in answer["error"]["message"]


async def test_image_is_changed_in_place_and_saved(pharo: Any) -> None:
    await pharo.call("evaluate", expression="class Account:\n    def pay(self): return 1\naccount = Account()")
    response = await pharo.call("define-method", className="Account", source="def pay(self): return 2")
    assert "isError" not in response["result"]
    patch = (await pharo.call("list-changes"))["result"]["content"][0]["text"]
    assert patch.startswith("--- /dev/null\n+++ b/Account.py\n")
    assert patch.endswith("+    def pay(self): return 2\n")
    await pharo.call("save-session", name="image")
    await pharo.call("reset-session")
    await pharo.call("restore-session", name="image")
    said = (await pharo.call("evaluate", expression="account.pay()"))["result"]
    assert said["content"][0]["text"] == "2"


async def test_completion_and_change_notifications_can_be_enabled(serve: Serve, tmp_path: Path) -> None:
    match = re.search(r"^\$ cat watched.toml\n(.*?)^\$ ", PAGE, re.DOTALL | re.MULTILINE)
    assert match is not None
    (tmp_path / "watched.toml").write_text(match[1])
    child = await serve("pharo", "--config", tmp_path / "watched.toml")
    hello = await child.open("2025-11-25")
    assert hello["capabilities"]["resources"] == {"subscribe": True, "listChanged": False}
    await child.result("resources/subscribe", {"uri": "pharo://class/Account"})
    await child.call("evaluate", expression="class Account:\n    def pay(self): ...")
    assert (await child.heard("notifications/resources/updated"))["params"]["uri"] == "pharo://class/Account"

    async def completed(template: str, name: str, value: str, **given: str) -> Any:
        argument = {"name": name, "value": value}
        params = {
            "ref": {"type": "ref/resource", "uri": template},
            "argument": argument,
            "context": {"arguments": given},
        }
        return (await child.result("completion/complete", params))["completion"]["values"]

    assert (await completed("pharo://class/{className}", "className", "Acc"))[0] == "Account"
    selector = await completed("pharo://method/{className}/{selector}", "selector", "p", className="Account")
    assert selector == ["pay"]


async def test_without_a_word_the_document_s_nine_methods_are_all(pharo: Any) -> None:
    """And the notification that follows the first of them."""
    for method, params in {
        "ping": None,
        "tools/list": None,
        "tools/call": {"name": "evaluate", "arguments": {"expression": "1"}},
        "resources/list": None,
        "resources/read": {"uri": "pharo://system/version"},
        "resources/templates/list": None,
        "prompts/list": None,
        "prompts/get": {"name": "system-overview"},
    }.items():
        await pharo.result(method, params)
    for method in ("completion/complete", "resources/subscribe", "logging/setLevel"):
        answer = await pharo.child.request(method, {})
        assert answer["error"]["code"] in (-32601, -32602), answer


async def test_nothing_is_offered_before_the_handshake_is_over(serve: Serve) -> None:
    child = await serve("pharo")
    early = await child.child.request("tools/list")
    assert early["error"]["code"] == -32600
    await child.request(INITIALIZE)
    assert await child.result("ping") == {}
    child.notify("notifications/initialized")
    assert (await child.result("tools/list"))["tools"]


async def test_every_message_is_json_rpc_and_every_mistake_has_its_code(pharo: Any) -> None:
    for line, id, code in [
        ("{", None, -32700),
        ('{"jsonrpc":"1.0","id":7,"method":"ping"}', 7, -32600),
        ('{"jsonrpc":"2.0","id":8,"method":"nothing"}', 8, -32601),
        ('{"jsonrpc":"2.0","id":9,"method":"resources/read","params":{}}', 9, -32602),
    ]:
        data = json.loads(await pharo.exchange(line))
        assert data["jsonrpc"] == "2.0"
        assert (data.get("id"), data["error"]["code"]) == (id, code)


async def test_resource_that_fails_is_the_server_s_failure(serve: Serve, tmp_path: Path) -> None:
    """What a client did right, and the server could not do: the session's code hangs in what is read."""
    (tmp_path / "short.toml").write_text("[services.live]\ntimeout = 1.0\n")
    child = await serve("pharo", "--config", tmp_path / "short.toml")
    await child.open("2025-03-26")
    slow = "class B:\n  def __repr__(self):\n    while True: pass\nclass A:\n  def f(self, x=B()): pass"
    await child.call("evaluate", expression=slow)
    answer = await child.child.request("resources/read", {"uri": "pharo://class/A"})
    assert answer["error"]["code"] == -32603


async def test_end_of_input_ends_it(pharo: Any) -> None:
    code, rest, _ = await pharo.end()
    assert (code, rest) == (0, "")
