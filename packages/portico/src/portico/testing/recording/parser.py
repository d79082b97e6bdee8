"""What a recording means: each request, with what the server said before its answer, and the answer. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from portico.protocol.jsonrpc import ErrorBody
from portico.protocol.meta import PROTOCOL_VERSION, SUBSCRIPTION_ID
from portico.protocol.methods import LASTING
from portico.protocol.notifications import CANCELLED, PROGRESS
from portico.testing.recording.file import TapeEntry

OPENING = ("initialize", "server/discover")


class SaidNotice(Struct, frozen=True):
    """A notification that came before the answer, or behind it and belongs to nothing else."""

    method: str
    params: Any


class AskedQuestion(Struct):
    """A request of the server to the client, and what the client answered."""

    method: str
    params: Any
    answer: Any = UNSET


class RecordedCall(Struct):
    """A request of the client and all that came of it."""

    method: str
    params: dict[str, Any]
    # Of the request itself, where it brings one, or of its handshake.
    revision: str | None
    steps: list[SaidNotice | AskedQuestion] = []
    result: Any = UNSET
    error: ErrorBody | UnsetType = UNSET
    used: int = 0

    @property
    def key(self) -> tuple[str, bytes]:
        return key_of(self.method, self.params)

    @property
    def answered(self) -> bool:
        return self.result is not UNSET or self.error is not UNSET


def key_of(method: str, params: dict[str, Any]) -> tuple[str, bytes]:
    """What two requests have in common that ask the same: who asks, and under which token, is not part of it."""
    asked = {name: said for name, said in params.items() if name != "_meta" and (name, said) != ("arguments", {})}
    return method, msgspec.json.encode(asked, order="sorted")


class ConversationReader:
    """Goes through the entries, and knows what is under way."""

    def __init__(self) -> None:
        self.calls: list[RecordedCall] = []
        # What the server said before the first request, and questions that are about none.
        self.astray = 0
        self._revision: str | None = None
        self._waiting: dict[Any, RecordedCall] = {}
        self._asked: dict[Any, AskedQuestion] = {}

    def hear(self, entry: TapeEntry) -> None:
        for message in _messages(entry.message):
            if "method" not in message:
                self._answer(entry.sender, message)
            elif entry.sender == "client":
                self._from_client(message)
            else:
                self._from_server(message)

    def _from_client(self, message: dict[str, Any]) -> None:
        params = _object(message.get("params"))
        if "id" in message:
            own = _object(params.get("_meta")).get(PROTOCOL_VERSION)
            call = RecordedCall(str(message["method"]), params, own or self._revision)
            self.calls.append(call)
            self._waiting[message["id"]] = call
        elif message["method"] == CANCELLED:
            self._waiting.pop(params.get("requestId"), None)

    def _from_server(self, message: dict[str, Any]) -> None:
        params = message.get("params")
        call = self._subject(message["method"], _object(params))
        if call is None:
            self.astray += 1
            return
        if "id" not in message:
            call.steps.append(SaidNotice(str(message["method"]), params))
            return
        question = AskedQuestion(str(message["method"]), params)
        self._asked[message["id"]] = question
        if question.method != "ping":
            call.steps.append(question)

    def _subject(self, method: str, params: dict[str, Any]) -> RecordedCall | None:
        """The request that something is said about: the one that it names, or the newest that is under way, or was."""
        if method == PROGRESS:
            token = params.get("progressToken")
            return next((one for one in reversed(self.calls) if token_of(one.params) == token), None)
        id = _object(params.get("_meta")).get(SUBSCRIPTION_ID)
        if id in self._waiting:
            return self._waiting[id]
        under_way = [one for one in self._waiting.values() if one.method not in LASTING]
        known = under_way or [one for one in self.calls if one.method not in (*OPENING, *LASTING)]
        return known[-1] if known else None

    def _answer(self, sender: str, message: dict[str, Any]) -> None:
        id = message.get("id")
        if sender == "client":
            question = self._asked.pop(id, None)
            if question is not None:
                question.answer = message.get("result", UNSET)
            return
        call = self._waiting.pop(id, None)
        if call is None:
            return
        if "error" in message:
            call.error = msgspec.convert(message["error"], ErrorBody, strict=False)
        else:
            call.result = message.get("result")
        if call.method == "initialize":
            self._revision = call.revision = _object(call.result).get("protocolVersion")


def listen(entries: Iterable[TapeEntry]) -> ConversationReader:
    listener = ConversationReader()
    for entry in entries:
        listener.hear(entry)
    return listener


def token_of(params: dict[str, Any]) -> Any:
    return _object(params.get("_meta")).get("progressToken", UNSET)


def _messages(said: Any) -> Iterator[dict[str, Any]]:
    for one in said if isinstance(said, list) else [said]:
        if isinstance(one, dict):
            yield one


def _object(said: Any) -> dict[str, Any]:
    return said if isinstance(said, dict) else {}
