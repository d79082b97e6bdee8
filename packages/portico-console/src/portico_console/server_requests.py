"""What servers ask of people, until a person has answered in the page."""

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

MOST_QUESTIONS = 200
# Of all that wait: servers choose how much they say.
MOST_BYTES = 32 * 1024 * 1024
ANSWER_SECONDS = 600.0

QuestionKind = Literal["elicitation", "sampling", "roots"]
Action = Literal["accept", "decline", "cancel"]


class OpenQuestion(Struct, kw_only=True):
    id: str
    target: str
    run: str | None
    kind: QuestionKind
    mode: str = "form"
    message: str = ""
    schema: dict[str, Any] | None = None
    url: str | None = None
    params: Any
    asked: float


class PageAnswer(Struct, frozen=True):
    action: Action
    content: Any = None


class WaitingQuestion(Struct):
    """A question, whose it is to answer (None: the owner's of this process), and how much it says."""

    question: OpenQuestion
    asker: str | None
    size: int
    answered: asyncio.Future[PageAnswer]


class Questions:
    """Those that wait. One that is not answered is cancelled in the end."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[], None]] = []
        self._ids = count(1)
        self._waiting: dict[str, WaitingQuestion] = {}

    def waiting(self, who: str | None = None) -> list[OpenQuestion]:
        """Those that `who` may answer: the owner all, others those that came of their own calls."""
        return [one.question for one in self._waiting.values() if who is None or one.asker == who]

    async def ask(
        self,
        target: str,
        run: str | None,
        kind: QuestionKind,
        asked: Any,
        told: Callable[[OpenQuestion], None],
        asker: str | None = None,
    ) -> PageAnswer:
        """Wait for a person. `told` is for who has begun the call that led to it."""
        size = len(msgspec.json.encode(asked))
        kept = sum(one.size for one in self._waiting.values())
        if len(self._waiting) >= MOST_QUESTIONS or kept + size > MOST_BYTES:
            return PageAnswer("cancel")
        question = OpenQuestion(
            id=f"q{next(self._ids)}", target=target, run=run, kind=kind, params=msgspec.to_builtins(asked),
            asked=time.time(),
        )  # fmt: skip
        if isinstance(asked, ElicitParams):
            question.message, question.mode = asked.message, asked.mode or "form"
            question.schema = asked.requested_schema or None
            question.url = asked.url or None
        elif isinstance(asked, CreateMessageParams):
            question.message = "The server wants text from a model"
        future: asyncio.Future[PageAnswer] = asyncio.get_running_loop().create_future()
        self._waiting[question.id] = WaitingQuestion(question, asker, size, future)
        self._changed()
        told(question)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await future
        except TimeoutError:
            return PageAnswer("cancel")
        finally:
            del self._waiting[question.id]
            self._changed()

    def answer(self, id: str, answered: PageAnswer, who: str | None = None) -> None:
        found = self._waiting.get(id)
        if found is None or found.answered.done() or (who is not None and found.asker != who):
            raise ToolError(f"there is no open question {id[:40]!r}: it was answered, or its call is over")
        found.answered.set_result(answered)

    def _changed(self) -> None:
        for told in self.listeners:
            told()


def as_elicited(answered: PageAnswer) -> ElicitResult:
    content = answered.content if isinstance(answered.content, dict) else None
    return ElicitResult(answered.action, content if answered.action == "accept" else None)


def as_sampled(answered: PageAnswer) -> CreateMessageResult | str:
    """A text, or a whole result. A person who declines gives no text, which is said to the server as such."""
    content = answered.content
    if answered.action != "accept" or not isinstance(content, dict):
        raise ToolError("the user does not want to answer")
    if isinstance(content.get("text"), str):
        return str(content["text"])
    try:
        return msgspec.convert(content, CreateMessageResult)
    except msgspec.ValidationError as wrong:
        raise ToolError(f"that is no answer of a model: {wrong}") from None
