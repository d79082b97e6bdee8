"""Chat model behind an OpenAI-compatible HTTP endpoint: Ollama, llama.cpp, vLLM, LM Studio, OpenAI."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field

from portico import ProtocolError, UsageError, settings_file
from portico.errors import TransportError
from portico.extend import SimpleResponse, decode_bounded, http_request
from portico_services.memory.errors import ModelError

# A model answers with a few kilobytes; the limits keep a wrong URL or file from filling the memory.
MAX_RESPONSE_BYTES = 4_000_000
MAX_KEY_FILE_BYTES = 10_000
# Timeout, conflict, too early and rate limit: the same request may succeed later. Other 4xx will not.
_RETRYABLE_STATUSES = (408, 409, 425, 429)
_KEY = re.compile(r"[\x21-\x7e]{1,4096}")
# Output of reasoning models that precedes the answer.
_REASONING_BLOCK = re.compile(r"\A\s*<think(?:ing)?>.*?</think(?:ing)?>\s*", re.DOTALL)


class ChatModelEndpoint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of `[services.memory.model]` in portico.toml. Calling it sends a prompt and returns the response
    text.

    The API key is read on each request and never stored.
    """

    # Base URL of an OpenAI-compatible API, without `/chat/completions`: `http://127.0.0.1:11434/v1`.
    url: Annotated[str, Meta(pattern=r"^https?://[^\s@?#]+$")]
    # Name of the model at the endpoint.
    name: Annotated[str, Meta(min_length=1, max_length=200)]
    # Environment variable with the API key.
    api_key_env: str = ""
    # File with the API key, read on each request.
    api_key_file: str = ""
    # Timeout of one request.
    timeout: Annotated[float, Meta(gt=0, le=3600)] = 60.0

    async def __call__(self, prompt: str, max_tokens: int) -> str:
        body = {"model": self.name, "messages": [{"role": "user", "content": prompt}], "stream": False}
        response = await self._post(body | {"max_tokens": max_tokens})
        if response.status == 400 and b"max_completion_tokens" in response.body:
            # Newer OpenAI models require the other name and reject this one.
            response = await self._post(body | {"max_completion_tokens": max_tokens})
        if response.status != 200:
            retryable = response.status in _RETRYABLE_STATUSES or response.status >= 500
            raise ModelError(f"The model server returned HTTP status {response.status}.", retryable=retryable)
        return _completion_text(response.body)

    async def _post(self, body: dict[str, Any]) -> SimpleResponse:
        headers = [("Content-Type", "application/json"), ("Accept", "application/json"), *self._auth_headers()]
        try:
            return await http_request(
                "POST",
                f"{self.url.rstrip('/')}/chat/completions",
                headers=headers,
                body=msgspec.json.encode(body),
                timeout=self.timeout,
                max_response_bytes=MAX_RESPONSE_BYTES,
            )
        except (TransportError, ProtocolError) as failure:
            # The message may contain the URL, which clients need not know.
            raise ModelError(f"The model request failed ({type(failure).__name__}).") from failure

    def _auth_headers(self) -> list[tuple[str, str]]:
        key = os.environ.get(self.api_key_env, "") if self.api_key_env else ""
        if self.api_key_file:
            try:
                with Path(self.api_key_file).expanduser().open(encoding="ascii") as file:
                    key = file.read(MAX_KEY_FILE_BYTES)
            except (OSError, ValueError):
                raise ModelError("The API key file of the model cannot be read.", retryable=False) from None
        # Files usually end with a newline, which would break the header.
        key = key.strip()
        if not key and not self.api_key_env:
            return []
        # Printable ASCII only: a line break in a key could inject headers.
        if not _KEY.fullmatch(key):
            raise ModelError("The API key of the model is missing or contains invalid characters.", retryable=False)
        return [("Authorization", f"Bearer {key}")]


class _ChatPart(Struct):
    text: str = ""


class _ChatMessage(Struct):
    content: str | list[_ChatPart] | None = None


class _ChatChoice(Struct):
    message: _ChatMessage = field(default_factory=_ChatMessage)


class _ChatCompletion(Struct):
    choices: list[_ChatChoice] = field(default_factory=list)


def _completion_text(body: bytes) -> str:
    """Return the response text, empty if the response contains none. Raises `ModelError` for an invalid response."""
    try:
        completion = decode_bounded(body, type=_ChatCompletion)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise ModelError("The model server returned an invalid response.") from None
    content = completion.choices[0].message.content if completion.choices else None
    text = "".join(part.text for part in content) if isinstance(content, list) else content or ""
    return _REASONING_BLOCK.sub("", text)


def chat_model_from_settings(settings: Mapping[str, Any]) -> ChatModelEndpoint:
    """Build the endpoint from a settings table. Raises `UsageError`."""
    # The error for an invalid value repeats it, and a password must not reach a log.
    if "@" in str(settings.get("url", "")):
        raise UsageError("model: url must not contain credentials; use api_key_env or api_key_file")
    return settings_file.convert(dict(settings), ChatModelEndpoint, "model")
