"""The agreement of a person, asked for before a call is made, on every revision.

On the handshake revisions it is a request to the client. On 2026-07-28 the call is answered with the question, and sent
again with the answer. What the body or an upstream asks later has rounds of its own: its state travels within ours, so
that the person is asked once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from portico.protocol.client_features import ElicitFormParams, ElicitResult, InputRequest, InputRequiredResult
from portico.protocol.errors import InvalidParams, MissingCapability, ToolError
from portico.protocol.jsonrpc import NOTHING, encode
from portico.protocol.methods import ASKABLE, METHODS
from portico.rpc.call import Call
from portico.rpc.client_requests import put, require
from portico.server.context.input_rounds import rounds_of, typed
from portico.server.context.replay_guard import SpentStates
from portico.server.context.request_state import Seal, State, binding, kept_as

_ELICIT = "elicitation/create"
_KEY = "agreement-"
_AGREED, _INNER = "agreed", "inner"
MOST_SEEN = 10_000
# How many answers to one call are free of the limits on calls.
MAX_FREE_ANSWERS = 16
_ANSWERS = tuple(METHODS[method].result for method in (_ELICIT, "sampling/createMessage", "roots/list"))
_members = msgspec.json.Decoder(dict[str, Raw])


class QuestionFirst(Exception):
    """The call is answered with a question."""

    def __init__(self, result: InputRequiredResult) -> None:
        super().__init__("a person has to be asked")
        self.result = result


class Round(Struct, frozen=True):
    """A call that comes with a state of ours: the call without it, and what was answered."""

    call: Call
    state: State
    answers: dict[str, Raw]

    @property
    def agreed(self) -> bool:
        return _AGREED in self.state.steps


class Consents:
    """Asks, and remembers in the client's hands that it did."""

    def __init__(self, seal: Seal, spent: SpentStates) -> None:
        self._seal = seal
        self._spent = spent
        # The states that calls have come with, the last of them.
        self._seen: OrderedDict[str, None] = OrderedDict()

    def goes_on(self, call: Call) -> bool:
        """Return whether a call continues one that was counted: it brings a state of ours, of whatever kind, for the
        first time, and with it a valid answer to a question that the state was issued with.

        Without an answer the body would run again, for nothing but the next state. A body that asks again and again is
        counted again after MAX_FREE_ANSWERS answers, since each of them runs it from its start.
        """
        params = call.typed()
        for bound in _bindings(call, params):
            try:
                state = self._seal.open(params.request_state, bound)
            except InvalidParams:
                continue
            if state.id in self._seen or not _is_answered(state, params.input_responses):
                return False
            self._seen[state.id] = None
            if len(self._seen) > MOST_SEEN:
                self._seen.popitem(last=False)
            return True
        return False

    def opened(self, call: Call) -> Round | None:
        """A call that was asked about before, if it was."""
        params = call.typed() if call.method in ASKABLE else None
        if params is None or params.request_state is UNSET:
            return None
        try:
            state = self._seal.open(params.request_state, _binding(call, params))
        except InvalidParams:
            return None  # it is that of the body, or of an upstream, which look at it themselves
        inside = _members.decode(call.params)
        answers = {} if params.input_responses is NOTHING else _answers(params.input_responses)
        inner: dict[str, Any] = {
            name: one for name, one in inside.items() if name not in ("requestState", "inputResponses")
        }
        theirs = {key: one for key, one in answers.items() if not key.startswith(_KEY)}
        if theirs:
            inner["inputResponses"] = theirs
        carried = bytes(state.steps.get(_INNER, b"null"))
        if carried != b"null":
            inner["requestState"] = Raw(carried)
        return Round(replace(call, params=Raw(encode(inner)), read=None), state, answers)

    async def agree(self, call: Call, questions: list[str], before: Round | None) -> None:
        """Return when the person has agreed to everything. Raises QuestionFirst where the client has to be answered
        first, and ToolError where the person does not agree or cannot be asked."""
        if before is not None:
            await self._spent.spend(before.state)
            if before.agreed:
                return
            if all(f"{_KEY}{at}" in before.answers for at in range(1, len(questions) + 1)):
                for at in range(1, len(questions) + 1):
                    _accept(typed(before.answers[f"{_KEY}{at}"], ElicitResult, f"{_KEY}{at}"))
                return
        asked = [_form(call, text) for text in questions]
        rounds = rounds_of(call)
        if rounds is None and not call.reply.asks:
            raise QuestionFirst(self._question(call, asked))
        for form in asked:
            if rounds is not None:
                _accept(await rounds.ask(_ELICIT, form))
            else:
                _accept(typed(await put(call, _ELICIT, form), ElicitResult, _ELICIT))

    def _question(self, call: Call, asked: list[ElicitFormParams]) -> InputRequiredResult:
        requests = {f"{_KEY}{at}": InputRequest(_ELICIT, form) for at, form in enumerate(asked, 1)}
        state = self._seal.close(_binding(call, call.typed()), {}, {}, list(requests))
        return InputRequiredResult(input_requests=requests, request_state=state)

    def wrapped(self, call: Call, asked: InputRequiredResult) -> InputRequiredResult:
        """A later question of a call that was agreed to, with a state that says so. `call` is as the client sent it."""
        inner = None if asked.request_state is UNSET else asked.request_state
        steps = {_AGREED: Raw(b"true"), _INNER: Raw(encode(inner))}
        sealed = self._seal.close(_binding(call, call.typed()), {}, steps, list(asked.input_requests or {}))
        return replace(asked, request_state=kept_as(inner, sealed))


def _is_answered(state: State, responses: Raw) -> bool:
    """Return whether one of the questions of a state has a valid answer that was not given before."""
    if responses is NOTHING or len(state.answers) >= MAX_FREE_ANSWERS:
        return False
    given = _answers(responses)
    return any(key in given and key not in state.answers and _is_valid(given[key]) for key in state.asked)


def _is_valid(answer: Raw) -> bool:
    """Return whether a client could have answered a question with this. The state does not say which kind it was."""
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
        require(call, _ELICIT, form)
    except MissingCapability:
        raise ToolError(
            "A person has to agree to this, and this client has no way to ask one.", kind="PermissionError"
        ) from None
    return form


def _accept(answer: Any) -> None:
    if answer.action != "accept":
        raise ToolError("The person did not agree to this.", kind="PermissionError")


def _answers(responses: Raw) -> dict[str, Raw]:
    try:
        return _members.decode(responses)
    except msgspec.DecodeError:
        return {}  # the body says what is wrong


def _binding(call: Call, params: Any) -> bytes:
    """Of the method, what it is about, its arguments and who asks."""
    return binding(f"agreement {call.method}", _target(params), _given(params), call.principal)


def _bindings(call: Call, params: Any) -> Iterator[bytes]:
    """Of all states that there may be: ours, that of a body, and that in which a gateway keeps an upstream's."""
    yield _binding(call, params)
    target, given = _target(params), _given(params)
    yield binding(call.method, target, given or {}, call.principal)
    yield binding(call.method, encode(target).decode(), given, call.principal)


def _target(params: Any) -> str:
    return str(getattr(params, "name", None) or getattr(params, "uri", ""))


def _given(params: Any) -> Any:
    arguments = getattr(params, "arguments", None)
    if isinstance(arguments, Raw):
        return msgspec.json.decode(arguments) if arguments else None
    return arguments
