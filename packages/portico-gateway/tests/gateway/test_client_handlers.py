"""Requests of upstreams that the gateway answers itself."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from portico import Client, Context, Server, ToolError, UsageError
from portico_gateway import Gateway

ASKING = """
from portico import Context, Server

server = Server("asking")


@server.tool
async def roots(ctx: Context) -> str:
    return " ".join(str(root.uri) for root in await ctx.list_roots())


@server.tool
async def sample(ctx: Context) -> str:
    return (await ctx.sample("hello")).text


if __name__ == "__main__":
    server.run()
"""
MODEL = """
async def answer(params):
    return f"the model of the gateway heard {len(params.messages)}"


def breaks(params):
    raise RuntimeError("secret reason")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "asking.py").write_text(ASKING)
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path


def gateway(folder: Path, below: Any, **answers: Any) -> Gateway:
    result = Gateway()
    result.add_upstream(
        "a", [sys.executable, str(folder / "asking.py")], protocol_version=below, client_handlers=answers
    )
    return result


@pytest.mark.parametrize("below", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("above", ["2025-11-25", "2026-07-28"])
async def test_gateway_answers_itself(folder: Path, below: Any, above: Any) -> None:
    answers = {"roots": ["file:///srv/share"], "sampling": f"{folder / 'model.py'}:answer"}
    async with Client(gateway(folder, below, **answers), protocol_version=above) as client:
        assert (await client.call_tool("a_roots")).text == "file:///srv/share"
        assert (await client.call_tool("a_sample")).text == "the model of the gateway heard 1"


@pytest.mark.parametrize("below", ["2025-11-25", "2026-07-28"])
async def test_question_is_rejected_clearly(folder: Path, below: Any) -> None:
    async with Client(gateway(folder, below, sampling="reject"), sampling_handler=lambda params: "mine") as client:
        with pytest.raises(Exception, match=r"(?i)sampling"):
            await client.call_tool("a_sample")


async def test_client_handler_errors_are_not_revealed(folder: Path) -> None:
    result = gateway(folder, "2025-11-25", sampling=f"{folder / 'model.py'}:breaks")
    async with Client(result) as client:
        with pytest.raises(ToolError) as error:
            await client.call_tool("a_sample")
    assert "secret reason" not in str(error.value)


async def test_in_process_handler_receives_responses() -> None:
    server = Server("here")

    @server.tool
    async def roots(ctx: Context) -> str:
        return " ".join(str(root.uri) for root in await ctx.list_roots())

    result = Gateway()
    result.add_upstream("a", server, client_handlers={"roots": ["file:///srv"]})
    async with Client(result) as client:
        assert (await client.call_tool("a_roots")).text == "file:///srv"


@pytest.mark.parametrize(
    "answers, what",
    [
        ({"sampling": "model"}, "must be module:function"),
        ({"roots": ["/srv"]}, "must begin with file://"),
        ({"root": []}, "did you mean 'roots'"),
        ({"sampling": "no_such_module:f"}, "no_such_module"),
    ],
)
def test_invalid_client_handlers_raise_usage_error(answers: Any, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        Gateway().add_upstream("a", ["x"], client_handlers=answers)
