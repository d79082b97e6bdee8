"""Typed clients: they pass type checkers, work against a live server, and never execute names of a server."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from portico import Client, Server, ToolError
from portico.client.versions import IncompatibleVersion
from portico_services.contracts import invoker
from portico_services.contracts.codegen.client_model import build_client_model
from portico_services.contracts.codegen.python import generate_python
from portico_services.contracts.codegen.typescript import generate_typescript
from portico_services.contracts.definitions import contract_from_tools
from support.hostile_names import evil_contract
from support.random_schemas import ARGUMENTS, SCHEMAS


def type_checked(folder: Path, *files: str) -> str:
    """What mypy has to say, strictly; nothing if all is well. What they import is checked once, for it takes longer."""
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-error-summary",
        f"--cache-dir={folder.parent / 'mypy'}",
        *files,
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    return done.stdout + done.stderr


USE = """
from shop_client import Address, Shop

async def use(shop: Shop) -> None:
    receipt = await shop.buy(product="shirt", quantity=2, size="large")
    total: float = receipt["total"]
    number: int = await shop.count()
    print(total, number, (await shop.advice()).text)
"""
MISUSE = """
from shop_client import Shop

async def misuse(shop: Shop) -> None:
    await shop.buy()
    await shop.buy(product=3)
    await shop.buy(product="shirt", size="huge")
    await shop.buy(product="shirt", colour="red")
    wrong: str = await shop.count()
    print((await shop.buy(product="shirt"))["nothing"])
"""


@pytest.fixture
async def generated(shop: Server, tmp_path: Path) -> Path:
    contract = await invoker.fetch_contract(shop)
    text = generate_python(build_client_model(contract, contract.tools))
    # The names of classes are made from those of tools; this one is for the program below.
    (tmp_path / "shop_client.py").write_text(text.replace("BuyAddress", "Address"))
    return tmp_path


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("generated_client", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_client_and_its_use_type_check(generated: Path) -> None:
    (generated / "use.py").write_text(USE)
    assert type_checked(generated, "shop_client.py", "use.py") == ""


def test_misuse_does_not_type_check(generated: Path) -> None:
    (generated / "misuse.py").write_text(MISUSE)
    result = type_checked(generated, "misuse.py")
    assert [int(line.split(":")[1]) for line in result.splitlines() if ": error:" in line] == [5, 6, 7, 8, 9, 10]


async def test_client_works_against_a_live_server(generated: Path, shop: Server) -> None:
    module = load(generated / "shop_client.py")
    for revision in ("2025-06-18", "2025-11-25", "2026-07-28"):
        async with Client(shop, protocol_version=revision) as client:
            typed = module.Shop(client)
            assert await typed.buy(product="shirt", quantity=2) == {"number": 1, "total": 5.0, "to": None}
            assert await typed.count() == 3
            assert (await typed.advice(about="less")).text == "Buy less."
            with pytest.raises(ToolError, match="no socks"):
                await typed.buy(product="sock")
    assert module.VERSIONS["buy"] == "2.1.0"


async def test_optional_parameter_more_and_a_field_more_do_not_break_an_old_client(generated: Path) -> None:
    newer = Server("shop")

    @newer.tool
    async def buy(product: str, quantity: int = 1, gift: bool = False) -> dict[str, Any]:
        return {"number": 7, "total": 1.0, "gift": gift, "to": None}

    async with Client(newer) as client:
        assert (await load(generated / "shop_client.py").Shop(client).buy(product="x"))["number"] == 7


async def test_one_tool_alone_has_a_client(shop: Server) -> None:
    contract = await invoker.fetch_contract(shop)
    count = contract.find("count")
    assert count is not None
    text = generate_python(build_client_model(contract, [count]))
    assert "async def count(self) -> int:" in text
    assert "async def buy" not in text
    assert "UNSET" not in text


# Types

TYPES: list[tuple[Any, str, str]] = [
    ({"type": "string"}, "str", "string"),
    ({"type": "integer"}, "int", "number"),
    ({"type": "number"}, "float", "number"),
    ({"type": "boolean"}, "bool", "boolean"),
    ({"type": "null"}, "None", "null"),
    ({}, "Any", "unknown"),
    ({"type": "object"}, "dict[str, Any]", "Record<string, unknown>"),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, "dict[str, int]", "Record<string, number>"),
    ({"type": "array", "items": {"type": "string"}}, "list[str]", "Array<string>"),
    (
        {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]},
        "list[int | str]",
        "[number, string]",
    ),
    ({"enum": ["a", 1, None, True]}, 'Literal["a", 1, None, True]', '"a" | 1 | null | true'),
    ({"enum": [1.5, 2.5]}, "Any", "unknown"),
    ({"const": "x"}, 'Literal["x"]', '"x"'),
    ({"type": ["string", "null"]}, "str | None", "string | null"),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "str | None", "string | null"),
    ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "str | int", "string | number"),
    ({"anyOf": [{"type": "string"}, {}]}, "Any", "unknown"),
]


@pytest.mark.parametrize("schema, in_python, in_typescript", TYPES)
def test_schema_is_a_type(schema: Any, in_python: str, in_typescript: str) -> None:
    entry = {"name": "t", "inputSchema": {"type": "object", "properties": {"x": schema}, "required": ["x"]}}
    contract = contract_from_tools([{**entry, "outputSchema": schema}], server="s")
    made = build_client_model(contract, contract.tools)
    assert f"        x: {in_python},\n    ) -> {in_python}:" in generate_python(made)
    assert f"  x: {in_typescript};" in generate_typescript(made)
    assert f"Promise<{in_typescript}>" in generate_typescript(made)


def test_nested_and_recursive_objects_have_names() -> None:
    node = {
        "type": "object",
        "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}, "a-b": {"type": "string"}},
        "required": ["a-b"],
    }
    output = {"type": "object", "properties": {"node": {"$ref": "#/$defs/node"}}, "$defs": {"node": node}}
    contract = contract_from_tools([{"name": "look", "inputSchema": {}, "outputSchema": output}], server="s")
    made = build_client_model(contract, contract.tools)
    assert 'LookNode = TypedDict(\n    "LookNode",' in generate_python(made)
    assert '"next": "NotRequired[LookNode | None]"' in generate_python(made)
    assert "next?: LookNode | null;" in generate_typescript(made)
    assert '  "a-b": string;' in generate_typescript(made)


def test_alternatives_that_are_objects_are_a_union() -> None:
    options = [
        {"type": "object", "properties": {"kind": {"const": kind}}, "required": ["kind"], "additionalProperties": False}
        for kind in ("cat", "dog")
    ]
    contract = contract_from_tools([{"name": "pet", "inputSchema": {}, "outputSchema": {"oneOf": options}}], server="s")
    made = build_client_model(contract, contract.tools)
    assert "-> PetResult1 | PetResult2:" in generate_python(made)
    assert 'kind: "cat";' in generate_typescript(made)


# Words of others


def test_no_name_or_word_becomes_code() -> None:
    contract = evil_contract()
    tree = ast.parse(generate_python(build_client_model(contract, contract.tools)))
    allowed = (ast.Expr, ast.ImportFrom, ast.ClassDef, ast.AnnAssign, ast.Assign)
    assert all(isinstance(node, allowed) for node in tree.body)
    for node in ast.walk(tree):
        assert not isinstance(node, ast.Import)
        if isinstance(node, ast.Call):
            assert ast.unparse(node.func) in (
                "TypedDict",
                "ToolVersions",
                "self._versions.require",
                "self._client.call_tool",
                "cast",
                "arguments.items",
            )


def test_hostile_names_type_check(tmp_path: Path) -> None:
    contract = evil_contract()
    (tmp_path / "evil.py").write_text(generate_python(build_client_model(contract, contract.tools)))
    assert type_checked(tmp_path, "evil.py") == ""


def test_comments_of_typescript_cannot_be_ended() -> None:
    contract = evil_contract()
    assert "alert(1)" not in _outside_comments(generate_typescript(build_client_model(contract, contract.tools)))


def _outside_comments(text: str) -> str:
    """Also without strings, which are JSON's."""
    return "".join(_pieces(text))


def _pieces(text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        if text.startswith("/*", at):
            at = text.index("*/", at) + 2
        elif text[at] == '"':
            at += 1
            while text[at] != '"':
                at += 2 if text[at] == "\\" else 1
            at += 1
        else:
            yield text[at]
            at += 1


@settings(max_examples=80, deadline=None)
@given(ARGUMENTS, st.none() | SCHEMAS, st.text(max_size=20), st.text(max_size=20))
def test_generated_code_compiles(arguments: Any, output: Any, name: str, words: str) -> None:
    entry = {"name": name, "description": words, "inputSchema": arguments, "outputSchema": output}
    contract = contract_from_tools([entry, {**entry, "name": words}], server=words, version=name)
    made = build_client_model(contract, contract.tools)
    compile(generate_python(made), "generated", "exec", dont_inherit=True)
    _outside_comments(generate_typescript(made))


@pytest.mark.parametrize(
    "name", ["False", "None", "True", "Any", "Client", "Error", "Promise", "class", "", "1", "TypedDict"]
)
def test_server_may_be_called_like_something_else(name: str) -> None:
    contract = contract_from_tools([{"name": name, "inputSchema": {}}, {"name": "x", "inputSchema": {}}], server=name)
    compile(generate_python(build_client_model(contract, contract.tools)), "generated", "exec", dont_inherit=True)


def test_schema_without_end_is_written_in_bounds() -> None:
    deep: Any = {"type": "object", "properties": {"x": {"type": "string"}}}
    for _ in range(60):
        deep = {"type": "object", "properties": {"a": deep, "b": {"type": "array", "items": {"$ref": "#"}}}}
    contract = contract_from_tools([{"name": "t", "inputSchema": deep, "outputSchema": deep}], server="s")
    assert len(generate_python(build_client_model(contract, contract.tools))) < 200_000


def test_type_that_contains_itself_without_a_name_is_anything() -> None:
    reference = {"$ref": "#/$defs/json"}
    options = [
        {"type": "string"},
        {"type": "array", "items": reference},
        {"type": "object", "additionalProperties": reference},
    ]
    several = [{"type": "array", "items": {"type": "array", "items": reference}} for _ in range(5)]
    output = {"$ref": "#/$defs/json", "$defs": {"json": {"anyOf": options + several}}}
    contract = contract_from_tools([{"name": "t", "inputSchema": {}, "outputSchema": output}], server="s")
    made = build_client_model(contract, contract.tools)
    assert "-> str | list[Any] | dict[str, Any] | list[list[Any]]:" in generate_python(made)
    assert "Promise<string | Array<unknown> | Record<string, unknown> | Array<Array<unknown>>>" in generate_typescript(
        made
    )


@pytest.mark.parametrize("revision", ["2025-03-26", "2025-06-18", "2026-07-28"])
@pytest.mark.parametrize(
    "version, is_refused", [("1.2.0", False), ("1.0.9", False), ("1.9.0", False), ("2.0.0", True), ("0.9.0", True)]
)
async def test_another_major_version_is_rejected(version: str, is_refused: bool, revision: str) -> None:
    def server(version: str) -> Server:
        server = Server("mine", version="7.0.0")
        server.tool(name="look", version=version)(lambda: {"a": 1})
        return server

    names: dict[str, Any] = {}
    contract = await invoker.fetch_contract(server("1.2.0"))
    exec(compile(generate_python(build_client_model(contract, contract.tools)), "mine", "exec"), names)
    async with Client(server(version), protocol_version=revision) as client:
        mine = names["Mine"](client)
        # Before 2025-06-18 a list has no room for versions.
        if not is_refused or revision < "2025-06-18":
            await mine.look()
            return
        with pytest.raises(IncompatibleVersion, match=rf"look: .* version 1\.2\.0, .* version {version}"):
            await mine.look()
