"""What a server may ask of us, and who answers: the same handlers on every revision."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable
from typing import Any

from msgspec import Raw

from portico.schema.reader import defaults_of
from portico.wire.content import TextContent
from portico.wire.errors import MethodNotFound
from portico.wire.inputs import (
    CreateMessageParams,
    CreateMessageResult,
    ElicitParams,
    ElicitResult,
    ListRootsResult,
    Root,
)
from portico.wire.meta import ClientCapabilities
from portico.wire.methods import METHODS

SamplingHandler = Callable[[CreateMessageParams], CreateMessageResult | str | Awaitable[CreateMessageResult | str]]
ElicitationHandler = Callable[
    [ElicitParams], ElicitResult | dict[str, Any] | Awaitable[ElicitResult | dict[str, Any] | None] | None
]
Roots = Sequence[str | Root]


class Inputs:
    """Answers questions with the handlers that a client was given."""

    def __init__(
        self,
        sampling: SamplingHandler | None = None,
        elicitation: ElicitationHandler | None = None,
        roots: Roots | None = None,
    ) -> None:
        self.sampling = sampling
        self.elicitation = elicitation
        self.roots = roots

    @property
    def capabilities(self) -> ClientCapabilities:
        """Only what has a handler is declared."""
        return ClientCapabilities(
            sampling={"tools": {}} if self.sampling is not None else None,
            elicitation={"form": {}, "url": {}} if self.elicitation is not None else None,
            roots={} if self.roots is not None else None,
        )

    def _handler(self, method: str) -> Any:
        handlers = {
            "sampling/createMessage": self.sampling,
            "elicitation/create": self.elicitation,
            "roots/list": self.roots,
        }
        return handlers.get(method)

    def can_answer(self, method: str) -> bool:
        return self._handler(method) is not None

    async def answer(self, method: str, params: Raw) -> Any:
        handler = self._handler(method)
        if handler is None:
            raise MethodNotFound(f"Method not found: {method}")
        if method == "roots/list":
            return ListRootsResult([root if isinstance(root, Root) else Root(root) for root in handler])
        asked = METHODS[method].decode(params)
        said = await _settled(handler(asked))
        return _elicited(said, asked) if method == "elicitation/create" else _sampled(said)


def _sampled(said: CreateMessageResult | str) -> CreateMessageResult:
    if isinstance(said, CreateMessageResult):
        return said
    return CreateMessageResult(role="assistant", content=TextContent(text=said), model="handler")


def _elicited(said: ElicitResult | dict[str, Any] | None, params: ElicitParams) -> ElicitResult:
    """The user's answer. A handler may give the fields alone (accepted), or None (declined)."""
    if said is None:
        return ElicitResult("decline")
    answer = said if isinstance(said, ElicitResult) else ElicitResult("accept", said)
    if answer.action != "accept" or params.mode != "form":
        return ElicitResult(answer.action)  # content is for accepted forms (2025-11-25, client/elicitation)
    return ElicitResult("accept", {**defaults_of(params.requested_schema), **(answer.content or {})})


async def _settled(value: Any) -> Any:
    return await value if isawaitable(value) else value
