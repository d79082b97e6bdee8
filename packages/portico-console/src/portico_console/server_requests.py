"""Server-to-client requests that wait for a user's response in the page."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import count
from typing import Any, Literal

import msgspec
from msgspec import Struct

from portico.protocol.client_features import CreateMessageParams, CreateMessageResult, ElicitParams, ElicitResult
from portico.protocol.errors import ToolError

MAX_PENDING_REQUESTS = 200
# Limit on all pending requests, because servers choose their size.
MAX_PENDING_BYTES = 32 * 1024 * 1024
RESPONSE_TIMEOUT_SECONDS = 600.0

ServerRequestKind = Literal["elicitation", "sampling", "roots"]
ElicitationAction = Literal["accept", "decline", "cancel"]


class ServerRequest(Struct, kw_only=True):
    id: str
    target: str
    run: str | None
    # The tool, prompt or resource whose call caused the request; empty if it cannot be determined.
    name: str = ""
    kind: ServerRequestKind
    mode: str = "form"
    message: str = ""
    schema: dict[str, Any] | None = None
    url: str | None = None
    params: Any
    asked: float


class UserResponse(Struct, frozen=True):
    action: ElicitationAction
    content: Any = None


class PendingServerRequest(Struct):
    """A request, the identity that may respond (None: the owner of this process), and its size."""

    question: ServerRequest
    asker: str | None
    size: int
    answered: asyncio.Future[UserResponse]


class ServerRequests:
    """Pending server requests. Requests without a response are cancelled after a timeout."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[], None]] = []
        self._ids = count(1)
        self._pending: dict[str, PendingServerRequest] = {}

    def pending_for(self, principal: str | None = None) -> list[ServerRequest]:
        """Return the requests that a principal may answer: the owner all, others those of their own calls."""
        return [value.question for value in self._pending.values() if principal is None or value.asker == principal]

    async def wait_for_response(
        self,
        target: str,
        run: str | None,
        kind: ServerRequestKind,
        request: Any,
        on_requested: Callable[[ServerRequest], None],
        principal: str | None = None,
        *,
        name: str = "",
    ) -> UserResponse:
        """Add a request and wait for the user's response. `on_requested` notifies the run that caused it."""
        size = len(msgspec.json.encode(request))
        stored_bytes = sum(value.size for value in self._pending.values())
        if len(self._pending) >= MAX_PENDING_REQUESTS or stored_bytes + size > MAX_PENDING_BYTES:
            return UserResponse("cancel")
        question = ServerRequest(
            id=f"q{next(self._ids)}", target=target, run=run, name=name, kind=kind,
            params=msgspec.to_builtins(request), asked=time.time(),
        )  # fmt: skip
        if isinstance(request, ElicitParams):
            question.message, question.mode = request.message, request.mode or "form"
            question.schema = request.requested_schema or None
            question.url = request.url or None
        elif isinstance(request, CreateMessageParams):
            question.message = "The server requests text from a model"
        future: asyncio.Future[UserResponse] = asyncio.get_running_loop().create_future()
        self._pending[question.id] = PendingServerRequest(question, principal, size, future)
        self._notify_change()
        on_requested(question)
        try:
            async with asyncio.timeout(RESPONSE_TIMEOUT_SECONDS):
                return await future
        except TimeoutError:
            return UserResponse("cancel")
        finally:
            del self._pending[question.id]
            self._notify_change()

    def respond(self, id: str, answered: UserResponse, principal: str | None = None) -> None:
        """Respond to a pending request. Raises ToolError if it is not pending or belongs to another principal."""
        result = self._pending.get(id)
        if result is None or result.answered.done() or (principal is not None and result.asker != principal):
            raise ToolError(f"unknown request {id[:40]!r}: it was already answered, or its call has ended")
        result.answered.set_result(answered)

    def _notify_change(self) -> None:
        for listener in self.listeners:
            listener()


def to_elicit_result(answered: UserResponse) -> ElicitResult:
    """Convert a user's response to an elicitation result."""
    content = answered.content if isinstance(answered.content, dict) else None
    return ElicitResult(answered.action, content if answered.action == "accept" else None)


def to_sampling_result(answered: UserResponse) -> CreateMessageResult | str:
    """Convert a user's response to a string or a sampling result. Raises ToolError if the user declined."""
    content = answered.content
    if answered.action != "accept" or not isinstance(content, dict):
        raise ToolError("the user declined the request")
    if isinstance(content.get("text"), str):
        return str(content["text"])
    try:
        return msgspec.convert(content, CreateMessageResult)
    except msgspec.ValidationError as wrong:
        raise ToolError(f"invalid sampling result: {wrong}") from None
