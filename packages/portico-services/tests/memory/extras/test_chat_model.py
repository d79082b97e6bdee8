"""A chat model behind an OpenAI-compatible endpoint, over real HTTP."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from portico import UsageError
from portico_services.memory.errors import ModelError
from portico_services.memory.extras import chat_model as chat_models
from portico_services.memory.extras.chat_model import chat_model_from_settings
from portico_services.memory.service import Memory
from support.http_threads import running
from support.memories import CAPTURE, call_tool

Serving = Callable[..., Any]
SECRET = "sk-not-to-be-seen-anywhere"


class Endpoint(ThreadingHTTPServer):
    """Answers `POST /v1/chat/completions`, as Ollama, llama.cpp and vLLM do."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Chat)
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.status = 200
        self.says: Any = "databases, storage"
        # A parameter that it does not take.
        self.refuses = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class _Chat(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append(body)
        self.server.keys.append(self.headers["authorization"])
        result = self.path == "/v1/chat/completions"
        says = self.server.says
        if self.server.refuses in body:
            says, result = {"error": {"message": "Use 'max_completion_tokens' instead."}}, None
        if isinstance(says, str):
            message = {"role": "assistant", "content": says}
            says = {"id": "1", "object": "chat.completion", "choices": [{"index": 0, "message": message}]}
        data = says if isinstance(says, bytes) else json.dumps(says).encode()
        self.send_response(400 if result is None else self.server.status if result else 404)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        if self.server.status == 307:
            self.send_header("location", self.server.url)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    server = Endpoint()
    with running(server):
        yield server


def settings(endpoint: Endpoint, **more: Any) -> dict[str, Any]:
    return {"url": endpoint.url, "name": "small", "timeout": 20, **more}


async def test_endpoint_is_asked_where_the_client_has_no_model(serving: Serving, endpoint: Endpoint) -> None:
    client = await serving(model=settings(endpoint), tools="all")
    id = (await call_tool(client, "memory_capture", **CAPTURE))["id"]
    enriched = await call_tool(client, "memory_enrich", memory_id=id)
    assert (enriched["added_tags"], enriched["by"]) == (["databases", "storage"], "provider")
    (request,) = endpoint.asked
    assert (request["model"], request["max_tokens"], request["stream"]) == ("small", 100, False)
    assert CAPTURE["content"] in request["messages"][0]["content"] and endpoint.keys == [None]
    endpoint.says = "troubleshoot"
    result = await call_tool(client, "memory_intent", query="The build, again")
    assert (result["intent"], result["by"]) == ("troubleshoot", "provider")


@pytest.mark.parametrize("place", ["variable", "file"])
async def test_api_key_is_sent_to_the_endpoint_and_not_logged(
    endpoint: Endpoint, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    (tmp_path / "key").write_text(f"{SECRET}\n")
    monkeypatch.setenv("MODEL_KEY", SECRET)
    value = {"api_key_env": "MODEL_KEY"} if place == "variable" else {"api_key_file": str(tmp_path / "key")}
    model = chat_model_from_settings(settings(endpoint, **value))
    assert await model("Tags?", 100) == "databases, storage"
    assert endpoint.keys == [f"Bearer {SECRET}"]
    endpoint.status = 401
    with pytest.raises(ModelError) as caught:
        await model("Tags?", 100)
    assert SECRET not in f"{model!r} {caught.value} {caplog.text}" and not caught.value.retryable


@pytest.mark.parametrize("key", ["", "two words", "line\r\nX-Evil: 1"])
async def test_invalid_api_key_is_not_sent(endpoint: Endpoint, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_KEY", key)
    with pytest.raises(ModelError):
        await chat_model_from_settings(settings(endpoint, api_key_env="MODEL_KEY"))("Tags?", 100)
    assert endpoint.asked == []


@pytest.mark.parametrize("status, again", [(500, True), (429, True), (404, False), (307, False)])
async def test_http_errors_are_reported_with_their_retryability(endpoint: Endpoint, status: int, again: bool) -> None:
    endpoint.status = status
    with pytest.raises(ModelError) as caught:
        await chat_model_from_settings(settings(endpoint))("Tags?", 100)
    assert caught.value.retryable is again and len(endpoint.asked) == 1
    assert endpoint.url not in str(caught.value)


@pytest.mark.parametrize("says", [b"no JSON", b"[" * 100_000, {"choices": 7}, b"\xff\xfe", {"choices": [{}, 1]}])
async def test_malformed_model_response_is_an_error(endpoint: Endpoint, says: Any) -> None:
    endpoint.says = says
    with pytest.raises(ModelError):
        await chat_model_from_settings(settings(endpoint))("Tags?", 100)


@pytest.mark.parametrize(
    "content", [[{"type": "text", "text": "one, two"}], "<think>\nWhich tags?\n</think>\n\none, two", "one, two"]
)
async def test_model_response_parts_are_read_without_reasoning(endpoint: Endpoint, content: Any) -> None:
    endpoint.says = {"choices": [{"message": {"role": "assistant", "content": content}}]}
    assert await chat_model_from_settings(settings(endpoint))("Tags?", 100) == "one, two"


async def test_model_specific_token_parameter_is_used(endpoint: Endpoint) -> None:
    endpoint.refuses = "max_tokens"
    assert await chat_model_from_settings(settings(endpoint))("Tags?", 100) == "databases, storage"
    assert [item.get("max_completion_tokens") for item in endpoint.asked] == [None, 100]


async def test_answer_without_end_is_not_read(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_models, "MAX_RESPONSE_BYTES", 1000)
    endpoint.says = "x" * 100_000
    with pytest.raises(ModelError):
        await chat_model_from_settings(settings(endpoint))("Tags?", 100)


async def test_unreachable_model_falls_back_to_rules(serving: Serving) -> None:
    client = await serving(model={"url": "http://127.0.0.1:1/v1", "name": "small"})
    id = (await call_tool(client, "memory_capture", **CAPTURE))["id"]
    assert (await call_tool(client, "memory_enrich", memory_id=id))["by"] == "local"


@pytest.mark.parametrize("status, again", [(503, True), (401, False)])
async def test_model_failure_without_a_fallback_is_reported(
    serving: Serving, endpoint: Endpoint, status: int, again: bool
) -> None:
    endpoint.status = status
    client = await serving(model=settings(endpoint))
    id = (await call_tool(client, "memory_capture", **CAPTURE))["id"]
    arguments = {"memory_id": id, "enrich_tags": False, "enrich_structure": True}
    result = await client.call_tool("memory_enrich", arguments, raise_on_error=False)
    error = result.meta["portico/error"]
    assert (result.is_error, error["number"], error["retryable"]) == (True, -32606, again)
    assert ("Try again later" in result.content[0].text) is again


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "x"},
        {"url": "ftp://x/v1", "name": "x"},
        {"url": "http://ann:secret@x/v1", "name": "x"},
        {"url": "http://x/v1", "name": ""},
        {"url": "http://x/v1", "name": "x", "timeout": 0},
        {"url": "http://x/v1", "name": "x", "key": SECRET},
    ],
)
def test_invalid_settings_are_rejected_at_construction(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        Memory(model=wrong)
    assert SECRET not in str(caught.value) and "ann" not in str(caught.value)
