"""Completion of arguments."""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum
from typing import Any, Literal

import pytest

from portico import Client, ProtocolError, Server
from portico.errors import InvalidParams
from portico.protocol.completion import Completion
from portico.protocol.versions import SUPPORTED_PROTOCOL_VERSIONS

Connect = Callable[..., Any]

PAINT = {"type": "ref/prompt", "name": "paint"}
PLACE = {"type": "ref/resource", "uri": "map://{country}/{city}"}


class Size(Enum):
    SMALL = "small"
    SMALLER = "smaller"
    LARGE = "large"


def server() -> Server:
    server = Server("s")

    @server.prompt
    async def paint(colour: str, size: Size, kind: Literal["oil", "ink"] = "oil", framed: bool = False) -> str:
        return colour

    @server.resource("map://{country}/{city}", name="place")
    async def place(country: str, city: str) -> str:
        return city

    @server.completion("paint", "colour")
    async def colours(typed: str) -> list[str]:
        return [item for item in ("red", "rose", "blue") if item.startswith(typed)]

    @server.completion("map://{country}/{city}", "city")
    def cities(typed: str, given: dict[str, str]) -> list[str]:
        response = {"fr": ["Paris", "Pau"], "it": ["Pisa"]}.get(given.get("country", ""), [])
        return [item for item in response if item.startswith(typed)]

    @server.completion("place", "country")
    def countries(typed: str) -> list[str]:
        return ["fr", "it"]

    return server


async def complete(ref: dict[str, str], argument: str, value: str, **options: Any) -> Completion:
    context = options.pop("context", None)
    async with Client(server(), **options) as client:
        return await client.complete(ref, argument, value, context)


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_argument_of_a_prompt_is_completed(revision: str) -> None:
    result = await complete(PAINT, "colour", "r", protocol_version=revision)
    assert (result.values, result.total, result.has_more) == (["red", "rose"], 2, False)


@pytest.mark.requirement("completion.context")
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_template_variable_completion_receives_known_values(revision: str) -> None:
    """2025-06-18 brought the context; before, it is not said."""
    result = await complete(PLACE, "city", "P", context={"country": "fr"}, protocol_version=revision)
    assert result.values == (["Paris", "Pau"] if revision >= "2025-06-18" else [])
    assert (await complete(PLACE, "city", "P", protocol_version=revision)).values == []


async def test_template_completion_accepts_its_name() -> None:
    assert (await complete(PLACE, "country", "")).values == ["fr", "it"]


@pytest.mark.parametrize(
    "argument, typed, expected",
    [
        ("size", "sm", ["small", "smaller"]),
        ("size", "SM", ["small", "smaller"]),
        ("size", "", ["small", "smaller", "large"]),
        ("size", "x", []),
        ("kind", "o", ["oil"]),
        ("framed", "t", ["true"]),
    ],
)
async def test_enumerated_values_are_completed(argument: str, typed: str, expected: list[str]) -> None:
    assert (await complete(PAINT, argument, typed)).values == expected


@pytest.mark.requirement("completion.argument-unknown")
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_argument_that_there_is_not_cannot_be_completed(revision: str) -> None:
    """server/utilities/completion, Error Handling: -32602."""
    for reference in (PLACE, PAINT):
        with pytest.raises(InvalidParams, match="has no argument"):
            await complete(reference, "nothing", "x", protocol_version=revision)


async def test_free_text_arguments_have_no_completions() -> None:
    server = Server("s")
    server.prompt("p")(lambda free: free)
    async with Client(server) as client:
        assert (await client.complete({"type": "ref/prompt", "name": "p"}, "free", "x")).values == []


@pytest.mark.requirement("completion.bounded")
async def test_at_most_a_hundred_values_are_sent() -> None:
    server = Server("s")
    server.prompt("p")(lambda n: n)
    server.completion("p", "n")(lambda typed: range(250))
    async with Client(server) as client:
        result = await client.complete({"type": "ref/prompt", "name": "p"}, "n", "")
    assert (len(result.values), result.total, result.has_more) == (100, 250, True)
    assert result.values[-1] == "99"


@pytest.mark.parametrize(
    "given, expected",
    [
        (None, ([], 0, False)),
        ((), ([], 0, False)),
        (Completion(["a"], 9, True), (["a"], 9, True)),
        ([1], (["1"], 1, False)),
    ],
)
async def test_completion_function_may_return_any_iterable(given: Any, expected: Any) -> None:
    server = Server("s")
    server.prompt("p")(lambda n: n)
    server.completion("p", "n")(lambda typed: given)
    async with Client(server) as client:
        result = await client.complete({"type": "ref/prompt", "name": "p"}, "n", "")
    assert (result.values, result.total, result.has_more) == expected


@pytest.mark.requirement("completion.bounded")
async def test_explicit_completion_is_limited_to_100_values() -> None:
    server = Server("s")
    server.prompt("p")(lambda n: n)
    server.completion("p", "n")(lambda typed: Completion([str(n) for n in range(101)]))
    async with Client(server) as client:
        result = await client.complete({"type": "ref/prompt", "name": "p"}, "n", "")
    assert len(result.values) <= 100


async def test_plain_function_runs_in_a_thread() -> None:
    where: list[str] = []
    server = Server("s")
    server.prompt("p")(lambda n: n)

    @server.completion("p", "n")
    def here(typed: str) -> list[str]:
        where.append(threading.current_thread().name)
        return []

    async with Client(server) as client:
        await client.complete({"type": "ref/prompt", "name": "p"}, "n", "")
    assert where != [threading.current_thread().name]


@pytest.mark.requirement("completion.unknown")
@pytest.mark.parametrize(
    "ref, name",
    [
        ({"type": "ref/prompt", "name": "nobody"}, "nobody"),
        ({"type": "ref/resource", "uri": "no://where"}, "no://where"),
    ],
)
async def test_completion_of_a_missing_reference_is_an_error(ref: dict[str, str], name: str) -> None:
    with pytest.raises(ProtocolError) as raised:
        await complete(ref, "a", "")
    assert raised.value.code == -32602
    assert name in raised.value.message


@pytest.mark.requirement("completion.validated")
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"ref": {"type": "ref/tool", "name": "x"}, "argument": {"name": "a", "value": ""}},
        {"ref": {"type": "ref/prompt"}, "argument": {"name": "a", "value": ""}},
        {"ref": {"type": "ref/prompt", "name": "paint"}, "argument": {"name": "colour"}},
        {"ref": {"type": "ref/prompt", "name": "paint"}, "argument": {"name": "colour", "value": 1}},
    ],
)
async def test_malformed_completion_requests_are_invalid_params(connect: Connect, params: dict[str, Any]) -> None:
    error = (await connect(server()).request_stateless("completion/complete", params))["error"]
    assert error["code"] == -32602
    assert "completion/complete" in error["message"]


async def test_unexpected_exception_shows_an_id_and_nothing_else() -> None:
    server = Server("s")
    server.prompt("p")(lambda n: n)
    server.completion("p", "n")(lambda typed: 1 / 0)
    async with Client(server) as client:
        with pytest.raises(ProtocolError) as raised:
            await client.complete({"type": "ref/prompt", "name": "p"}, "n", "")
    assert raised.value.message == f"Internal error (error id {raised.value.data['errorId']})"


@pytest.mark.requirement("completion.declared")
async def test_server_without_completions_has_no_such_method() -> None:
    server = Server("s", capabilities={"tools": {}})
    async with Client(server) as client:
        with pytest.raises(ProtocolError) as raised:
            await client.complete(PAINT, "colour", "")
    assert raised.value.code == -32601
