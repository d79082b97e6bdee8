"""User consent before a call, on every protocol version.

In the handshake versions it is a server-to-client request. In 2026-07-28 the call returns an input request and is sent
again with the response. Input requests of the function or an upstream have separate rounds: their state is nested in
ours, so that the user is asked only once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from portico.caching import LruCache
from portico.protocol.client_features import ElicitFormParams, ElicitResult, InputRequest, InputRequiredResult
from portico.protocol.errors import InvalidParams, MissingClientCapability, ToolError
from portico.protocol.jsonrpc import EMPTY_RAW, encode, object_decoder
from portico.protocol.methods import INPUT_REQUIRED_METHODS, METHODS
from portico.rpc.call import Call
from portico.rpc.client_requests import send_client_request, validate_client_request
from portico.server.context.input_rounds import decode_response, get_rounds
from portico.server.context.replay_guard import UsedStates
from portico.server.context.request_state import RequestState, RequestStateSealer, pin_like, request_binding

_ELICIT = "elicitation/create"
_KEY = "agreement-"
_AGREED, _INNER = "agreed", "inner"
# A state that was evicted from this list is counted as a new call: the mistake costs the caller one
# unit of its limit and nothing else.
MAX_SEEN_STATES = 10_000
# Number of responses to one call that are exempt from the limits on calls.
MAX_FREE_ANSWERS = 16
_ANSWERS = tuple(METHODS[method].result for method in (_ELICIT, "sampling/createMessage", "roots/list"))


class ConsentRequired(Exception):
    """Raised to answer a call with an input request."""

    def __init__(self, result: InputRequiredResult) -> None:
        super().__init__("user consent is required")
        self.result = result


class ConsentRound(Struct, frozen=True):
    """A call that carries a state of ours: the call without the state, and the responses."""

    call: Call
    state: RequestState
    responses: dict[str, Raw]

    @property
    def has_consent(self) -> bool:
        return _AGREED in self.state.steps


class ConsentManager:
    """Requests consent, and records it in the state that the client carries."""

    def __init__(self, sealer: RequestStateSealer, used_states: UsedStates) -> None:
        self._seal = sealer
        self._used_states = used_states
        # Ids of the most recent states that calls carried.
        self._approved_states: LruCache[str, None] = LruCache(MAX_SEEN_STATES)

    def is_continuation(self, call: Call) -> bool:
        """Return whether a call continues one that was already counted by the rate limiter.

        It must carry one of our states, of any kind, for the first time, and with it a valid response to an input
        request of that state. Without a response the function would run again only to produce the next state. A
        function that requests input again and again is counted after MAX_FREE_ANSWERS responses, because each of them
        runs it from the start.
        """
        params = call.decode_params()
        # Which component issued the state is unknown here, and a state opens only with its own
        # binding, so each possible one is tried.
        for bound in _bindings(call, params):
            try:
                state = self._seal.unseal(params.request_state, bound)
            except InvalidParams:
                continue
            # A replayed state must not be free of charge: with one answered question a client could
            # run the function any number of times.
            if state.id in self._approved_states or not _is_answered(state, params.input_responses):
                return False
            self._approved_states[state.id] = None
            return True
        return False

    def open_round(self, call: Call) -> ConsentRound | None:
        """Return the round that a call continues, or None."""
        params = call.decode_params() if call.method in INPUT_REQUIRED_METHODS else None
        if params is None or params.request_state is UNSET:
            return None
        try:
            state = self._seal.unseal(params.request_state, _binding(call, params))
        except InvalidParams:
            return None  # a state of the function or of an upstream, which they verify themselves
        inside = object_decoder.decode(call.params)
        answers = {} if params.input_responses is EMPTY_RAW else _decode_responses(params.input_responses)
        inner: dict[str, Any] = {
            name: value for name, value in inside.items() if name not in ("requestState", "inputResponses")
        }
        # The function must not receive our keys: it did not send these requests.
        theirs = {key: value for key, value in answers.items() if not key.startswith(_KEY)}
        if theirs:
            inner["inputResponses"] = theirs
        carried = bytes(state.steps.get(_INNER, b"null"))
        if carried != b"null":
            inner["requestState"] = Raw(carried)
        return ConsentRound(replace(call, params=Raw(encode(inner)), read=None), state, answers)

    async def require_consent(self, call: Call, prompts: list[str], round: ConsentRound | None) -> None:
        """Return when the user has consented to everything.

        Raises ConsentRequired if the call must first be answered with an input request, and ToolError if the user
        declines or cannot be asked.
        """
        if round is not None:
            # Before anything else: one response must not authorize two calls.
            await self._used_states.mark_used(round.state)
            if round.has_consent:
                return
            # The rules may require more consent now than when the state was issued. Then the user
            # is asked again for everything.
            if all(f"{_KEY}{at}" in round.responses for at in range(1, len(prompts) + 1)):
                for at in range(1, len(prompts) + 1):
                    _accept(decode_response(round.responses[f"{_KEY}{at}"], ElicitResult, f"{_KEY}{at}"))
                return
        forms = [_form(call, text) for text in prompts]
        rounds = get_rounds(call)
        if rounds is None and not call.reply.can_request:
            raise ConsentRequired(self._question(call, forms))
        # One after another: the user should not see the second request after declining the first.
        for form in forms:
            if rounds is not None:
                _accept(await rounds.request_input(_ELICIT, form))
            else:
                _accept(decode_response(await send_client_request(call, _ELICIT, form), ElicitResult, _ELICIT))

    def _question(self, call: Call, forms: list[ElicitFormParams]) -> InputRequiredResult:
        requests = {f"{_KEY}{at}": InputRequest(_ELICIT, form) for at, form in enumerate(forms, 1)}
        state = self._seal.seal(_binding(call, call.decode_params()), {}, {}, list(requests))
        return InputRequiredResult(input_requests=requests, request_state=state)

    def wrap_input_required(self, call: Call, result: InputRequiredResult) -> InputRequiredResult:
        """Return a later input request of a call with consent, with a state that records it. `call` is as the client
        sent it.
        """
        inner = None if result.request_state is UNSET else result.request_state
        # Consent is recorded inside the sealed state and not in memory, so any process of the
        # server can continue the call.
        steps = {_AGREED: Raw(b"true"), _INNER: Raw(encode(inner))}
        sealed = self._seal.seal(_binding(call, call.decode_params()), {}, steps, list(result.input_requests or {}))
        return replace(result, request_state=pin_like(inner, sealed))


def _is_answered(state: RequestState, responses: Raw) -> bool:
    """Return whether one of the input requests of a state has a valid, new response."""
    if responses is EMPTY_RAW or len(state.answers) >= MAX_FREE_ANSWERS:
        return False
    answers = _decode_responses(responses)
    return any(key in answers and key not in state.answers and _is_valid(answers[key]) for key in state.requested_keys)


def _is_valid(answer: Raw) -> bool:
    """Return whether a response is valid for any kind of input request. The state does not record which kind it was."""
    for kind in _ANSWERS:
        try:
            msgspec.json.decode(answer, type=kind)
        except msgspec.DecodeError:
            continue
        return True
    return False


def _form(call: Call, text: str) -> ElicitFormParams:
    form = ElicitFormParams(message=text, requested_schema={"type": "object", "properties": {}})
    try:
        validate_client_request(call, _ELICIT, form)
    except MissingClientCapability:
        raise ToolError(
            "This call requires the user's consent, but this client does not support elicitation.",
            error_type="PermissionError",
        ) from None
    return form


def _accept(answer: Any) -> None:
    if answer.action != "accept":
        raise ToolError("The user did not consent to this call.", error_type="PermissionError")


def _decode_responses(responses: Raw) -> dict[str, Raw]:
    try:
        return object_decoder.decode(responses)
    except msgspec.DecodeError:
        return {}  # reported when the function decodes them


def _binding(call: Call, params: Any) -> bytes:
    """Return the binding of a state to method, target, arguments and principal."""
    # The prefix separates our states from those of the function: a state of one kind does not open
    # as the other.
    return request_binding(f"agreement {call.method}", _target(params), _decode_arguments(params), call.principal)


def _bindings(call: Call, params: Any) -> Iterator[bytes]:
    """Yield the bindings of all possible states: ours, that of a function, and that in which a gateway stores an
    upstream's.
    """
    yield _binding(call, params)
    target, arguments = _target(params), _decode_arguments(params)
    yield request_binding(call.method, target, arguments or {}, call.principal)
    yield request_binding(call.method, encode(target).decode(), arguments, call.principal)


def _target(params: Any) -> str:
    return str(getattr(params, "name", None) or getattr(params, "uri", ""))


def _decode_arguments(params: Any) -> Any:
    arguments = getattr(params, "arguments", None)
    if isinstance(arguments, Raw):
        return msgspec.json.decode(arguments) if arguments else None
    return arguments
