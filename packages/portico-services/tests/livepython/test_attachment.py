"""Attaching to the objects of a running application."""

from __future__ import annotations

import json
import sys
import threading
import urllib.error
import urllib.request
from types import ModuleType
from typing import Any

import pytest

from portico import Client, Server, ToolError, UsageError
from portico_services.livepython import attach, attachment as attached
from portico_services.livepython.attachment import AttachedPython
from support.live_python import REVISION, WorkerDialog, wait_until


class Account:
    """Money of somebody's."""

    __slots__ = ("balance", "owner")

    def __init__(self, owner: str, balance: int) -> None:
        self.owner = owner
        self.balance = balance

    @property
    def rich(self) -> bool:
        touched.append("rich")
        return self.balance > 100

    def pay(self, amount: int) -> None:
        self.balance -= amount


class Sly(dict[str, int]):
    def __getitem__(self, key: str) -> int:
        touched.append("getitem")
        return 1

    def __getattr__(self, name: str) -> int:
        touched.append("getattr")
        return 1


touched: list[str] = []


@pytest.fixture
def application() -> dict[str, Any]:
    touched.clear()
    return {
        "__name__": __name__,
        "Account": Account,
        "accounts": {"ada": Account("Ada", 5)},
        "history": [1, (2, 3)],
        "sly": Sly(a=1),
    }


async def talk_to(service: AttachedPython) -> Client:
    server = Server("application", version="1")
    server.add(service)
    return Client(server, protocol_version=REVISION)


async def test_looking_is_all_there_is_by_default(application: dict[str, Any]) -> None:
    async with await talk_to(AttachedPython(application)) as client:
        names = {tool.name for tool in await client.list_tools()}
        assert "inspect_object" in names
        assert not names & {"evaluate", "reset_session", "list_sessions"}


@pytest.mark.parametrize(
    "expression, shown",
    [
        ("accounts['ada'].balance", "5"),
        ("accounts['ada'].owner", "'Ada'"),
        ("history[1][0]", "2"),
        ("history[-1]", "(2, 3)"),
        ("len", "<built-in function len>"),
    ],
)
async def test_names_are_resolved_to_their_values(application: dict[str, Any], expression: str, shown: str) -> None:
    async with await talk_to(AttachedPython(application)) as client:
        result = await client.call_tool("inspect_object", {"expression": expression})
        assert result.structured["repr"] == shown


@pytest.mark.parametrize(
    "expression, words",
    [
        ("accounts['ada'].pay(1)", "evaluation is disabled"),
        ("accounts['ada'].rich", "is a property"),
        ("accounts['bob']", "KeyError"),
        ("accounts['ada'].nothing", "no attribute"),
        ("account", "Did you mean accounts"),
        ("history[len(history)]", "Only constants"),
        ("history + [1]", "evaluation is disabled"),
        ("sly['a']", "cannot be inspected"),
        ("sly.anything", "no attribute"),
        ("[x for x in history]", "evaluation is disabled"),
        ("(lambda: 1)()", "evaluation is disabled"),
        ("x := 1", "is not an expression"),
        ("import os", "is not an expression"),
        ("f'{accounts}'", "evaluation is disabled"),
    ],
)
async def test_nothing_is_run(application: dict[str, Any], expression: str, words: str) -> None:
    async with await talk_to(AttachedPython(application)) as client:
        result = await client.call_tool("inspect_object", {"expression": expression}, raise_on_error=False)
        assert result.is_error
        assert words in result.text
    assert touched == []
    assert application["accounts"]["ada"].balance == 5


async def test_classes_are_listed_without_importing(application: dict[str, Any]) -> None:
    async with await talk_to(AttachedPython(application)) as client:
        found = await client.call_tool("class_details", {"className": "Account"})
        assert found.structured["instanceVariables"] == ["balance", "owner"]
        source = await client.call_tool("method_source", {"className": "Account", "selector": "pay"})
        assert source.text == "def pay(self, amount: int) -> None:\n    self.balance -= amount"
        sys.modules.pop("this", None)
        for package in ("this", "antigravity"):
            result = await client.call_tool("list_classes", {"package": package}, raise_on_error=False)
            assert "is not loaded" in result.text
        assert "this" not in sys.modules


async def test_code_changes_the_application_if_that_is_switched_on(
    application: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = AttachedPython(application, evaluate=True)
    async with await talk_to(service) as client:
        live = WorkerDialog(client, service)
        await live.run("accounts['ada'].pay(2)")
        assert application["accounts"]["ada"].balance == 3
        assert await live.text("await __import__('asyncio').sleep(0, 7)") == "7"
        assert "ZeroDivisionError" in await live.text("1/0")
        assert "SystemExit" in await live.text("raise SystemExit")
        assert "only session" in await live.text("1", session="other")
        application["go"] = go = threading.Event()
        monkeypatch.setattr(attached, "INTERRUPT_GRACE_SECONDS", 0.05)
        # A wait in C is not interrupted before it is over.
        assert "It keeps running" in await live.text("go.wait(30)", timeout=0.05)
        assert "still busy" in await live.text("1")
        go.set()
        await wait_until(lambda: not service._client.interpreters.sessions(None)[0].busy)
        assert await live.text("1") == "1"


def test_attached_interpreter_is_local_only() -> None:
    with pytest.raises(UsageError, match="must be a loopback address"):
        attach({}, host="0.0.0.0")
    assert AttachedPython({}).local_only


def _post(url: str, token: str | None, message: dict[str, Any]) -> Any:
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    request = urllib.request.Request(url, json.dumps(message).encode(), headers)
    with urllib.request.urlopen(request, timeout=10) as response:
        return json.loads(response.read().decode().removeprefix("event: message\ndata: ").strip())


def test_attached_application_requires_the_token() -> None:
    module = ModuleType("app")
    module.total = 42  # type: ignore[attr-defined]
    hello = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {"protocolVersion": REVISION, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
    }
    with attach(module) as attachment:
        assert attachment.url.startswith("http://127.0.0.1:")
        assert len(attachment.token) > 30
        assert _post(attachment.url, attachment.token, hello)["result"]["serverInfo"]["name"] == "application"
        for token in (None, "wrong"):
            with pytest.raises(urllib.error.HTTPError) as refused:
                _post(attachment.url, token, hello)
            refused.value.close()
            assert refused.value.code == 401
    assert not [item for item in threading.enumerate() if item.name == "portico-attach"]


def test_occupied_port_is_a_usage_error() -> None:
    with attach({}) as first:
        port = int(first.url.rpartition(":")[2].partition("/")[0])
        with pytest.raises(UsageError, match="cannot listen"):
            attach({}, port=port)


# Classes and objects that run code when they are merely looked at


def noticing(name: str) -> Any:
    def method(self: Any, *given: Any) -> Any:
        touched.append(name)
        raise RuntimeError(name)

    return method


class Watchful(type):
    __name__ = property(noticing("meta __name__"))  # type: ignore[assignment]

    def __getattribute__(cls, name: str) -> Any:
        touched.append(f"meta {name}")
        return super().__getattribute__(name)

    def __dir__(cls) -> Any:
        touched.append("meta dir")
        return ["seen"]

    def __instancecheck__(cls, one: object) -> bool:
        touched.append("instancecheck")
        return True


class Watched(metaclass=Watchful):
    limit = 5

    def go(self) -> str:
        """Goes."""
        return "gone"

    def __getattribute__(self, name: str) -> Any:
        touched.append(f"self {name}")
        return super().__getattribute__(name)

    def __repr__(self) -> str:
        return "<watched>"


class Key:
    def __init__(self, like: str) -> None:
        self.like = like

    def __hash__(self) -> int:
        return hash(self.like)

    def __eq__(self, other: object) -> bool:
        touched.append("eq")
        return False

    def __repr__(self) -> str:
        return "<key>"


class Odd(list[int]):
    __len__ = noticing("len")
    __iter__ = noticing("iter")

    def __repr__(self) -> str:
        return "<odd>"


class OddDict(dict[str, int]):
    __len__ = noticing("len")
    __iter__ = noticing("iter")
    items = noticing("items")

    def __repr__(self) -> str:
        return "<odd>"


async def test_nothing_but_repr_is_run_by_looking() -> None:
    namespace: dict[str, Any] = {
        "__name__": __name__,
        "Watched": Watched,
        "one": Watched(),
        "keys": {Key("ada"): 1, "ada": 2, Key("bob"): 3, ("a", 1): 4, 7: 5},
        "odd": Odd([1, 2]),
        "odds": OddDict(a=1),
    }
    async with await talk_to(AttachedPython(namespace)) as client:
        touched.clear()
        for expression, shown in (
            ("one", "<watched>"),
            ("keys['ada']", "2"),
            ("keys['a', 1]", "4"),
            ("keys[7]", "5"),
            ("odd", "<odd>"),
            ("odds", "<odd>"),
        ):
            result = await client.call_tool("inspect_object", {"expression": expression})
            assert result.structured["repr"] == shown
        assert (await client.call_tool("inspect_object", {"expression": "odd"})).structured["length"] == 2
        assert (await client.call_tool("inspect_object", {"expression": "odds"})).structured["length"] == 1
        with pytest.raises(ToolError, match="KeyError"):
            await client.call_tool("inspect_object", {"expression": "keys['bob']"})
        await client.call_tool("list_classes", {"package": "__main__"})
        details = (await client.call_tool("class_details", {"className": "Watched"})).structured
        assert details["name"] == "Watched"
        assert "go" in {method["name"] for method in details["methods"]}
        source = await client.call_tool("method_source", {"className": "Watched", "selector": "go"})
        assert "gone" in source.text
        await client.call_tool("search_methods", {"pattern": "go", "className": "Watched"})
        assert touched == []
