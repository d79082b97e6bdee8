"""What a gateway answers itself when an upstream asks: its own roots, and sampling by a function of the operator."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Mapping
from typing import Any, TypedDict

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from portico._options import check_options
from portico.protocol import jsonrpc
from portico.protocol.client_features import CreateMessageParams, CreateMessageResult, InputRequiredResult
from portico.protocol.content import TextContent
from portico.protocol.errors import MissingCapability, Refused, UsageError
from portico.protocol.meta import ClientCapabilities
from portico.rpc.attribution import attribute
from portico.rpc.call import Call, Reply
from portico.transports import importer

log = logging.getLogger("portico.gateway")

# For a function that answers sampling.
LONGEST_SECONDS = 300.0
REFUSE = "refuse"
SAMPLING, ROOTS = "sampling/createMessage", "roots/list"


class _AnswersTable(TypedDict, total=False):
    sampling: str
    roots: list[str]


class AnswerSettings(Struct, frozen=True, kw_only=True):
    """`sampling`: a `module:function`, or "refuse"; None: the client is asked. `roots`: in place of the client's."""

    sampling: str | None = None
    roots: tuple[str, ...] | None = None


def answers_of(what: str, said: Mapping[str, Any]) -> AnswerSettings:
    """The settings in a table. Raises UsageError."""
    check_options(f"{what}.answers", said, _AnswersTable)
    sampling, roots = said.get("sampling"), said.get("roots")
    if sampling is not None and sampling != REFUSE and ":" not in sampling:
        raise UsageError(f'{what}.answers: sampling is {sampling!r}, and must be module:function, or "refuse"')
    for root in roots or ():
        if not root.startswith("file://"):
            raise UsageError(f"{what}.answers: the root {root!r} does not begin with file://")
    return AnswerSettings(sampling=sampling, roots=None if roots is None else tuple(roots))


class OwnAnswers:
    """The answers of a gateway to one upstream."""

    def __init__(self, settings: AnswerSettings) -> None:
        self._settings = settings
        self._sample: Any = None
        if settings.sampling not in (None, REFUSE):
            self._sample = importer.function(settings.sampling or "")

    def takes(self, method: str) -> bool:
        """Whether such a question does not go to the client."""
        if method == ROOTS:
            return self._settings.roots is not None
        return method == SAMPLING and self._settings.sampling is not None

    def able(self, client: ClientCapabilities) -> ClientCapabilities:
        """What can be asked, of the client or here."""
        changed: dict[str, Any] = {}
        if self._settings.roots is not None:
            changed["roots"] = {}
        if self._settings.sampling is not None:
            changed["sampling"] = None if self._sample is None else {}
        return replace(client, **changed)

    async def answer(self, method: str, params: Any) -> Raw:
        """The answer to a question that is taken here. Raises Refused with the reason."""
        if method == ROOTS:
            return Raw(jsonrpc.encode({"roots": [{"uri": uri} for uri in self._settings.roots or ()]}))
        if self._sample is None:
            raise Refused("this gateway does not let servers ask models")
        try:
            asked = msgspec.json.decode(jsonrpc.encode(params), type=CreateMessageParams)
        except msgspec.DecodeError as mistake:
            raise Refused(f"sampling/createMessage cannot be understood: {mistake}") from None
        try:
            async with asyncio.timeout(LONGEST_SECONDS):
                said = self._sample(asked)
                said = await said if inspect.isawaitable(said) else said
        except Exception:
            log.exception("the function that answers sampling has failed")
            raise Refused("the gateway could not answer sampling/createMessage") from None
        if isinstance(said, str):
            model = self._settings.sampling or ""
            said = CreateMessageResult(role="assistant", content=TextContent(text=said), model=model)
        return Raw(jsonrpc.encode(said))

    def takes_all(self, asked: InputRequiredResult) -> bool:
        questions = (asked.input_requests or {}).values()
        return bool(questions) and all(self.takes(one.method) for one in questions)

    def instead(self, call: Call, alias: str | None) -> Call:
        """Return the same call, whose questions are answered here, or else by its client, who is told the alias."""
        return replace(call, reply=_AnsweringReply(self, call.reply, alias))


class _AnsweringReply(Reply):
    asks = True

    def __init__(self, answers: OwnAnswers, outer: Reply, alias: str | None) -> None:
        self._alias = alias
        self._answers = answers
        self._outer = outer

    def _emit(self, method: str, params: Any) -> None:
        self._outer.emit(method, params)

    async def _ask(self, method: str, params: Any) -> Raw:
        if self._answers.takes(method):
            return await self._answers.answer(method, params)
        if not self._outer.asks:
            raise MissingCapability({method.partition("/")[0]: {}})
        asked = params if self._alias is None else attribute(self._alias, method, params)
        return await self._outer.ask(method, asked)
