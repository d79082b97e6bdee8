"""The ladder: the client's model, then one that was configured, then rules of our own.

A model is never needed. One that is not there, does not answer, says nothing of use or repeats a secret is passed over
for the next.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from portico import Context, ProtocolError, ToolError, UsageError
from portico._lazy import LazyModule
from portico_services.memory.errors import Blocked, InvalidInput, ModelFailed
from portico_services.memory.store import validation
from portico_services.memory.tools.context import Access

if TYPE_CHECKING:
    from portico_services.memory.extras import chat_model, enrichment
else:
    chat_model = LazyModule("portico_services.memory.extras.chat_model")
    enrichment = LazyModule("portico_services.memory.extras.enrichment")

Provider = Callable[[str, int], Awaitable[str]]
Rung = Callable[[str, int], Awaitable[Any]]

# Behind a client there may be a person who is asked first; behind a provider there is a machine.
CLIENT_SECONDS, PROVIDER_SECONDS = 300.0, 60.0


def _imported(given: Provider | str | Mapping[str, Any] | None) -> Provider | None:
    """From a portico.toml it comes as `module:function`, or as the settings of an endpoint."""
    if isinstance(given, Mapping):
        return chat_model.chat_model(given)
    if not isinstance(given, str):
        return given
    module, colon, name = given.partition(":")
    try:
        found = getattr(import_module(module), name) if colon else None
    except (ImportError, AttributeError, ValueError) as failure:
        raise UsageError(f"the provider {given!r} cannot be had: {failure}") from None
    if not callable(found):
        raise UsageError(f"the provider {given!r} is none; write module:function")
    provider: Provider = found
    return provider


def _patience(provider: Provider) -> float:
    # It looks after the time itself, and knows better what was late.
    return provider.seconds + 5 if isinstance(provider, chat_model.ChatModel) else PROVIDER_SECONDS


class ModelLadder:
    def __init__(self, access: Access, provider: Provider | str | Mapping[str, Any] | None) -> None:
        self._access = access
        self._provider = _imported(provider)

    def ask(self, ctx: Context) -> enrichment.AskModel | None:
        """None when there is no model at all."""
        rungs = list(self._rungs(ctx))
        return ModelAsker(ctx, rungs, self._access) if rungs else None

    def _rungs(self, ctx: Context) -> Iterator[tuple[str, Rung]]:
        async def client(question: str, tokens: int) -> str:
            # By what is asked and not by its turn: on 2026-07-28 all of this runs again for each answer, and meanwhile
            # there may be other memories to ask about.
            key = f"model-{hashlib.sha256(question.encode(errors='replace')).hexdigest()[:16]}"
            async with asyncio.timeout(CLIENT_SECONDS):
                return (await ctx.sample(question, max_tokens=tokens, key=key)).text

        if ctx.capabilities.sampling is not None:
            yield "client", client
        provider = self._provider
        if provider is not None:

            async def configured(question: str, tokens: int) -> Any:
                async with asyncio.timeout(_patience(provider)):
                    return await provider(question, tokens)

            yield "provider", configured


class ModelAsker:
    """Asks one after the other, for one call."""

    def __init__(self, ctx: Context, rungs: list[tuple[str, Rung]], access: Access) -> None:
        self._ctx = ctx
        self._rungs = rungs
        self._access = access
        self._refused = 0

    @property
    def may_answer_later(self) -> bool:
        return self._refused < len(self._rungs)

    async def __call__(
        self, question: str, tokens: int, is_useful: Callable[[str], object] = bool, /
    ) -> enrichment.ModelAnswer | None:
        self._refused = 0
        for name, rung in self._rungs:
            said = await self._tried(name, rung, question, tokens)
            if said is not None and is_useful(said):
                return enrichment.ModelAnswer(said, name)
            if said is not None:
                self._warn(f"The model of the {name} said nothing of use.")
        return None

    async def _tried(self, name: str, rung: Rung, question: str, tokens: int) -> str | None:
        """What it says, if that may be stored."""
        try:
            said = await rung(question, tokens)
        except (ToolError, ProtocolError) as refusal:
            self._refused += isinstance(refusal, ModelFailed) and not refusal.retryable
            self._warn(f"The model of the {name} did not answer: {refusal}")
            return None
        except Exception as failure:  # the code of a client or a provider
            self._warn(f"The model of the {name} failed: {type(failure).__name__}")
            return None
        if not isinstance(said, str) or not said.strip():
            return ""
        try:
            return (await self._access.guard.check(validation.content(said.strip()))).texts[0]
        except (Blocked, InvalidInput):
            self._warn(f"What the model of the {name} said cannot be stored.")
            return None

    def _warn(self, text: str) -> None:
        self._ctx.warning(text, self._access.prefix)
