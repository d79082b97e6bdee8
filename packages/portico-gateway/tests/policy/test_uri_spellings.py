"""A denied URI is rejected in every spelling that a parser could normalize to it."""

from __future__ import annotations

import json
import posixpath
import re
import shutil
import subprocess
import sys
import time
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from msgspec import Raw

from portico import Client, Server
from portico.extend import configure_access
from portico.protocol.errors import InvalidParams, ResourceNotFound
from portico.protocol.methods import METHODS
from portico.protocol.uri_check import InvalidUri, check_uri
from portico.protocol.uri_forms import uri_variants
from portico_gateway import Gateway
from portico_gateway.gateway.name_filter import NameFilter
from portico_gateway.policy.patterns import parse_pattern

NODE = """
require("readline").createInterface({input: process.stdin}).on("line", line => {
  let said = null
  try {
    const url = new URL(JSON.parse(line))
    let path = url.pathname
    try { path = decodeURIComponent(path) } catch {}
    said = [url.protocol, url.host, require("path").posix.normalize(path)]
  } catch {}
  console.log(JSON.stringify(said))
})
"""


@pytest.fixture(scope="module")
def node() -> Iterator[Any]:
    """Read a URI as `new URL` does, in one process for all of them."""
    program = shutil.which("node")
    if program is None:
        pytest.skip("Node is not installed, so `new URL` cannot be asked")
    with subprocess.Popen([program, "-e", NODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None

        def read(uri: str) -> tuple[str, str, str] | None:
            process.stdin.write(json.dumps(uri) + "\n")
            process.stdin.flush()
            data = json.loads(process.stdout.readline())
            return None if data is None else tuple(data)

        yield read
        process.stdin.close()


def read_by_python(uri: str, decodes: int) -> tuple[str, str, str] | None:
    try:
        result = urlsplit(uri)
        host = result.hostname or ""
    except ValueError:
        return None
    path = result.path
    for _ in range(decodes):
        path = unquote(path)
    return f"{result.scheme}:", host, posixpath.normpath("/" + path.lstrip("/"))


def read_by_lenient_targets(uri: str) -> Iterator[tuple[str, str, str]]:
    """Read a file URI as a servlet container, a target that normalizes Unicode, and a program on Windows do."""
    scheme, _, rest = uri.partition(":")
    if scheme.lower() != "file" or not rest.startswith("///"):
        return
    path = unquote(rest[2:].partition("?")[0].partition("#")[0])
    looks_alike = str.maketrans("\u2044\u2215", "//")
    for reading in (
        re.sub(r";[^/]*", "", path),
        unicodedata.normalize("NFKC", path).translate(looks_alike),
        re.sub(r"(?<=[^/. ])(?:::[^/]*|[. ]+)(?=/|$)", "", path),
    ):
        yield "file:", "", posixpath.normpath("/" + reading.lstrip("/"))


def encoded(char: str, times: int) -> str:
    text = "".join(f"%{byte:02x}" for byte in char.encode())
    for _ in range(times - 1):
        text = text.replace("%", "%25")
    return text if times else char


@st.composite
def spellings(draw: st.DrawFn, heads: list[str], segments: list[str]) -> str:
    """A URI in odd spelling that some parser may still read as the plain one."""
    slash = st.sampled_from(
        ["/"] * 8 + ["//", "/./", "/x/../", "/%2e/", "/x/%2e%2E/", "/x%2fy/../", "%2f", "%5c", "/x//../../"]
    )
    detours = ["share/../", "a%2fb/../../", ".\t./", "x/%252e%252e/", "x/\u2025/", "{a}/../", "{+a}/%2e%2e/", "x/..;/"]
    detours += [
        "x/..;v=1/",
        "x/%2e%2e%3bv/",
        "x/%EF%BC%8E%EF%BC%8E/",
        "x/%25EF%25BC%258E./",
        "x/..\u2044",
        "..%E2%88%95",
    ]
    detour = st.sampled_from([""] * 16 + detours)
    junk = st.sampled_from([""] * 30 + ["\t", "\n", " ", "\\", "\u00ad", "\ufeff"])
    text = draw(st.sampled_from(heads))
    for segment in segments:
        text += draw(detour)
        times = draw(st.sampled_from([0, 0, 0, 1, 1, 2]))
        at = draw(st.integers(0, len(segment) - 1))
        text += segment[:at] + encoded(segment[at], times) + draw(junk) + segment[at + 1 :]
        text += draw(st.sampled_from([""] * 20 + [".", "%20", "::$DATA", "::$INDEX_ALLOCATION", ";v=1"]))
        if segment != segments[-1]:
            text += draw(slash)
    return text + draw(st.sampled_from(["", "", "", "?q=1", "#f", "/", "/.", "?/../../share/x", ";v=1", "%00", " "]))


FILE_HEADS = [
    *("file:///", "FILE:///", "file:/", "file:", "file:////", "file://localhost/", "file://LOCALHOST/", "file://x/"),
    *("file:\\\\\\", "file:///share/../", "file://../", "file:///./", "fi\tle:///", " file:///"),
]
WEB_HEADS = [
    *("https://intern.example/", "https:intern.example/", "https:/intern.example/", "HTTPS://INTERN.EXAMPLE:443/"),
    *(
        "https://intern.example./",
        "https://u:p@intern.example/",
        "https://%69ntern.example/",
        "https:\\\\intern.example/",
    ),
    *(
        "https://ｉntern.example/",
        "https://intern\u3002example/",
        "https:////intern.example/",
        "https://intern.example:/",
    ),
    *("https://in\u00adtern.example/", "https://intern.example:0443/"),
]


def is_refused(uri: str, denied: str, allowed: str) -> bool:
    """Ask every place that judges a URI, as it stands in a request."""
    try:
        METHODS["resources/read"].decode(Raw(json.dumps({"uri": uri}).encode()))
    except InvalidParams:
        return True
    return (
        parse_pattern("", f"files.{denied}").matches_for_deny("resource", "files", uri)
        and not parse_pattern("", f"files.{allowed}").matches_for_allow("resource", "files", uri)
        and not NameFilter((), (f"files.{denied}",)).shows(uri, "files")
        and not NameFilter((), (denied,)).shows(uri)
        and not NameFilter((allowed,), ()).shows(uri)
    )


FAST = settings(deadline=None, max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FAST
@given(uri=spellings(FILE_HEADS, ["srv", "secret", "plan"]))
def test_no_spelling_leads_into_a_denied_folder(node: Any, uri: str) -> None:
    read = [node(uri), *(read_by_python(uri, decodes) for decodes in (0, 1, 2)), *read_by_lenient_targets(uri)]
    if any(item is not None and item[0] == "file:" and f"{item[2]}/".startswith("/srv/secret/") for item in read):
        assert is_refused(uri, "file:///srv/secret/*", "file:///srv/share/*"), (uri, read)


@pytest.mark.parametrize(
    "uri",
    [
        "file:///srv/share/{a}/../../secret/plan",
        "file:///srv/{a}/../secret/plan",
        "file:///srv/share/..;/secret/plan",
        "file:///srv/share/%2e%2e%3Bv=1/secret/plan",
        "file:///srv/share/\uff0e\uff0e/secret/plan",
        "file:///srv/share/%EF%BC%8E%EF%BC%8E/secret/plan",
        "file:///srv/share/..\u2044secret/plan",
        "file:///srv/share/..%E2%88%95secret/plan",
    ],
)
def test_braces_parameters_and_compatibility_characters_hide_no_dot_segments(uri: str) -> None:
    assert is_refused(uri, "file:///srv/secret/*", "file:///srv/share/*")


@pytest.mark.parametrize(
    "uri",
    [
        "file:///srv/secret./plan",
        "file:///srv/secret%20/plan",
        "file:///srv/secret::$INDEX_ALLOCATION/plan",
        "file:///srv%E2%88%95secret/plan",
        "file:///srv\u2044secret/plan",
        "file:///srv/%EF%BD%93ecret/plan",
        "jar:file:///srv/secret/plan!/entry",
        "jar:jar:file:///srv/secret/plan!/inner.jar!/entry",
        "jar:file:///srv/share/%2e%2e/secret/plan!/entry",
        "url:file:///srv/secret/plan",
        "VIEW-SOURCE:file:///srv/share/../secret/plan",
        "url%3Afile:///srv/secret/plan",
        "git+file:///srv/secret/plan",
    ],
)
def test_name_that_only_some_targets_read_as_a_denied_one_is_denied(uri: str) -> None:
    assert is_refused(uri, "file:///srv/secret/*", "file:///none/*")


def test_many_outer_schemes_are_read_in_linear_time() -> None:
    seconds = []
    for count in (1000, 4000):
        uri = "a:" * count + "file:///srv/secret/plan!/x"
        began = time.process_time()
        assert is_refused(uri, "file:///srv/secret/*", "file:///none/*")
        seconds.append(time.process_time() - began)
    # Four times the length: sixteen times the work would be quadratic.
    assert seconds[1] < 10 * seconds[0] + 0.05


def test_text_of_a_template_is_judged_by_where_it_leads() -> None:
    template, denied = "file:///srv/share/{a}/../../secret/{b}", parse_pattern("", "files.file:///srv/secret/*")
    assert denied.matches_for_deny("template", "files", template)
    assert not parse_pattern("", "files.file:///srv/share/*").matches_for_allow("template", "files", template)
    assert not denied.matches_for_deny("template", "files", "file:///{+path}")
    assert parse_pattern("", "files.file:///srv/share/*").matches_for_allow("template", "files", "file:///{+path}")


@FAST
@given(uri=spellings(WEB_HEADS, ["secret", "plan"]))
def test_no_spelling_leads_to_a_denied_page(node: Any, uri: str) -> None:
    read = [node(uri), *(read_by_python(uri, decodes) for decodes in (0, 1, 2))]
    inside = [item for item in read if item is not None and item[:2] == ("https:", "intern.example")]
    if any(f"{item[2]}/".startswith("/secret/") for item in inside):
        assert is_refused(uri, "https://intern.example/secret/*", "https://intern.example/share/*"), (uri, read)


@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "127.1", "0177.0.0.01", "127.0.0.1.", "%3127.0.0.1"])
def test_address_has_many_spellings(node: Any, host: str) -> None:
    assert node(f"http://{host}/x")[1] == "127.0.0.1"
    assert is_refused(f"http://{host}/x", "http://127.0.0.1/*", "http://good.example/*")


@pytest.mark.parametrize(
    "written",
    ["FILE:///srv/secret/*", "file://localhost/srv/secret/*", "file:///srv//secret/*", "file:///srv/%73ecret/*"],
)
def test_rule_is_good_however_it_is_written_itself(written: str) -> None:
    assert parse_pattern("", f"files.{written}").matches_for_deny("resource", "files", "file:///srv/secret/plan")
    assert not NameFilter((), (f"files.{written}",)).shows("file:///srv/secret/plan", "files")


@pytest.mark.parametrize(
    "uri",
    [
        *(
            "note://übersicht/größe",
            "note://a/b%20c",
            "repo://{owner}/{name}{?q}",
            "urn:isbn:1",
            "x://a?q=1&b=%C3%A4#f",
        ),
        *("git+ssh://a@b.example:22/x;y=1", "note://日本語", "data://%E2%82%AC", "x://a/~user/(1)'!*", "file:///C:/x"),
    ],
)
def test_legitimate_uris_pass(uri: str) -> None:
    check_uri(uri)
    assert uri_variants(uri).whole[0] == uri
    assert parse_pattern("", f"a.{uri.partition(':')[0]}:*").matches_for_allow("resource", "a", uri)


@pytest.mark.parametrize(
    "uri, word",
    [
        *(
            ("x://a\tb", "U+0009"),
            ("x://a\nb", "U+000A"),
            ("x://a b", "space"),
            (" x://a", "space"),
            ("x://a\x7f", "U+007F"),
        ),
        *(("x://a\x85", "U+0085"), ("x://a\u2028", "U+2028"), ("x://a\\b", "backslash"), ("x://a%00", "control")),
        *(("x://a%0ab", "control"), ("x://%", "two hexadecimal"), ("x://%zz", "'%zz'"), ("x://%ff", "UTF-8")),
        *(("x://%c0%ae%c0%ae/", "UTF-8"), ("x://%ed%a0%80", "UTF-8"), ("x://\U0010ffff", "U+10FFFF")),
    ],
)
@pytest.mark.parametrize(
    "method, params",
    [
        ("resources/read", {"uri": "{}"}),
        ("resources/subscribe", {"uri": "{}"}),
        ("resources/unsubscribe", {"uri": "{}"}),
        ("resources/directory/read", {"uri": "{}"}),
        ("skills/get", {"uri": "{}"}),
        ("completion/complete", {"ref": {"type": "ref/resource", "uri": "{}"}, "argument": {"name": "a", "value": ""}}),
        ("subscriptions/listen", {"notifications": {"resourceSubscriptions": ["x://good", "{}"]}}),
    ],
)
def test_uri_that_parsers_disagree_on_is_rejected_with_a_reason(method: str, params: Any, uri: str, word: str) -> None:
    import portico.protocol.skills  # noqa: F401

    result = json.dumps(params).replace('"{}"', json.dumps(uri, ensure_ascii=False))
    with pytest.raises(InvalidParams) as refused:
        METHODS[method].decode(Raw(result.encode()))
    assert refused.value.code == -32602
    assert word in refused.value.message and method in refused.value.message


def test_half_a_surrogate_pair_is_rejected() -> None:
    with pytest.raises(InvalidUri, match="surrogate"):
        check_uri("x://\ud800")


UPSTREAM = """
import json, posixpath, re, sys
from urllib.parse import unquote

TEMPLATES = json.loads(sys.argv[1])


def place(uri):
    path = unquote(re.sub(r"[\\t\\r\\n]", "", uri).partition("://")[2].split("?")[0].split("#")[0])
    return posixpath.normpath(path.replace("\\\\", "/"))


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message or "method" not in message:
        continue
    method, params = message["method"], message.get("params") or {}
    result = {
        "initialize": {
            "protocolVersion": "2025-06-18",
            "capabilities": {"resources": {"subscribe": True}, "completions": {}},
            "serverInfo": {"name": "raw", "version": "1"},
        },
        "resources/list": {"resources": []},
        "resources/templates/list": {"resourceTemplates": [{"uriTemplate": one, "name": one} for one in TEMPLATES]},
        "completion/complete": {"completion": {"values": ["done"]}},
    }.get(method, {})
    if method == "resources/read":
        result = {"contents": [{"uri": params["uri"], "text": f"{sys.argv[2]} {place(params['uri'])}"}]}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


def upstream(folder: Path, *templates: str, name: str = "READ") -> list[str]:
    (folder / "raw.py").write_text(UPSTREAM)
    return [sys.executable, str(folder / "raw.py"), json.dumps(templates), name]


WAYS = [
    "file:///srv/share/{a}/../../secret/plan",
    "file:///srv/share/..;/secret/plan",
    *("{}/srv/secret/plan", "{}/srv/share/../secret/plan", "{}/srv/share/%2e%2e/secret/plan", "{}/srv//secret/plan"),
    *(
        "{}/srv/%73ecret/plan",
        "{}/srv/./secret/plan",
        "{}/srv/share/.\t./secret/plan",
        "{}/srv/share/%252e%252e/secret/plan",
    ),
    *(
        "{}/srv/share/..%2fsecret/plan",
        "{}/srv/x%2fy/../secret/plan",
        "{}/srv/SECRET/plan",
        "{}/srv/secret/plan?q",
        "{}/srv/secret/plan#f",
    ),
    *("{}/srv\\secret\\plan", "{}//srv/secret/plan"),
]
RULES = {"rule": [{"resource": "files.file:///srv/secret/*", "deny": True}, {"resource": "files.file:///srv/*"}]}


async def read(client: Any, uri: str) -> str:
    try:
        return str((await client.read_resource(uri))[0].text)
    except (ResourceNotFound, InvalidParams):
        return ""


@pytest.mark.parametrize("how", ["rules", "rules of a mount", "view exclude", "view include", "exclude", "include"])
async def test_resource_that_is_not_shown_is_not_read_by_any_address(tmp_path: Path, how: str) -> None:
    command = upstream(tmp_path, "file:///{+path}")
    options: dict[str, Any] = {}
    if how == "exclude":
        options = {"exclude": ["file:///srv/secret/*"]}
    elif how == "include":
        options = {"include": ["file:///srv/share/*", "file:///{+path}"]}
    server: Any
    if how == "rules of a mount":
        server = Server("outer")
        server.mount(command, namespace="files")
    else:
        server = Gateway(name="gw", max_result_tokens=0)
        server.add_upstream("files", command, **options)
    target = server
    if how.startswith("rules"):
        configure_access(server, RULES)
    if how == "view exclude":
        server.add_view("v", exclude=["files.file:///srv/secret/*"])
        target = server.views["v"]
    elif how == "view include":
        server.add_view("v", include=["files.file:///srv/share/*", "files.file:///{+path}"])
        target = server.views["v"]
    async with Client(target) as client:
        starts = ["file://files/"] if how == "rules of a mount" else ["file://", "file://files/"]
        for start in starts:
            assert await read(client, f"{start}/srv/share/report") == "READ /srv/share/report" or "files" in start
            for way in WAYS:
                assert "secret" not in (await read(client, way.replace("{}", start))).lower(), (start, way)
        assert "report" in await read(client, "file://files//srv/share/report")


async def test_excluded_template_excludes_resources_by_alias(tmp_path: Path) -> None:
    gateway = Gateway(name="gw", max_result_tokens=0)
    command = upstream(tmp_path, "repo://{owner}/{name}", "note://{id}")
    gateway.add_upstream("files", command, exclude=["repo://{owner}/{name}"])
    async with Client(gateway) as client:
        assert [resource_template.uri_template for resource_template in await client.list_resource_templates()] == [
            "note://{id}"
        ]
        assert await read(client, "note://1") == "READ 1"
        for uri in ("repo://a/b", "repo://files/a/b", "REPO://files/a/b"):
            assert await read(client, uri) == ""


async def test_included_template_can_be_read(tmp_path: Path) -> None:
    gateway = Gateway(name="gw", max_result_tokens=0)
    gateway.add_upstream("files", upstream(tmp_path, "repo://{owner}/{name}", "note://{id}"))
    gateway.add_view("v", include=["files.repo://{owner}/{name}"])
    async with Client(gateway.views["v"]) as client:
        assert await read(client, "repo://a/b") == "READ a/b"
        assert await read(client, "note://1") == ""
        assert await read(client, "repo://a/b/../../c/d/../e") == ""


@pytest.mark.parametrize("template", ["{+all}", "{scheme}://{+rest}", "f{+rest}", "file:{+rest}", "file://{+rest}"])
@pytest.mark.parametrize("first", [True, False])
async def test_template_does_not_match_resources_of_another_upstream(
    tmp_path: Path, template: str, first: bool
) -> None:
    gateway = Gateway(name="gw", max_result_tokens=0)
    both = {"evil": upstream(tmp_path, template, name="FORGED"), "files": upstream(tmp_path, "file:///srv/{+path}")}
    for alias in both if first else reversed(both):
        gateway.add_upstream(alias, both[alias])
    async with Client(gateway) as client:
        for uri in ("file:///srv/share/report", "file://files//srv/share/report"):
            assert await read(client, uri) == "READ /srv/share/report"
        # It is there by its alias.
        assert await read(client, "file://evil//srv/share/report") == "FORGED /srv/share/report"
        assert (await read(client, "other://x")).startswith("FORGED") is False


async def test_upstream_cannot_list_a_resource_of_another_upstream(tmp_path: Path) -> None:
    gateway = Gateway(name="gw", max_result_tokens=0)
    gateway.add_upstream("evil", upstream(tmp_path, "file://files//srv/{+path}", name="FORGED"))
    gateway.add_upstream("files", upstream(tmp_path, "file:///srv/{+path}"))
    async with Client(gateway) as client:
        assert await read(client, "file://files//srv/share/report") == "READ /srv/share/report"


async def test_of_equal_templates_the_first_in_the_file_decides(tmp_path: Path) -> None:
    for order in (("one", "two"), ("two", "one")):
        gateway = Gateway(name="gw", max_result_tokens=0)
        for alias in order:
            gateway.add_upstream(alias, upstream(tmp_path, f"file:///{{+{alias}}}", name=alias))
        async with Client(gateway) as client:
            assert await read(client, "file:///x") == f"{order[0]} /x"
            assert await read(client, "file://two//x") == "two /x"


@pytest.mark.parametrize("template", ["{+all}", "{scheme}://{+rest}", "file:{+rest}"])
@pytest.mark.parametrize("first", [True, False])
async def test_template_does_not_match_resources_of_another_mount(tmp_path: Path, template: str, first: bool) -> None:
    evil, files = upstream(tmp_path, template, name="FORGED"), upstream(tmp_path, "file:///srv/{+path}")
    server = Server("outer")
    for command in (evil, files) if first else (files, evil):
        server.mount(command)
    server.mount(upstream(tmp_path, "note://{id}"), namespace="named")
    async with Client(server) as client:
        assert await read(client, "file:///srv/share/report") == "READ /srv/share/report"
        assert await read(client, "note://named/1") == "READ 1"
        reference = {"type": "ref/resource", "uri": "file:///srv/{+path}"}
        assert (await client.complete(reference, "path", "")).values == ["done"]


async def test_mount_with_a_prefix_lists_a_template_that_begins_with_a_variable_behind_it(tmp_path: Path) -> None:
    server = Server("outer")
    server.mount(upstream(tmp_path, "{+all}"), namespace="any")
    async with Client(server) as client:
        assert [resource_template.uri_template for resource_template in await client.list_resource_templates()] == [
            "any/{+all}"
        ]
        assert await read(client, "any/file:///x") == "READ /x"
        assert await read(client, "file:///x") == ""
