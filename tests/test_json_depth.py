"""Foreign JSON is limited in depth, so that recursion over it cannot overflow the stack."""

from __future__ import annotations

import json
import random
from base64 import urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from portico.auth.flow import FetchResponse
from portico.auth.verifiers import jws
from portico.auth.verifiers.base import InvalidToken
from portico.frontmatter import parse_frontmatter
from portico.protocol.errors import UsageError
from portico.protocol.json_depth import MAX_JSON_DEPTH, decode_bounded, exceeds_depth
from portico.server.providers.openapi.document import read_document
from portico.testing.recording.file import Recorder
from portico_gateway.authserver import clients
from portico_gateway.gateway import tool_pinning
from portico_services.contracts import loader, lockfile
from portico_services.memory.sync import serialization

LEVELS = (300, 5_000, 100_000)


def nested(levels: int) -> str:
    return '{"a":[' * (levels // 2) + "1" + "]}" * (levels // 2)


def depth_of(value: Any) -> int:
    if not isinstance(value, dict | list):
        return 0
    return 1 + max(map(depth_of, value.values() if isinstance(value, dict) else value), default=0)


def made(generator: random.Random, levels: int) -> Any:
    kind = generator.random()
    if levels <= 0 or kind < 0.2:
        return generator.choice([1, None, "", "\\", 'a[{"]}\\', '\\"', "é["])
    if kind < 0.6:
        return [made(generator, levels - 1) for _ in range(generator.randint(0, 2))]
    return {f'{generator.choice("a[{")}"{at}': made(generator, levels - 1) for at in range(generator.randint(0, 2))}


def test_depth_is_that_of_the_decoded_value() -> None:
    generator = random.Random(7)
    for _ in range(3_000):
        value = made(generator, 14)
        text, depth = json.dumps(value), depth_of(value)
        for limit in range(max(depth - 2, 0), depth + 2):
            assert exceeds_depth(text, limit) == (depth > limit), text


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[" * 200 + '"', '["' + '\\"' * 100_000])
def test_malformed_text_is_a_decode_error(text: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_bounded(text)


def test_wide_documents_are_read() -> None:
    assert len(decode_bounded("[" + ",".join(["[[]]"] * 100_000) + "]")) == 100_000
    assert len(decode_bounded("[" * MAX_JSON_DEPTH + "]" * MAX_JSON_DEPTH)) == 1


def _jwt_part(text: str) -> Any:
    return jws._decode_object(urlsafe_b64encode(f'{{"a":{text}}}'.encode()).decode().rstrip("="))


OPENAPI = '{"openapi":"3.1.0","info":{"title":"a","version":"1"},"paths":{},"components":{"schemas":{"a":%s}}}'
REFUSED: dict[str, tuple[Callable[[str], Any], type[Exception]]] = {
    "openapi": (lambda text: read_document((OPENAPI % text).encode()), UsageError),
    "token": (_jwt_part, InvalidToken),
    "lock": (lambda text: lockfile.load_lockfile(f'{{"lock":1,"tools":{text}}}'), ValueError),
    "contract": (lambda text: loader.load_text(f'{{"tools":[{text}]}}'), loader.InvalidContract),
    "memory": (lambda text: serialization.from_markdown_file(f"---\nid: {text}\n---\nx\n"), Exception),
    "frontmatter": (lambda text: parse_frontmatter(f"---\na: {text.replace('1', '2')}\n---\n"), UsageError),
}


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("name", REFUSED)
def test_documents_nested_too_deeply_are_rejected(name: str, levels: int) -> None:
    read, refusal = REFUSED[name]
    with pytest.raises(refusal) as caught:
        read(nested(levels))
    assert not isinstance(caught.value, RecursionError)


@pytest.mark.parametrize("levels", LEVELS)
def test_oauth_documents_nested_too_deeply_are_ignored(levels: int, tmp_path: Path) -> None:
    body = f'{{"a":{nested(levels)}}}'.encode()
    assert FetchResponse(200, (), body).json_object() is None
    assert clients._read(body[: clients.MAX_DOCUMENT_BYTES]) is None
    (tmp_path / "lock").write_bytes(b'{"lock":1,"upstreams":%b}' % body)
    with pytest.raises(UsageError):
        tool_pinning._read(tmp_path / "lock")
    tape = Recorder(str(tmp_path / "tape"))
    tape.write("server", body)
    tape.close()
    assert len((tmp_path / "tape").read_text().splitlines()) == 2


def test_references_that_form_a_long_chain_are_rejected() -> None:
    from portico.server.providers.openapi import request_bodies

    schemas = {f"s{at}": {"type": "array", "items": {"$ref": f"#/components/schemas/s{at + 1}"}} for at in range(5_000)}
    document = read_document(
        {"openapi": "3.1.0", "info": {"title": "a", "version": "1"}, "paths": {}, "components": {"schemas": schemas}}
    )
    with pytest.raises(UsageError):
        request_bodies._is_file(document, {"$ref": "#/components/schemas/s0"})
