"""Questions on the old wire: a result that asks becomes requests to the client, and the call is entered again."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from msgspec import UNSET, Raw
from msgspec.structs import replace

from portico.rpc.call import Call, Handler
from portico.wire.errors import InternalError, MissingCapability
from portico.wire.inputs import InputRequest, InputRequiredResult
from portico.wire.jsonrpc import NOTHING

# A server that never stops asking is broken; clients give up at about the same number.
MOST_ROUNDS = 10

_members = msgspec.json.Decoder(dict[str, Raw])


async def push(call: Call, asked: InputRequiredResult, handler: Handler) -> Any:
    """Ask the client what the handler wants to know, and go back to it with the answers, until it is content."""
    result: Any = asked
    for _ in range(MOST_ROUNDS):
        if not isinstance(result, InputRequiredResult):
            return result
        answers = await _ask_all(call, result.input_requests or {})
        result = await handler(replace(call, params=_again(call.params, answers, result.request_state)))
    raise InternalError(f"{call.method} still asks after {MOST_ROUNDS} rounds")


async def _ask_all(call: Call, questions: dict[str, InputRequest]) -> dict[str, Raw]:
    if not call.reply.asks:
        raise MissingCapability({_capability(one.method): {} for one in questions.values()})
    replies = await asyncio.gather(*(call.reply.ask(one.method, one.params) for one in questions.values()))
    return dict(zip(questions, replies, strict=True))


def _capability(method: str) -> str:
    return method.partition("/")[0]


def _again(params: Raw, answers: dict[str, Raw], state: Any) -> Raw:
    members: dict[str, Any] = {} if params is NOTHING else dict(_members.decode(params))
    members["inputResponses"] = answers
    members.pop("requestState", None)
    if state is not UNSET:
        members["requestState"] = state
    return Raw(msgspec.json.encode(members))
