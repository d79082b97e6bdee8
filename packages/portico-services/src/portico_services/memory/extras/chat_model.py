"""A model behind an HTTP endpoint that speaks as OpenAI's does: Ollama, llama.cpp, vLLM, LM Studio, OpenAI itself."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field

from portico import ProtocolError, UsageError
from portico.extend import HttpAnswer, TransportError, decode_bounded, http_exchange
from portico_services.memory.errors import ModelFailed

LONGEST_ANSWER = 4_000_000
LONGEST_KEY_FILE = 10_000
_PASSING = (408, 409, 425, 429)
_KEY = re.compile(r"[\x21-\x7e]{1,4096}")
# What models that think aloud say first.
_THOUGHT = re.compile(r"\A\s*<think(?:ing)?>.*?</think(?:ing)?>\s*", re.DOTALL)


class ChatModel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[services.memory.provider]` in a portico.toml. Asked with a text, it gives a text.

    The key is read each time it is needed, and kept nowhere.
    """

    # Up to and without `/chat/completions`: http://127.0.0.1:11434/v1
    url: Annotated[str, Meta(pattern=r"^https?://[^\s@?#]+$")]
    model: Annotated[str, Meta(min_length=1, max_length=200)]
    # Where the key is, for those that want one: a variable of the environment, or a file.
    key_variable: str = ""
    key_file: str = ""
    seconds: Annotated[float, Meta(gt=0, le=3600)] = 60.0

    async def __call__(self, question: str, tokens: int) -> str:
        asked = {"model": self.model, "messages": [{"role": "user", "content": question}], "stream": False}
        answer = await self._asked(asked | {"max_tokens": tokens})
        if answer.status == 400 and b"max_completion_tokens" in answer.body:
            # OpenAI's newer models want the other name, and refuse this one.
            answer = await self._asked(asked | {"max_completion_tokens": tokens})
        if answer.status != 200:
            passing = answer.status in _PASSING or answer.status >= 500
            raise ModelFailed(f"The model's server answered {answer.status}.", retryable=passing)
        return _said(answer.body)

    async def _asked(self, asked: dict[str, Any]) -> HttpAnswer:
        headers = [("Content-Type", "application/json"), ("Accept", "application/json"), *self._introduced()]
        try:
            return await http_exchange(
                "POST",
                f"{self.url.rstrip('/')}/chat/completions",
                headers=headers,
                body=msgspec.json.encode(asked),
                seconds=self.seconds,
                longest=LONGEST_ANSWER,
            )
        except (TransportError, ProtocolError) as failure:
            # Its text may name the address, which is the operator's business.
            raise ModelFailed(f"The model could not be asked ({type(failure).__name__}).") from failure

    def _introduced(self) -> list[tuple[str, str]]:
        key = os.environ.get(self.key_variable, "") if self.key_variable else ""
        if self.key_file:
            try:
                with Path(self.key_file).expanduser().open(encoding="ascii") as file:
                    key = file.read(LONGEST_KEY_FILE)
            except (OSError, ValueError):
                raise ModelFailed("The model's key cannot be read.", retryable=False) from None
        key = key.strip()
        if not key and not self.key_variable:
            return []
        if not _KEY.fullmatch(key):
            raise ModelFailed("The model's key is not there, or is none.", retryable=False)
        return [("Authorization", f"Bearer {key}")]


class _ChatPart(Struct):
    text: str = ""


class _ChatMessage(Struct):
    content: str | list[_ChatPart] | None = None


class _ChatChoice(Struct):
    message: _ChatMessage = field(default_factory=_ChatMessage)


class _ChatCompletion(Struct):
    choices: list[_ChatChoice] = field(default_factory=list)


def _said(body: bytes) -> str:
    """What the model said; empty where it said nothing."""
    try:
        completion = decode_bounded(body, type=_ChatCompletion)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise ModelFailed("The model's server said something that is no answer.") from None
    content = completion.choices[0].message.content if completion.choices else None
    text = "".join(part.text for part in content) if isinstance(content, list) else content or ""
    return _THOUGHT.sub("", text)


def chat_model(settings: Any) -> ChatModel:
    """From a table of settings. Raises UsageError."""
    try:
        return msgspec.convert(dict(settings), ChatModel)
    except (msgspec.ValidationError, TypeError, ValueError) as mistake:
        raise UsageError(f"the provider cannot be had: {mistake}") from None
