"""Questions on the old wire: a result that asks becomes requests to the client, and the call is entered again."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from msgspec import UNSET, Raw
from msgspec.structs import replace

from portico.protocol.client_features import ElicitResult, InputRequest, InputRequiredResult
from portico.protocol.errors import InternalError, MissingCapability, Refused
from portico.protocol.jsonrpc import NOTHING
from portico.protocol.methods import asked_by
from portico.rpc.call import Call, Handler
from portico.rpc.client_requests import check_answer, incapable, put, read, require_all

# A server that never stops asking is broken; clients give up at about the same number.
MOST_ROUNDS = 10

_members = msgspec.json.Decoder(dict[str, Raw])


async def push(call: Call, asked: InputRequiredResult, handler: Handler) -> Any:
    """Ask the client what the handler wants to know, and go back to it with the answers, until it is content."""
    params = call.params
    for _ in range(MOST_ROUNDS):
        answers = await _ask_all(call, asked)
        result = await handler(replace(call, params=_again(params, answers, asked.request_state)))
        again = asked_by(call.method, result)
        if again is None:
            return result
        asked = again
    raise InternalError(f"{call.method} still asks after {MOST_ROUNDS} rounds")


async def _ask_all(call: Call, asked: InputRequiredResult) -> dict[str, Raw]:
    questions = asked.input_requests or {}
    try:
        # All are looked at before the first is asked.
        require_all(call, asked)
        if questions and not call.reply.asks:
            raise MissingCapability({one.method.partition("/")[0]: {} for one in questions.values()})
    except MissingCapability as missing:
        raise incapable(missing, call) from None
    asking = [asyncio.ensure_future(_ask(call, one)) for one in questions.values()]
    try:
        return dict(zip(questions, await asyncio.gather(*asking), strict=True))
    finally:
        for one in asking:
            one.cancel()


async def _ask(call: Call, question: InputRequest) -> Raw:
    answer = await put(call, question.method, question.params)
    if question.method == "elicitation/create":
        try:
            check_answer(read(question.method, question.params), msgspec.json.decode(answer, type=ElicitResult))
        except msgspec.DecodeError:
            raise Refused("The client's answer to elicitation/create could not be read") from None
    return answer


def _again(params: Raw, answers: dict[str, Raw], state: Any) -> Raw:
    members: dict[str, Any] = {} if params is NOTHING else dict(_members.decode(params))
    members["inputResponses"] = answers
    members.pop("requestState", None)
    if state is not UNSET:
        members["requestState"] = state
    return Raw(msgspec.json.encode(members))
