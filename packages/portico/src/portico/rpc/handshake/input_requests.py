"""Input requests for handshake versions: an `InputRequiredResult` becomes server-to-client requests, then the call is
repeated.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from msgspec import UNSET, Raw
from msgspec.structs import replace

from portico.protocol.client_features import ElicitResult, InputRequest, InputRequiredResult
from portico.protocol.errors import ClientRequestFailed, InternalError, MissingClientCapability
from portico.protocol.jsonrpc import EMPTY_RAW, object_decoder
from portico.protocol.methods import as_input_required
from portico.rpc.call import Call, Handler
from portico.rpc.client_requests import (
    decode_client_request,
    send_client_request,
    to_capability_error,
    validate_elicitation_result,
    validate_input_requests,
)

# A server that never stops requesting input is broken; clients give up after a similar number of rounds.
MAX_INPUT_ROUNDS = 10


async def resolve_input_requests(call: Call, input_required: InputRequiredResult, handler: Handler) -> Any:
    """Send the handler's input requests to the client and call the handler again with the responses, until it returns a
    final result.
    """
    params = call.params
    for _ in range(MAX_INPUT_ROUNDS):
        answers = await _send_input_requests(call, input_required)
        result = await handler(replace(call, params=_build_retry_params(params, answers, input_required.request_state)))
        again = as_input_required(call.method, result)
        if again is None:
            return result
        input_required = again
    raise InternalError(f"{call.method} still requires input after {MAX_INPUT_ROUNDS} rounds")


async def _send_input_requests(call: Call, required: InputRequiredResult) -> dict[str, Raw]:
    questions = required.input_requests or {}
    try:
        # Validate all requests before the first is sent.
        validate_input_requests(call, required)
        if questions and not call.reply.can_request:
            raise MissingClientCapability({question.method.partition("/")[0]: {} for question in questions.values()})
    except MissingClientCapability as missing:
        raise to_capability_error(missing, call) from None
    asking = [asyncio.ensure_future(_send_input_request(call, question)) for question in questions.values()]
    try:
        return dict(zip(questions, await asyncio.gather(*asking), strict=True))
    finally:
        for question in asking:
            question.cancel()


async def _send_input_request(call: Call, question: InputRequest) -> Raw:
    answer = await send_client_request(call, question.method, question.params)
    if question.method == "elicitation/create":
        try:
            validate_elicitation_result(
                decode_client_request(question.method, question.params), msgspec.json.decode(answer, type=ElicitResult)
            )
        except msgspec.DecodeError:
            raise ClientRequestFailed("The client's response to elicitation/create could not be decoded") from None
    return answer


def _build_retry_params(params: Raw, answers: dict[str, Raw], state: Any) -> Raw:
    members: dict[str, Any] = {} if params is EMPTY_RAW else dict(object_decoder.decode(params))
    members["inputResponses"] = answers
    members.pop("requestState", None)
    if state is not UNSET:
        members["requestState"] = state
    return Raw(msgspec.json.encode(members))
