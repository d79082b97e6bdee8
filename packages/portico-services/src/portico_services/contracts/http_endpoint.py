"""HTTP endpoint for bare messages: a POST of `{"tool_name", "arguments"}` is answered with `{"status", "data", …}`."""

from __future__ import annotations

import json
import logging
from http import HTTPStatus
from typing import Any

import msgspec
from msgspec import Struct

from portico import Server, UsageError
from portico.extend import decode_bounded
from portico.jsonschema import ValidationIssue, validate
from portico_services.contracts import outcomes
from portico_services.contracts.contract_cache import ContractCache
from portico_services.contracts.invocation_names import is_invocation_name
from portico_services.contracts.invoker import HandlerTarget, invoke
from portico_services.contracts.outcomes import Outcome
from portico_services.contracts.schemas import TOOL_CALL_SCHEMA

log = logging.getLogger("portico")

# The transport ends a request to a custom route after 60 s. The call ends before that, so that it has a typed result.
TIMEOUT_SECONDS = 55.0


class HttpAnswer(Struct):
    """Response to a custom route, with the attributes of a Starlette response."""

    status_code: int
    body: bytes
    raw_headers: tuple[tuple[bytes, bytes], ...] = ((b"content-type", b"application/json"),)


def add_call_endpoint(server: Server, path: str) -> None:
    """Serve bare tool calls at an HTTP path, with the authentication and the access rules of the MCP endpoint.

    A second call with the same path changes nothing.
    """
    if any(route.path == path for route in server.custom_routes):
        return
    try:
        # Without it a result could not be checked, which is only known when the tool has run.
        outcomes.require_validator()
    except UsageError as failure:
        log.warning("%s is not served: %s", path, failure)
        return
    cache = ContractCache()

    @server.custom_route(path, methods=["POST"], authenticated=True)
    async def answer(request: Any) -> HttpAnswer:
        # A web page can send other types to a server on this machine without asking the browser first.
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return _encode_response(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, _refuse("body", "must be application/json"))
        try:
            message = _decode_message(await request.body())
        except UnicodeDecodeError:
            return _encode_response(HTTPStatus.BAD_REQUEST, _refuse("body", "must be UTF-8"))
        except (ValueError, RecursionError) as failure:
            return _encode_response(HTTPStatus.BAD_REQUEST, _refuse("body", str(failure)))
        if not isinstance(message, dict):
            return _encode_response(
                HTTPStatus.BAD_REQUEST, _refuse("body", "must be an object with tool_name and arguments")
            )
        # Before the schema, whose message would be its pattern.
        name = message.get("tool_name")
        if isinstance(name, str) and not is_invocation_name(name):
            reason = "must be module_name.tool_name in lower case"
            return _encode_response(HTTPStatus.BAD_REQUEST, _refuse("tool_name", reason, name))
        if issues := list(validate(TOOL_CALL_SCHEMA, message)):
            return _encode_response(HTTPStatus.BAD_REQUEST, outcomes.invalid_arguments(issues))
        # Read for each call: a view that is configured later must apply here too.
        target = HandlerTarget(server.public_handler, timeout=TIMEOUT_SECONDS, cache=cache, **request.caller_fields)
        # A tool that failed is a successful exchange: the status of the result is in the message.
        return _encode_response(HTTPStatus.OK, await invoke(target, message["tool_name"], message["arguments"]))


def _decode_message(body: bytes) -> Any:
    """Return the decoded JSON. Raises ValueError if it is invalid, nested too deeply, or has a duplicate member.

    A gateway or an audit log in front of the server may use another of two values, so duplicates are rejected, as at
    the MCP endpoint.
    """
    message = decode_bounded(body)
    json.loads(body, object_pairs_hook=_reject_duplicates, parse_int=str, parse_float=str)
    return message


def _reject_duplicates(members: list[tuple[str, Any]]) -> None:
    if len(dict(members)) < len(members):
        raise ValueError("a member is duplicated")


def _refuse(path: str, reason: str, value: str | None = None) -> Outcome:
    # A body that cannot be read has no value to repeat, like a missing argument.
    keyword = "required" if value is None else "pattern"
    return outcomes.invalid_arguments([ValidationIssue(path, keyword, reason, value)])


def _encode_response(status: HTTPStatus, outcome: Outcome) -> HttpAnswer:
    return HttpAnswer(status, msgspec.json.encode(outcome))
