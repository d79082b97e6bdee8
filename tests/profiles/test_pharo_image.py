"""A real image behind the same tool names: a gateway to a command, here a small program."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from portico import Client

HERE = Path(__file__).parent
PAGE = (HERE.parent.parent / "docs" / "reference" / "profiles.md").read_text()
REVISIONS = ["2025-03-26", "2025-11-25"]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The file on the page, with the image of the tests in place of Pharo's."""
    match = re.search(r"^```toml\n(\[gateway\]\n.*?pharo.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert match is not None
    command = json.dumps([sys.executable, str(HERE / "image.py")])
    text, count = re.subn(r"command = .*", lambda _: f"command = {command}", match[1])
    assert count == 1
    path = tmp_path / "image.toml"
    path.write_text(text)
    return path


@pytest.mark.broken_frames("the image says the type of what is read, as its document has it")
@pytest.mark.parametrize("revision", REVISIONS)
async def test_image_tools_have_profile_names(spawn: Callable[..., Any], program: Path, revision: str) -> None:
    child = await spawn("serve", program)
    hello = await child.initialize(revision)
    assert hello["serverInfo"]["name"] == "pharo-mcp"

    async def result(method: str, **params: Any) -> Any:
        answer = await child.request(method, params)
        assert "error" not in answer, answer
        return answer["result"]

    assert [tool["name"] for tool in (await result("tools/list"))["tools"]] == ["evaluate"]
    said = await result("tools/call", name="evaluate", arguments={"expression": "OrderedCollection new"})
    assert said["content"] == [{"type": "text", "text": "an OrderedCollection()"}]
    said = await result("tools/call", name="evaluate", arguments={"expression": "nil foo"})
    assert said["isError"] is True
    (listed,) = (await result("resources/list"))["resources"]
    (contents,) = (await result("resources/read", uri=listed["uri"]))["contents"]
    assert (contents["uri"], contents["text"]) == (listed["uri"], "Pharo 13.0")
    (template,) = (await result("resources/templates/list"))["resourceTemplates"]
    assert template["uriTemplate"] == "pharo://class/{className}"
    (contents,) = (await result("resources/read", uri="pharo://class/Object"))["contents"]
    assert json.loads(contents["text"])["superclass"] == "ProtoObject"
    prompt = await result("prompts/get", name="review-class", arguments={"className": "Object"})
    assert prompt["description"] == "Code review for Object"
    answer = await child.request("resources/read", {"uri": "pharo://class/Gone"})
    assert "error" in answer


async def test_client_reads_resource_contents_without_a_uri() -> None:
    async with Client([sys.executable, str(HERE / "image.py")]) as client:
        (contents,) = await client.read_resource("pharo://system/version")
    assert (contents.uri, contents.text) == ("pharo://system/version", "Pharo 13.0")


async def test_image_that_ended_is_started_again(spawn: Callable[..., Any], program: Path) -> None:
    child = await spawn("serve", program)
    await child.initialize("2025-11-25")
    gone = {"name": "evaluate", "arguments": {"expression": "Smalltalk exit"}}
    answer = await child.request("tools/call", gone)
    assert "error" in answer or answer["result"]["isError"]
    again = {"name": "evaluate", "arguments": {"expression": "3 + 4"}}
    assert (await child.request("tools/call", again))["result"]["content"][0]["text"] == "7"
