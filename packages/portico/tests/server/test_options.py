"""Misspelled options are rejected with a suggestion."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import portico
from portico import Client, Prompt, Resource, Server, Service, SyncClient, Tool, UsageError
from portico.extend import serve_http


def hello() -> str:
    return "hello"


def server() -> Server:
    return Server("small", version="1")


MISTAKES: dict[str, tuple[Callable[..., Any], str]] = {
    "a tool": (lambda: server().tool(titel="Hello"), "a tool: unknown option 'titel' (did you mean 'title'?)"),
    "a named tool": (lambda: server().tool("x", timout=3), "a tool: unknown option 'timout' (did you mean 'timeout'?)"),
    "a marked method": (
        lambda: portico.tool(run_in_thred=True),
        "a tool: unknown option 'run_in_thred' (did you mean 'run_in_thread'?)",
    ),
    "of a service": (
        lambda: Service("s").tool(alias=["b"]),
        "a tool: unknown option 'alias' (did you mean 'aliases'?)",
    ),
    "a Tool": (lambda: Tool(hello, scope=["a"]), "a tool: unknown option 'scope' (did you mean 'scopes'?)"),
    "a prompt": (lambda: server().prompt(icon=[]), "a prompt: unknown option 'icon' (did you mean 'icons'?)"),
    "a Prompt": (lambda: Prompt(hello, nam="x"), "a prompt: unknown option 'nam' (did you mean 'name'?)"),
    "a resource": (
        lambda: server().resource("a://b", mimetype="text/html"),
        "a resource: unknown option 'mimetype' (did you mean 'mime_type'?)",
    ),
    "a Resource": (
        lambda: Resource(hello, "a://b", zzz=1),
        "a resource: unknown option 'zzz' (expected one of annotations, auth, description, icons, meta, "
        "mime_type, name, run_in_thread, security, size, tags, title",
    ),
    "a server": (
        lambda: Server("x", instruction="y"),
        "Server: unknown option 'instruction' (did you mean 'instructions'?)",
    ),
    "a client": (lambda: Client(server(), timout=3), "Client: unknown option 'timout' (did you mean 'timeout'?)"),
    "a client that waits": (
        lambda: SyncClient(server(), header={}),
        "SyncClient: unknown option 'header' (did you mean 'headers'?)",
    ),
    "stdio": (
        lambda: server().run(shutdown_timeou=1),
        "run(\"stdio\"): unknown option 'shutdown_timeou' (did you mean 'shutdown_timeout'?)",
    ),
    "http": (lambda: server().run("http", prot=1), "run(\"http\"): unknown option 'prot' (did you mean 'port'?)"),
    "http_app": (lambda: server().http_app(host="x"), "http_app(): unknown option 'host' (expected one of "),
}


@pytest.mark.parametrize("make, words", MISTAKES.values(), ids=MISTAKES)
def test_misspelt_option_names_the_nearest(make: Callable[..., Any], words: str) -> None:
    with pytest.raises(UsageError) as refused:
        make()
    assert str(refused.value).startswith(words)


async def test_misspelt_option_of_serving_on_this_loop_is_rejected() -> None:
    with pytest.raises(UsageError, match="did you mean 'port'"):
        await serve_http(server(), prot=1)  # type: ignore[call-arg]


def test_options_of_a_client_can_be_seen() -> None:
    options = inspect.signature(Client).parameters
    assert "timeout" in options
    assert inspect.signature(SyncClient).parameters.keys() == options.keys()


def test_missing_argument_raises_type_error() -> None:
    with pytest.raises(TypeError, match="uri"):
        Resource(hello)  # type: ignore[call-arg]
