"""Server that replays a recording: equal requests get the recorded responses and the messages before them."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from portico.protocol import jsonrpc, notifications
from portico.protocol.client_features import InputRequest, InputRequiredResult
from portico.protocol.errors import InvalidParams, UsageError, error_from_response
from portico.protocol.lifecycle import DiscoverResult
from portico.protocol.meta import SERVER_INFO_META_KEY, SUBSCRIPTION_ID_META_KEY, Implementation, ServerCapabilities
from portico.protocol.methods import INPUT_REQUIRED_METHODS, METHODS
from portico.protocol.notifications import PROGRESS
from portico.protocol.resources import ReadResourceResult
from portico.protocol.subscriptions import (
    SubscriptionFilter,
    SubscriptionsAcknowledgedParams,
    SubscriptionsListenParams,
)
from portico.protocol.tools import CallToolResult
from portico.protocol.versions import FIRST_MODERN_VERSION, SUPPORTED_PROTOCOL_VERSIONS
from portico.rpc.call import Call
from portico.server.server import Server
from portico.testing.recording.file import RecordedMessage, load_recording, redact_secrets
from portico.testing.recording.parser import (
    RecordedCall,
    RecordedNotification,
    RecordedServerRequest,
    parse_recording,
    request_key,
)

MAX_SHOWN_CHARS = 200
# Prefix of the request state of a call that waits for input; the index of the call follows.
_STATE = "replay"
_LIST_CHANGED_FIELDS = {
    notifications.TOOLS_LIST_CHANGED: "tools_list_changed",
    notifications.PROMPTS_LIST_CHANGED: "prompts_list_changed",
    notifications.RESOURCES_LIST_CHANGED: "resources_list_changed",
}
# Server-side result types, where the client decodes the same result into another type.
_RESULT_TYPES = {"tools/call": CallToolResult, "resources/read": ReadResourceResult}
# 2026-07-28 requires both members in list results; a replay must be asked every time.
_CACHE_CONTROL = {"ttlMs": 0, "cacheScope": "private"}


class ReplayHandler:
    """Handler that answers from a recording.

    Equal requests are answered in recorded order; the last response is repeated. Requests that were not recorded are
    rejected and listed in `unmatched_requests`.
    """

    def __init__(self, entries: list[RecordedMessage]) -> None:
        recording = parse_recording(entries)
        self.calls = [call for call in recording.calls if call.has_response]
        self.unmatched_requests: list[str] = []
        # Equal requests may have several responses, in recorded order.
        self._by_key: dict[tuple[str, bytes], list[RecordedCall]] = defaultdict(list)
        for call in self.calls:
            self._by_key[call.key].append(call)
        self._listening: list[tuple[Call, SubscriptionFilter]] = []
        self.about = self._discover_result()
        self.capabilities = self.about.capabilities
        meta = self.about.meta if isinstance(self.about.meta, dict) else {}
        server_info = meta.get(SERVER_INFO_META_KEY, {"name": "recording", "version": "0"})
        self.info = msgspec.convert(server_info, Implementation)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ReplayHandler:
        """Load a recording. Raises UsageError if it cannot be replayed."""
        try:
            return cls(load_recording(path))
        except msgspec.ValidationError as failure:
            raise UsageError(f"cannot replay {os.fspath(path)}: {failure}") from None

    def server(self) -> Server:
        """Return a Server that answers from this recording over any transport."""
        server = Server(self.info.name, version=self.info.version)
        server.public_handler = self
        return server

    @property
    def unused_requests(self) -> list[str]:
        """Return the recorded requests that were not sent during the replay."""
        return [
            _describe_request(*call.key)
            for call in self.calls
            if not call.replay_count and call.method not in _UNRECORDED_METHODS
        ]

    def _discover_result(self) -> DiscoverResult:
        for call in self.calls:
            if call.method == "server/discover" and call.result is not UNSET:
                return msgspec.convert(call.result, DiscoverResult)
        for call in self.calls:
            if call.method == "initialize" and isinstance(call.result, dict):
                return DiscoverResult(
                    supported_versions=list(SUPPORTED_PROTOCOL_VERSIONS),
                    capabilities=msgspec.convert(call.result.get("capabilities", {}), ServerCapabilities),
                    instructions=call.result.get("instructions"),
                    meta={SERVER_INFO_META_KEY: call.result.get("serverInfo", {"name": "recording", "version": "0"})},
                    ttl_ms=0,
                    cache_scope="private",
                )
        raise UsageError("the recording contains no response to initialize or server/discover")

    # Requests

    async def __call__(self, call: Call) -> Any:
        if call.id is None:
            return None
        if call.method == "server/discover":
            return self.about
        if call.method == "subscriptions/listen":
            return await self._listen(call)
        params = msgspec.json.decode(call.params) if call.params else {}
        recorded, at, answers = self._find(call.method, params)
        return self._replay_steps(call, recorded, at, answers)

    def _find(self, method: str, params: dict[str, Any]) -> tuple[RecordedCall, int, list[Any]]:
        """Return the recorded call, and where to continue it.

        The position is the one after the last answered server request, followed by the client's response to it.
        """
        number = _number(params.get("requestState"), f"{_STATE}-")
        if number is not None and number < len(self.calls):
            input_responses = params.get("inputResponses")
            # The key of the response carries the number of the server request that it answers.
            name, response = (
                next(iter(input_responses.items()))
                if isinstance(input_responses, dict) and input_responses
                else ("q0", None)
            )
            return self.calls[number], (_number(name, "q") or 0) + 1, [response]
        open_part = {key: value for key, value in params.items() if key not in ("_meta", "requestState")}
        # Redacted like the recording: a request with another secret still matches.
        redacted = redact_secrets(open_part)
        if "requestState" in params:
            redacted["requestState"] = params["requestState"]
        recorded_calls = self._by_key.get(request_key(method, redacted))
        if not recorded_calls:
            raise self._not_recorded(_describe_request(*request_key(method, redacted)), method)
        # Each recorded response is used once, in order; a client that asks more often gets the last one again.
        result = (
            min(recorded_calls, key=lambda call: call.replay_count)
            if not all(item.replay_count for item in recorded_calls)
            else recorded_calls[-1]
        )
        result.replay_count += 1
        return result, 0, []

    def _not_recorded(self, description: str, method: str) -> InvalidParams:
        self.unmatched_requests.append(description)
        others = [_describe_request(*call.key) for call in self.calls if call.method == method]
        hint = (
            f"; recorded {method} requests: {'; '.join(others[:5])}"
            if others
            else f"; no {method} request was recorded"
        )
        return InvalidParams(f"Not recorded: {description}{hint}{'; …' if len(others) > 5 else ''}")

    def _replay_steps(self, call: Call, recorded: RecordedCall, at: int, answers: list[Any]) -> Any:
        """Replay the steps after server request number `at`, up to the next one or to the result."""
        request_count = 0
        for step in recorded.steps:
            if isinstance(step, RecordedNotification):
                if request_count == at:
                    self._emit(call, step)
                continue
            request_count += 1
            if request_count == at:
                self._compare(recorded, step, answers)
            elif request_count > at and recorded.method in INPUT_REQUIRED_METHODS:
                # The answer returns in a new request (2026-07-28); the state names the recorded call to continue.
                question = InputRequest(step.method, step.params)
                state = f"{_STATE}-{self.calls.index(recorded)}"
                return InputRequiredResult(input_requests={f"q{request_count - 1}": question}, request_state=state)
        if recorded.error is not UNSET:
            raise error_from_response(recorded.error.code, recorded.error.message, recorded.error.data)
        return self._convert_result(call, recorded)

    def _compare(self, recorded: RecordedCall, step: RecordedServerRequest, answers: list[Any]) -> None:
        """Raise InvalidParams if the client's response differs from the recorded one."""
        received = _strip_version_members(redact_secrets(answers[0])) if answers else None
        expected = _strip_version_members(step.response) if step.response is not UNSET else None
        if received != expected:
            description = f"{_describe_request(*recorded.key)} with the response {_shorten(received)} to {step.method}"
            self.unmatched_requests.append(description)
            raise InvalidParams(f"Not recorded: {description}; the recorded response is {_shorten(expected)}")

    def _convert_result(self, call: Call, recorded: RecordedCall) -> Any:
        """Return the result, converted if the client has another protocol version than the recording."""
        result = recorded.result
        # The same version gets the recorded bytes, including members that this version does not know.
        if call.protocol_version == recorded.protocol_version or not isinstance(result, dict):
            return Raw(jsonrpc.encode(result))
        row = METHODS.get(recorded.method)
        if call.protocol_version is not None and call.protocol_version < FIRST_MODERN_VERSION:
            if result.get("resultType") == "input_required":
                return msgspec.convert(result, InputRequiredResult)
            kind = _RESULT_TYPES.get(recorded.method) or (row.result if row is not None else Any)
            return msgspec.json.decode(jsonrpc.encode(result), type=kind)
        cached = _CACHE_CONTROL if recorded.method.endswith("/list") or recorded.method == "resources/read" else {}
        return Raw(jsonrpc.encode({"resultType": "complete", **cached, **result}))

    # Notifications

    def _emit(self, call: Call, step: RecordedNotification) -> None:
        params = step.params
        if step.method == PROGRESS:
            # The token of the recorded request means nothing to this client.
            if call.progress_token is not None:
                call.reply.notify(PROGRESS, {**params, "progressToken": call.progress_token})
        elif step.method in _LIST_CHANGED_FIELDS or step.method == notifications.RESOURCE_UPDATED:
            self._notify_subscribers(step.method, params)
        else:
            call.reply.notify(step.method, params)

    def _notify_subscribers(self, method: str, params: Any) -> None:
        """Send a change notification to the subscriptions whose filter matches."""
        content = {key: value for key, value in (params or {}).items() if key != "_meta"}
        # 2026-07-28: a change is sent to subscriptions only, each with its own id.
        for listening, filter_ in self._listening:
            if getattr(filter_, _LIST_CHANGED_FIELDS.get(method, ""), False) or content.get("uri") in (
                filter_.resource_subscriptions or ()
            ):
                listening.reply.notify(method, {**content, "_meta": {SUBSCRIPTION_ID_META_KEY: listening.id}})

    async def _listen(self, call: Call) -> Any:
        requested = msgspec.json.decode(call.params, type=SubscriptionsListenParams).notifications
        acknowledged = SubscriptionsAcknowledgedParams(
            notifications=requested, meta={SUBSCRIPTION_ID_META_KEY: call.id}
        )
        call.reply.notify(notifications.SUBSCRIPTIONS_ACKNOWLEDGED, acknowledged)
        entry = (call, requested)
        self._listening.append(entry)
        try:
            # The subscription ends when the client cancels it or disconnects.
            await asyncio.Event().wait()
        finally:
            self._listening.remove(entry)


# Methods that are answered without a recorded request.
_UNRECORDED_METHODS = frozenset(
    {"initialize", "server/discover", "ping", "subscriptions/listen", "logging/setLevel", "resources/subscribe"}
    | {"resources/unsubscribe"}
)


def _number(text: Any, prefix: str) -> int | None:
    rest = text.removeprefix(prefix) if isinstance(text, str) and text.startswith(prefix) else ""
    return int(rest) if rest.isascii() and rest.isdecimal() and len(rest) < 10 else None


def _strip_version_members(answer: Any) -> Any:
    """Return a response without version-dependent members."""
    if not isinstance(answer, dict):
        return answer
    return {name: value for name, value in answer.items() if name not in ("_meta", "resultType")}


def _describe_request(method: str, params: bytes) -> str:
    return f"{method} {params.decode()[:MAX_SHOWN_CHARS]}"


def _shorten(value: Any) -> str:
    return msgspec.json.encode(value).decode()[:MAX_SHOWN_CHARS]
