"""Samples of the guide are executed, and its tables compared with the code.

A sample is a block of ```text or ```json behind a comment that says how to get it:

    <!-- orders: tools/call {"name": "place_order"} at 2025-06-18 without capabilities -->

The example's server is asked just this. Text is what a model would read; of JSON, the members that are shown must be
those that were sent. `schema NAME` instead of a method stands for a tool's input schema.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import logging
import re
import sys
import typing
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from portico import Client, Context, Server, Service
from portico.jsonschema.argument_issues import MAX_ARGUMENT_ISSUES
from portico.jsonschema.explanation import MAX_QUOTE_CHARS
from portico.jsonschema.generation import schema_for_type
from portico.protocol import errors
from portico.protocol.completion import MAX_COMPLETION_VALUES
from portico.protocol.jsonrpc import MAX_ARGUMENTS, MAX_BATCH_MESSAGES, MAX_JSON_COMMAS, MAX_JSON_NODES
from portico.protocol.meta import MAX_NAME_CHARS
from portico.protocol.uri_template import UriTemplate
from portico.protocol.versions import LATEST_PROTOCOL_VERSION, SUPPORTED_PROTOCOL_VERSIONS
from portico.rpc.channel import MAX_IN_FLIGHT_REQUESTS
from portico.rpc.handshake.session import MAX_RESOURCE_SUBSCRIPTIONS
from portico.server.components.prompts import PromptOptions
from portico.server.components.resources import ResourceOptions
from portico.server.components.tools import ToolOptions
from portico.server.context.request_state import MAX_STATE_BYTES, STATE_TTL_SECONDS
from portico.server.http import AsgiAppOptions, HttpServerOptions
from portico.transports.stdio import MAX_MESSAGE_BYTES, SHUTDOWN_TIMEOUT_SECONDS, StdioOptions
from support.paths import ROOT

FOLDERS = ("tutorial", "how-to", "reference", "explanation")
# Page names are unique over the folders, except the indexes.
PATHS = {page.stem: page for folder in FOLDERS for page in sorted((ROOT / "docs" / folder).glob("[!R]*.md"))}
PAGES = {name: path.read_text() for name, path in PATHS.items()}
EVERYTHING = {"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}}, "roots": {}}

SAMPLE = re.compile(
    r"^<!-- (?P<example>\w+): (?P<method>\S+) (?P<params>.+?)"
    r"(?: at (?P<revision>[\d-]+))?(?P<bare> without capabilities)? -->\n"
    r"```(?P<language>text|json)\n(?P<block>.*?)^```",
    re.DOTALL | re.MULTILINE,
)
# What differs from run to run.
FLEETING = (
    (re.compile(r"error id [0-9a-f]{8}"), "error id 0"),
    (re.compile(r'"errorId": ?"[0-9a-f]{8}"'), '"errorId":"0"'),
    (re.compile(r'"requestState": ?"[^"]+"'), '"requestState":"0"'),
)

Connect = Callable[..., Any]


class Sample(NamedTuple):
    page: str
    example: str
    method: str
    params: str
    revision: str
    bare: str | None
    language: str
    block: str


def samples() -> Iterator[Any]:
    for page, text in PAGES.items():
        for result in SAMPLE.finditer(text):
            parts = {**result.groupdict(), "revision": result["revision"] or LATEST_PROTOCOL_VERSION}
            yield pytest.param(Sample(page, **parts), id=f"{page}: {result['example']} {result['params']}"[:80])


def load(example: str) -> ModuleType:
    """A fresh copy of an example, because some of them remember what was done to them."""
    spec = importlib.util.spec_from_file_location(f"_guide_{example}", ROOT / "examples" / f"{example}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[module.__name__]
    return module


def steady(text: str) -> str:
    for pattern, instead in FLEETING:
        text = pattern.sub(instead, text)
    return text


def read(result: dict[str, Any]) -> str:
    """The words in a result, as somebody would read them."""
    blocks = result.get("content") or result.get("contents") or ()
    words = [block["text"] for block in blocks if "text" in block]
    words += [f"{item['role']}: {item['content']['text']}" for item in result.get("messages", ())]
    return "\n".join(words)


@pytest.mark.parametrize("sample", list(samples()))
async def test_sample_matches_the_example(sample: Sample, connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    module = load(sample.example)
    if sample.method == "schema":
        assert json.loads(sample.block) == module.server.tools.get(sample.params).definition.input_schema
        return
    wire, params, capabilities = connect(module.server), json.loads(sample.params), {} if sample.bare else EVERYTHING
    if sample.revision == LATEST_PROTOCOL_VERSION:
        response = await wire.request_stateless(sample.method, params, capabilities=capabilities)
    else:
        await wire.initialize(sample.revision, capabilities)
        response = await wire.request(sample.method, params)
    if sample.language == "text":
        assert steady(sample.block) == steady(read(response["result"])) + "\n"
        return
    output, sent = (
        json.loads(steady(sample.block)),
        json.loads(steady(json.dumps(response.get("result") or response["error"]))),
    )
    assert output == {name: sent.get(name) for name in output}


def test_every_sample_is_marked() -> None:
    """A block of text or JSON without a marker would be read by nobody."""
    for page, text in PAGES.items():
        if page in ("first-server", "install"):
            continue
        marked = len(SAMPLE.findall(text))
        assert len(re.findall(r"^```(?:text|json)$", text, re.MULTILINE)) == marked, page


# Tables


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table under a heading; a `\\|` is a bar."""
    _, result, rest = PAGES[page].partition(f"## {heading}\n")
    assert result, f"{page} has no section {heading!r}"
    table = re.search(r"^\|.*?\n(?:\n|\Z)", rest, re.DOTALL | re.MULTILINE)
    assert table is not None
    lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in table[0].strip().splitlines()[2:]]
    return [[cell.strip().replace("\\|", "|") for cell in line] for line in lines]


def code(cell: str) -> str:
    return cell.strip("`")


@pytest.mark.parametrize("row", rows("tools", "Types"), ids=lambda row: row[0])
def test_type_has_the_schema_that_the_table_shows(row: list[str]) -> None:
    names: dict[str, Any] = {**vars(typing)}
    exec(
        "import datetime, decimal, pathlib, uuid\nfrom datetime import date, timedelta\nfrom msgspec import Meta", names
    )
    orders = load("orders")
    names |= {"Delivery": orders.Delivery, "Receipt": orders.Receipt}
    assert schema_for_type(eval(code(row[0]), names)) == json.loads(code(row[1]))


@pytest.mark.parametrize("row", rows("serve-resources", "Templates"), ids=lambda row: row[1])
def test_uri_template_table_matches_the_code(row: list[str]) -> None:
    template, uri, values = map(code, row[:3])
    assert UriTemplate(template).match(uri) == (None if values == "no match" else json.loads(values))


async def test_results_table_matches_the_code() -> None:
    table = {code(row[0]): row[1:] for row in rows("tools", "Results")}
    server = load("results").server
    async with Client(server) as client:
        listed = {tool.name: tool for tool in await client.list_tools()}
        for tool in server.tools:
            hint = inspect.signature(tool.fn).return_annotation
            name = "None" if hint is None else getattr(hint, "__name__", str(hint)) if isinstance(hint, type) else ""
            if name not in table:
                continue
            _, structured = table[name]
            result = await client.call_tool(tool.name)
            assert (result.structured is not None) is structured.startswith("yes"), name
            assert (listed[tool.name].output_schema is not None) is (structured == "yes, by schema"), name


def options_of(init: Any) -> list[str]:
    return [name for name in inspect.signature(init).parameters if name not in ("self", "fn", "target")]


@pytest.mark.parametrize(
    "page, options, described",
    [
        ("tools", ToolOptions.__annotations__, Server.tool),
        ("serve-resources", ["uri", *ResourceOptions.__annotations__], Server.resource),
        ("write-prompts", PromptOptions.__annotations__, Server.prompt),
        ("server", options_of(Server.__init__), Server),
        ("client", options_of(Client.__init__), Client),
    ],
)
def test_every_option_is_explained(page: str, options: Iterable[str], described: Any) -> None:
    """On its page of the guide, and in the docstring."""
    missing = [name for name in options if f"`{name}`" not in PAGES[page] and f"`{name}=" not in PAGES[page]]
    assert not missing
    assert not [name for name in options if f"**{name}**" not in described.__doc__]


def test_every_option_of_running_is_described() -> None:
    stdio, http = StdioOptions.__annotations__, HttpServerOptions.__annotations__
    assert not [name for name in AsgiAppOptions.__annotations__ if f"**{name}**" not in str(Server.http_app.__doc__)]
    described = f"{Server.run.__doc__}{Server.http_app.__doc__}"
    assert not [name for name in (*stdio, *http) if f"**{name}**" not in described]


@pytest.mark.parametrize("page, of", [("context", Context), ("server", Service), ("client", Client)])
def test_every_public_name_is_explained(page: str, of: type) -> None:
    internal = {"get_rounds", "bind_task", "enter_thread", "input_required_result", "components", "scoped_components"}
    public = [name for name in vars(of) if not name.startswith("_") and name not in internal]
    missing = [name for name in public if not re.search(rf"`(?:\w+\.)?{name}\b", PAGES[page])]
    assert not missing


def test_exception_tree_matches_its_drawing_in_the_code() -> None:
    assert errors.__doc__ is not None
    [drawn] = re.findall(r"^```\n(PorticoError .*?)^```", errors.__doc__, re.DOTALL | re.MULTILINE)
    assert drawn in PAGES["error-codes"]


def test_documented_limits_match_the_code() -> None:
    table = {row[0]: row[1] for row in rows("security", "Limits")}
    assert table["message on stdio"].startswith(f"{MAX_MESSAGE_BYTES // 2**20} MiB")
    assert table["calls in flight on one stream"] == f"{MAX_IN_FLIGHT_REQUESTS:,}"
    assert table["messages in one batch"] == f"{MAX_BATCH_MESSAGES:,}"
    assert table["objects, arrays and members in a message"] == f"{MAX_JSON_NODES:,}"
    assert table["values in a message"] == f"{MAX_JSON_COMMAS:,}"
    assert table["arguments of a call"] == f"{MAX_ARGUMENTS:,}"
    assert table["name or URI"] == f"{MAX_NAME_CHARS:,} characters"
    assert table["subscriptions per session, or in one listen request"] == f"{MAX_RESOURCE_SUBSCRIPTIONS:,}"
    assert table["`requestState`"] == f"{MAX_STATE_BYTES // 1024} KiB, {STATE_TTL_SECONDS / 60:.0f} minutes"
    assert table["problems in one error"] == str(MAX_ARGUMENT_ISSUES)
    assert table["value quoted in an error"] == f"{MAX_QUOTE_CHARS} characters"
    assert table["completions in one response"] == str(MAX_COMPLETION_VALUES)
    assert table["running calls at shutdown"] == f"{SHUTDOWN_TIMEOUT_SECONDS:.0f} seconds"


def test_tests_named_by_the_security_page_exist() -> None:
    cells = [
        line.split("|")[-2] for line in PAGES["security"].splitlines() if line.startswith("|") and "/tests/" in line
    ]
    assert len(cells) > 50
    for cell in cells:
        folder = Path()
        for name in re.findall(r"`([^`]+)`", cell):
            folder = Path(name).parent if "/" in name else folder
            assert (ROOT / (name if "/" in name else folder / name)).exists(), name


def test_table_of_revisions_has_a_column_for_each() -> None:
    header = next(line for line in PAGES["protocol-versions"].splitlines() if line.startswith("| |"))
    assert [cell.strip() for cell in header.split("|")[2:-1]] == list(SUPPORTED_PROTOCOL_VERSIONS)
