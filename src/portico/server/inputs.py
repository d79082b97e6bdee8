"""Questions in the middle of a body, on every revision.

On the handshake revisions a question is a request to the client. 2026-07-28 has none: there the call ends with an
`input_required` result, and when the client sends the call again with its answers the body runs again from the
start, the answers so far being replayed to it. `ctx.step` keeps a side effect from being repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from portico.rpc.call import Call
from portico.rpc.rounds import Seal, binding
from portico.wire.errors import InvalidParams, MissingCapability, ProtocolError, Refused
from portico.wire.inputs import ElicitUrlParams, InputRequest, InputRequiredResult
from portico.wire.jsonrpc import NOTHING, encode
from portico.wire.methods import METHODS, plainly
from portico.wire.revisions import MODERN, V2025_06_18, V2025_11_25

_responses = msgspec.json.Decoder(dict[str, Raw] | None)


class Rounds:
    """One call's questions and answers."""

    def __init__(
        self,
        call: Call,
        seal: Seal,
        target: str,
        arguments: bytes | Raw,
        responses: Raw,
        sealed: Any,
        task: asyncio.Task[Any],
    ) -> None:
        self._task = task
        self._call = call
        self._seal = seal
        self._target = target
        self._arguments = arguments
        self._answers: dict[str, Raw] = {}
        self._steps: dict[str, Raw] = {}
        self._asked: dict[str, InputRequest] = {}
        self._counts: dict[str, int] = {}
        if sealed is not UNSET:
            state = seal.open(sealed, self._binding())
            self._answers, self._steps = state.answers, state.steps
        if responses is not NOTHING:
            self._answers |= _read(responses)

    def _binding(self) -> bytes:
        arguments = msgspec.json.decode(self._arguments) if self._arguments is not NOTHING else {}
        return binding(self._call.method, self._target, arguments, self._call.principal)

    def _key(self, kind: str, key: str | None) -> str:
        """A question's key: the author's, or its place in the body, which a replay reaches in the same order."""
        if key is not None:
            return key
        self._counts[kind] = self._counts.get(kind, 0) + 1
        return f"{kind}-{self._counts[kind]}"

    async def ask(self, method: str, params: Any, key: str | None = None) -> Any:
        """The client's answer, typed."""
        call = self._call
        _require(call, method, params)
        result = METHODS[method].result
        if call.ask is not None:
            try:
                return _typed(await call.ask(method, params), result, method)
            except ProtocolError as refusal:
                # It is the client's answer to us, not ours to the client's request.
                raise Refused(f"The client refused {method}: {refusal.message}") from None
        key = self._key(method.partition("/")[0], key)
        answer = self._answers.get(key)
        if answer is not None:
            return _typed(answer, result, key)
        self._asked[key] = InputRequest(method, params)
        await self._stop()

    async def _stop(self) -> None:
        """End the body here. It is cancelled one turn later, so that questions asked side by side travel together."""
        loop = asyncio.get_running_loop()
        loop.call_soon(self._task.cancel)
        await loop.create_future()

    def required(self) -> InputRequiredResult | None:
        """The result that asks, when the body was stopped because of a question (and not by the client)."""
        if not self._asked or self._call.cancelled:
            return None
        self._task.uncancel()
        return InputRequiredResult(
            input_requests=self._asked,
            request_state=self._seal.close(self._binding(), self._answers, self._steps),
        )

    async def step(self, name: str, fn: Callable[[], Any]) -> Any:
        """The value of a side effect that a replay must not repeat. It is kept as JSON."""
        if name in self._steps:
            return msgspec.json.decode(self._steps[name])
        value = fn()
        if isinstance(value, Awaitable):
            value = await value
        self._steps[name] = Raw(encode(value))
        # As a replay would see it, so that the first run and the later ones do not differ.
        return msgspec.json.decode(self._steps[name])


def _read(responses: Raw) -> dict[str, Raw]:
    try:
        return _responses.decode(responses) or {}
    except msgspec.DecodeError:
        raise InvalidParams("Invalid inputResponses: expected an object with one answer for each key") from None


def _typed(answer: Raw, kind: Any, key: str) -> Any:
    try:
        return msgspec.json.decode(answer, type=kind)
    except msgspec.DecodeError as failure:
        raise InvalidParams(f"Invalid answer to {key}: {plainly(failure)}") from None


def _chooses_several(params: Any) -> bool:
    """Fields with more than one choice came with 2025-11-25."""
    fields = params.requested_schema.get("properties", {}).values()
    return any(field.get("type") == "array" for field in fields)


def _require(call: Call, method: str, params: Any) -> None:
    """Only what the client has declared, and what its revision has, may be asked of it."""
    capabilities, revision = call.capabilities, call.revision or MODERN
    if method == "elicitation/create":
        mode = "url" if isinstance(params, ElicitUrlParams) else "form"
        since = V2025_11_25 if mode == "url" else V2025_06_18
        if revision < since or not capabilities.can_elicit(mode):
            raise MissingCapability({"elicitation": {mode: {}} if mode == "url" else {}})
        if revision < V2025_11_25 and _chooses_several(params):
            raise MissingCapability({"elicitation": {}})
    elif method == "sampling/createMessage":
        if capabilities.sampling is None:
            raise MissingCapability({"sampling": {}})
        if params.tools is not None and (revision < V2025_11_25 or "tools" not in capabilities.sampling):
            raise MissingCapability({"sampling": {"tools": {}}})
    elif capabilities.roots is None:
        raise MissingCapability({"roots": {}})
