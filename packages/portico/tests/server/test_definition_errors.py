"""Invalid definitions are rejected when the server is built."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from portico import Server, Service, UsageError
from portico.server.options import CacheHint
from portico.server.skills.service import Skills
from portico.types import Annotations, Icon


def hello() -> str:
    return "hello"


class _Extended(Service):
    name = "extended"

    def extensions(self) -> dict[str, dict[str, Any]]:
        return {"bare": {}}


MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "a tool without a name": (lambda: Server("s").tool(name="")(hello), "must have a name"),
    "a prompt without a name": (lambda: Server("s").prompt(name="")(hello), "must have a name"),
    "a resource without a name": (lambda: Server("s").resource("a://b", name="")(hello), "must have a name"),
    "an alias without a name": (lambda: Server("s").tool(aliases=[""])(hello), "invalid name"),
    "a path for a URI": (lambda: Server("s").resource("nowhere")(hello), "invalid URI"),
    "no URI": (lambda: Server("s").resource("")(hello), "invalid URI"),
    "only a scheme": (lambda: Server("s").resource("test:")(hello), "invalid URI"),
    "a blank in a URI": (lambda: Server("s").resource("test://a b")(hello), "invalid URI"),
    "a letter to be encoded": (lambda: Server("s").resource("test://größe")(hello), "invalid URI"),
    "half a percent sequence": (lambda: Server("s").resource("test://a%2")(hello), "invalid URI"),
    "a blank in a template": (lambda: Server("s").resource("test://a b/{x}")(lambda x: x), "invalid URI"),
    "a template without a scheme": (lambda: Server("s").resource("{x}/y")(lambda x: x), "invalid URI"),
    "a capability that is no table": (lambda: Server("s", capabilities={"tools": True}), "capabilities"),
    "a negative ttl": (lambda: Server("s", cache=CacheHint(-1)), "ttl_ms"),
    "a ttl that is no number": (lambda: Server("s", cache=CacheHint("1")), "ttl_ms"),  # type: ignore[arg-type]
    "an unknown scope": (lambda: Server("s", cache=CacheHint(0, "everybody")), "cache_scope"),  # type: ignore[arg-type]
    "an icon that is a script": (lambda: Server("s", icons=[Icon("javascript:alert(1)")]), "icon"),
    "an icon of a tool on the disk": (lambda: Server("s").tool(icons=[Icon("file:///x")])(hello), "icon"),
    "an icon of a prompt": (lambda: Server("s").prompt(icons=[Icon("ftp://x/y")])(hello), "icon"),
    "an icon of a resource": (lambda: Server("s").resource("a://b", icons=[Icon("x.png")])(hello), "icon"),
    "a priority above one": (
        lambda: Server("s").resource("a://b", annotations=Annotations(priority=5))(hello),
        "priority",
    ),
    "an audience that is neither": (
        lambda: Server("s").resource("a://b", annotations=Annotations(audience=["robot"]))(hello),  # type: ignore[list-item]
        "audience",
    ),
    "a blank in a key": (lambda: Server("s").tool(meta={"a b": 1})(hello), "_meta"),
    "a prefix that is no domain": (lambda: Server("s").prompt(meta={"-a/b": 1})(hello), "_meta"),
    "a key that ends with a dot": (lambda: Server("s").tool(meta={"com.example/a.": 1})(hello), "_meta"),
    "a key of the protocol": (
        lambda: Server("s").resource("a://b", meta={"io.modelcontextprotocol/x": 1})(hello),
        "reserved for the protocol",
    ),
    "a priority that is a yes": (
        lambda: Server("s").resource("a://b", annotations=Annotations(priority=True))(hello),
        "priority",
    ),
    "a priority that is a text": (
        lambda: Server("s").resource("a://b", annotations=Annotations(priority="1"))(hello),  # type: ignore[arg-type]
        "priority",
    ),
    "a key of the protocol as it was": (
        lambda: Server("s").tool(meta={"mcp.dev/x": 1})(hello),
        "reserved for the protocol",
    ),
    "what JSON has not": (lambda: Server("s").tool(meta={"com.example/x": object()})(hello), "JSON-serializable"),
    "a timeout of nothing": (lambda: Server("s").tool(timeout=0)(hello), "timeout"),
    "a timeout before the start": (lambda: Server("s").tool(timeout=-1)(hello), "timeout"),
    "a timeout that is no number": (lambda: Server("s").tool(timeout=float("nan"))(hello), "timeout"),
    "pages without entries": (lambda: Server("s", list_page_size=0), "page_size"),
    "another key of the protocol": (
        lambda: Server("s").tool(meta={"dev.mcp/x": 1})(hello),
        "reserved for the protocol",
    ),
    "an extension without a prefix": (lambda: Server("s", capabilities={"extensions": {"bare": {}}}), "extension"),
    "an extension of a service": (lambda: Server("s").add(_Extended()), "extension"),
}


@pytest.mark.requirement("resources.uri-syntax", "caching.hints-valid")
@pytest.mark.parametrize("build, words", MISTAKES.values(), ids=MISTAKES)
def test_invalid_definitions_raise_usage_error(build: Callable[[], Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        build()


@pytest.mark.requirement("caching.hints-valid")
def test_hints_of_skills_are_checked_too(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="ttl_ms"):
        Skills(tmp_path, cache_ttl_ms=-1)


def test_valid_definitions_are_accepted() -> None:
    server = Server("s", cache=CacheHint(0, "public"), icons=[Icon("data:image/png;base64,AA==")])
    keys = [
        "a",
        "ui",
        "portico/version",
        "com.example/a",
        "com.example.tools/a-b_c.d",
        "com.example.mcp/a",
        "mcp-like.example/a",
        "x/",
    ]
    server.tool(name="t", meta=dict.fromkeys(keys, 1), icons=[Icon("HTTPS://example.com/i.png")])(hello)
    for uri in ("a://b", "urn:isbn:123", "a:b", "file:///a%20b", "a://b/{c}{?d,e*}", "a://[::1]/x", "ui://x#y"):
        names = [name for name in "cde" if f"{name}" in uri and "{" in uri]
        fn = (lambda c, d="", e=(): c) if names else hello
        server.resource(uri, name="r", annotations=Annotations(priority=1, audience=["user"]))(fn)
