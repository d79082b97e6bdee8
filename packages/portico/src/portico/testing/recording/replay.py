"""A recording as a server: what was asked then is answered as it was then, with all that was said before the answer."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from portico.protocol import jsonrpc, notifications
from portico.protocol.client_features import InputRequest, InputRequiredResult
from portico.protocol.errors import InvalidParams, UsageError, from_wire
from portico.protocol.lifecycle import DiscoverResult
from portico.protocol.meta import SERVER_INFO, SUBSCRIPTION_ID, Implementation, ServerCapabilities
from portico.protocol.methods import ASKABLE, METHODS
from portico.protocol.notifications import PROGRESS
from portico.protocol.resources import ReadResourceResult
from portico.protocol.subscriptions import AcknowledgedParams, Filter, ListenParams
from portico.protocol.tools import CallToolResult
from portico.protocol.versions import MODERN, REVISIONS
from portico.rpc.call import Call
from portico.server.server import Server
from portico.testing.recording.file import TapeEntry, read, screened
from portico.testing.recording.parser import AskedQuestion, RecordedCall, SaidNotice, key_of, listen

LONGEST_SHOWN = 200
# The state of a call that waits for answers: which one it is, and how many it has got.
_STATE = "replay"
_LISTED = {
    notifications.TOOLS_CHANGED: "tools_list_changed",
    notifications.PROMPTS_CHANGED: "prompts_list_changed",
    notifications.RESOURCES_CHANGED: "resources_list_changed",
}
# What a server makes, where what a client makes of it is another type.
_ANSWERS = {"tools/call": CallToolResult, "resources/read": ReadResourceResult}
_CACHED = {"ttlMs": 0, "cacheScope": "private"}


class Replay:
    """The Handler of a recording. Equal requests are answered in the order of the recording, the last answer again and
    again; what was not recorded is refused, and kept in `unknown`."""

    def __init__(self, entries: list[TapeEntry]) -> None:
        heard = listen(entries)
        self.calls = [call for call in heard.calls if call.answered]
        self.unknown: list[str] = []
        self._by_key: dict[tuple[str, bytes], list[RecordedCall]] = defaultdict(list)
        for call in self.calls:
            self._by_key[call.key].append(call)
        self._listening: list[tuple[Call, Filter]] = []
        self.about = self._greeting()
        self.capabilities = self.about.capabilities
        meta = self.about.meta if isinstance(self.about.meta, dict) else {}
        said = meta.get(SERVER_INFO, {"name": "recording", "version": "0"})
        self.info = msgspec.convert(said, Implementation)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Replay:
        try:
            return cls(read(path))
        except msgspec.ValidationError as failure:
            raise UsageError(f"{os.fspath(path)} cannot be played: {failure}") from None

    def server(self) -> Server:
        """A Server that answers with this, for every transport."""
        made = Server(self.info.name, version=self.info.version)
        made.front = self
        return made

    @property
    def unasked(self) -> list[str]:
        """What was recorded and has not been asked."""
        return [_shown(*call.key) for call in self.calls if not call.used and call.method not in _OWN]

    def _greeting(self) -> DiscoverResult:
        for call in self.calls:
            if call.method == "server/discover" and call.result is not UNSET:
                return msgspec.convert(call.result, DiscoverResult)
        for call in self.calls:
            if call.method == "initialize" and isinstance(call.result, dict):
                return DiscoverResult(
                    supported_versions=list(REVISIONS),
                    capabilities=msgspec.convert(call.result.get("capabilities", {}), ServerCapabilities),
                    instructions=call.result.get("instructions"),
                    meta={SERVER_INFO: call.result.get("serverInfo", {"name": "recording", "version": "0"})},
                    ttl_ms=0,
                    cache_scope="private",
                )
        raise UsageError("the recording has no server in it that has said who it is")

    # Answering

    async def __call__(self, call: Call) -> Any:
        if call.id is None:
            return None
        if call.method == "server/discover":
            return self.about
        if call.method == "subscriptions/listen":
            return await self._listen(call)
        params = msgspec.json.decode(call.params) if call.params else {}
        recorded, at, answers = self._find(call.method, params)
        return self._play(call, recorded, at, answers)

    def _find(self, method: str, params: dict[str, Any]) -> tuple[RecordedCall, int, list[Any]]:
        """The call that was recorded, and the answers that the client has given to its questions so far."""
        number = _number(params.get("requestState"), f"{_STATE}-")
        if number is not None and number < len(self.calls):
            given = params.get("inputResponses")
            # Which of its questions this answers stands in the name of the answer.
            name, answer = next(iter(given.items())) if isinstance(given, dict) and given else ("q0", None)
            return self.calls[number], (_number(name, "q") or 0) + 1, [answer]
        open_part = {key: value for key, value in params.items() if key not in ("_meta", "requestState")}
        looked = screened(open_part)
        if "requestState" in params:
            looked["requestState"] = params["requestState"]
        known = self._by_key.get(key_of(method, looked))
        if not known:
            raise self._not_recorded(_shown(*key_of(method, looked)), method)
        found = min(known, key=lambda one: one.used) if not all(one.used for one in known) else known[-1]
        found.used += 1
        return found, 0, []

    def _not_recorded(self, shown: str, method: str) -> InvalidParams:
        self.unknown.append(shown)
        others = [_shown(*one.key) for one in self.calls if one.method == method]
        hint = f"; of {method} there is {'; '.join(others[:5])}" if others else f"; there is no {method} at all"
        return InvalidParams(f"Not recorded: {shown}{hint}{'; …' if len(others) > 5 else ''}")

    def _play(self, call: Call, recorded: RecordedCall, at: int, answers: list[Any]) -> Any:
        """Go on behind the question number `at`, up to the next one or to the end."""
        asked = 0
        for step in recorded.steps:
            if isinstance(step, SaidNotice):
                if asked == at:
                    self._emit(call, step)
                continue
            asked += 1
            if asked == at:
                self._compare(recorded, step, answers)
            elif asked > at and recorded.method in ASKABLE:
                question = InputRequest(step.method, step.params)
                state = f"{_STATE}-{self.calls.index(recorded)}"
                return InputRequiredResult(input_requests={f"q{asked - 1}": question}, request_state=state)
        if recorded.error is not UNSET:
            raise from_wire(recorded.error.code, recorded.error.message, recorded.error.data)
        return self._worded(call, recorded)

    def _compare(self, recorded: RecordedCall, step: AskedQuestion, answers: list[Any]) -> None:
        """An answer that was not given then has no known consequence."""
        given = _plain(screened(answers[0])) if answers else None
        then = _plain(step.answer) if step.answer is not UNSET else None
        if given != then:
            shown = f"{_shown(*recorded.key)}, where {step.method} is answered with {_short(given)}"
            self.unknown.append(shown)
            raise InvalidParams(f"Not recorded: {shown}; the answer was {_short(then)}")

    def _worded(self, call: Call, recorded: RecordedCall) -> Any:
        """The result: as it was, for a client of the same revision, and otherwise as that of the client has it."""
        result = recorded.result
        if call.revision == recorded.revision or not isinstance(result, dict):
            return Raw(jsonrpc.encode(result))
        row = METHODS.get(recorded.method)
        if call.revision is not None and call.revision < MODERN:
            if result.get("resultType") == "input_required":
                return msgspec.convert(result, InputRequiredResult)
            kind = _ANSWERS.get(recorded.method) or (row.result if row is not None else Any)
            return msgspec.json.decode(jsonrpc.encode(result), type=kind)
        cached = _CACHED if recorded.method.endswith("/list") or recorded.method == "resources/read" else {}
        return Raw(jsonrpc.encode({"resultType": "complete", **cached, **result}))

    # What is said besides

    def _emit(self, call: Call, step: SaidNotice) -> None:
        params = step.params
        if step.method == PROGRESS:
            if call.progress_token is not None:
                call.reply.emit(PROGRESS, {**params, "progressToken": call.progress_token})
        elif step.method in _LISTED or step.method == notifications.RESOURCE_UPDATED:
            self._tell(step.method, params)
        else:
            call.reply.emit(step.method, params)

    def _tell(self, method: str, params: Any) -> None:
        """A change is for those who listen for it."""
        said = {key: value for key, value in (params or {}).items() if key != "_meta"}
        for listening, wanted in self._listening:
            if getattr(wanted, _LISTED.get(method, ""), False) or said.get("uri") in (
                wanted.resource_subscriptions or ()
            ):
                listening.reply.emit(method, {**said, "_meta": {SUBSCRIPTION_ID: listening.id}})

    async def _listen(self, call: Call) -> Any:
        wanted = msgspec.json.decode(call.params, type=ListenParams).notifications
        acknowledged = AcknowledgedParams(notifications=wanted, meta={SUBSCRIPTION_ID: call.id})
        call.reply.emit(notifications.ACKNOWLEDGED, acknowledged)
        entry = (call, wanted)
        self._listening.append(entry)
        try:
            await asyncio.Event().wait()
        finally:
            self._listening.remove(entry)


# What is answered without being looked up.
_OWN = frozenset(
    {"initialize", "server/discover", "ping", "subscriptions/listen", "logging/setLevel", "resources/subscribe"}
    | {"resources/unsubscribe"}
)


def _number(said: Any, prefix: str) -> int | None:
    rest = said.removeprefix(prefix) if isinstance(said, str) and said.startswith(prefix) else ""
    return int(rest) if rest.isascii() and rest.isdecimal() and len(rest) < 10 else None


def _plain(answer: Any) -> Any:
    """An answer without what revisions put around it."""
    if not isinstance(answer, dict):
        return answer
    return {name: said for name, said in answer.items() if name not in ("_meta", "resultType")}


def _shown(method: str, asked: bytes) -> str:
    return f"{method} {asked.decode()[:LONGEST_SHOWN]}"


def _short(said: Any) -> str:
    return msgspec.json.encode(said).decode()[:LONGEST_SHOWN]
