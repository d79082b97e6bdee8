"""Model fallback chain: the client's model through sampling, then a configured provider, then rules.

No feature requires a model. A model that is missing, does not respond, returns nothing useful or repeats a secret is
skipped.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from portico import Context, ProtocolError, ToolError, UsageError
from portico._lazy import LazyModule
from portico_services.memory.errors import ContentBlocked, InvalidInput, ModelError
from portico_services.memory.store import validation
from portico_services.memory.tools.context import MemoryToolContext

if TYPE_CHECKING:
    from portico_services.memory.extras import enrichment
else:
    enrichment = LazyModule("portico_services.memory.extras.enrichment")

ModelProvider = Callable[[str, int], Awaitable[str]]
ModelCall = Callable[[str, int], Awaitable[Any]]

# A client may ask its user before sampling; a provider responds by itself.
SAMPLING_TIMEOUT_SECONDS, PROVIDER_TIMEOUT_SECONDS = 300.0, 60.0


def _load_provider(setting: ModelProvider | str | Mapping[str, Any] | None) -> ModelProvider | None:
    """Return the provider from a callable, from `module:function`, or from the settings of an endpoint. Raises
    `UsageError`.
    """
    if isinstance(setting, Mapping):
        from portico_services.memory.extras import chat_model

        return chat_model.chat_model_from_settings(setting)
    if not isinstance(setting, str):
        return setting
    module, colon, name = setting.partition(":")
    try:
        result = getattr(import_module(module), name) if colon else None
    except (ImportError, AttributeError, ValueError) as failure:
        raise UsageError(f"cannot import the model {setting!r}: {failure}") from None
    if not callable(result):
        raise UsageError(f"model must name a function as module:function, got {setting!r}")
    provider: ModelProvider = result
    return provider


def _provider_timeout(provider: ModelProvider) -> float:
    # The endpoint enforces its own timeout and reports it better, so this one is only a safety net.
    from portico_services.memory.extras import chat_model

    return provider.timeout + 5 if isinstance(provider, chat_model.ChatModelEndpoint) else PROVIDER_TIMEOUT_SECONDS


class ModelFallback:
    """Models available to the memory tools."""

    def __init__(self, access: MemoryToolContext, provider: ModelProvider | str | Mapping[str, Any] | None) -> None:
        self._access = access
        self._provider = _load_provider(provider)

    def for_call(self, ctx: Context) -> enrichment.ModelCaller | None:
        """Return a caller for the models available to a call, or None without any model."""
        models = list(self._providers(ctx))
        return FallbackCaller(ctx, models, self._access) if models else None

    def _providers(self, ctx: Context) -> Iterator[tuple[str, ModelCall]]:
        async def sample_client(prompt: str, max_tokens: int) -> str:
            # The key is derived from the prompt, not from a counter: with protocol version 2026-07-28 the whole call
            # runs again for each response, and other memories may be involved by then.
            key = f"model-{hashlib.sha256(prompt.encode(errors='replace')).hexdigest()[:16]}"
            async with asyncio.timeout(SAMPLING_TIMEOUT_SECONDS):
                return (await ctx.sample(prompt, max_tokens=max_tokens, key=key)).text

        if ctx.client_capabilities.sampling is not None:
            yield "client", sample_client
        provider = self._provider
        if provider is not None:

            async def call_provider(prompt: str, max_tokens: int) -> Any:
                async with asyncio.timeout(_provider_timeout(provider)):
                    return await provider(prompt, max_tokens)

            yield "provider", call_provider


class FallbackCaller:
    """Asks the models of one call, one after the other."""

    def __init__(self, ctx: Context, models: list[tuple[str, ModelCall]], access: MemoryToolContext) -> None:
        self._ctx = ctx
        self._providers = models
        self._access = access
        self._refused = 0

    @property
    def may_suspend(self) -> bool:
        return self._refused < len(self._providers)

    async def __call__(
        self, prompt: str, max_tokens: int, is_useful: Callable[[str], object] = bool, /
    ) -> enrichment.ModelResponse | None:
        self._refused = 0
        for name, model in self._providers:
            response = await self._try(name, model, prompt, max_tokens)
            if response is not None and is_useful(response):
                return enrichment.ModelResponse(response, name)
            if response is not None:
                self._warn(f"The {name} model returned nothing useful.")
        return None

    async def _try(self, name: str, model: ModelCall, prompt: str, max_tokens: int) -> str | None:
        """Return the response if it may be stored, otherwise None."""
        try:
            response = await model(prompt, max_tokens)
        except (ToolError, ProtocolError) as refusal:
            # A permanent failure, such as a rejected key, cannot succeed on a retry; `may_suspend` then reports that
            # waiting is useless.
            self._refused += isinstance(refusal, ModelError) and not refusal.retryable
            self._warn(f"The {name} model did not respond: {refusal}")
            return None
        except Exception as failure:  # code of a client or a provider
            self._warn(f"The {name} model failed: {type(failure).__name__}")
            return None
        if not isinstance(response, str) or not response.strip():
            return ""
        try:
            # A model may repeat a secret from its own context, so its output is screened like any new text.
            return (await self._access.screening.screen(validation.validate_content(response.strip()))).texts[0]
        except (ContentBlocked, InvalidInput):
            self._warn(f"The response of the {name} model cannot be stored.")
            return None

    def _warn(self, text: str) -> None:
        self._ctx.warning(text, self._access.prefix)
