"""The `[results]` table: budgets of results, and limits of the stored ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct
from msgspec.structs import replace

from portico._lazy import LazyModule, get_loaded_module
from portico.protocol.errors import UsageError
from portico.protocol.meta import ClientCapabilities
from portico.server.results.storage import StorageLimits
from portico.settings_file import convert

if TYPE_CHECKING:
    from portico.server.results import service
    from portico.server.server import Server
else:
    service = LazyModule("portico.server.results.service")

READ_RESULT_TOOL = "read_result"
# Below what hosts accept, about 25,000 tokens, by more than the error of the estimate.
DEFAULT_MAX_TOKENS = 20_000
# The summary and the link need room.
MIN_TOKENS = 500

# Marks the tool and the resource template that read stored results: they are not part of the contract of a server.
RESULTS_META_KEY = "portico/results"
# An experimental capability of clients that bound results themselves: a gateway. Results that an upstream has shortened
# could only be read at the upstream, under another name of its tool.
RESULTS_CAPABILITY = {RESULTS_META_KEY: dict[str, Any]()}
# Claude Code accepts longer texts of a tool with this member in its `_meta`, up to a maximum.
MAX_RESULT_SIZE_META_KEY = "anthropic/maxResultSizeChars"
MAX_RESULT_SIZE_CHARS = 500_000
# Characters of a text that is cheap to encode, such as prose and code.
MAX_CHARS_PER_TOKEN = 5

Tokens = Annotated[int, Meta(ge=0, le=10_000_000)]


class ResultSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Budgets of tool results, and limits of the complete results that are stored."""

    # Budget of a result in estimated tokens; 0: no limit, otherwise at least 500.
    max_tokens: Tokens = DEFAULT_MAX_TOKENS
    # Budgets by tool: patterns of `owner.name`.
    tools: dict[str, Tokens] = {}
    # Budgets by the client's name.
    clients: dict[str, Tokens] = {}
    # Seconds for which a complete result is stored.
    max_age: Annotated[float, Meta(ge=1, le=30 * 86_400)] = 3600.0
    # Stored results of one caller; the oldest are removed.
    max_results_per_caller: Annotated[int, Meta(ge=1, le=100_000)] = 100
    # Bytes of the stored results of one caller.
    max_bytes_per_caller: Annotated[int, Meta(ge=1)] = 256 * 1024 * 1024
    # Bytes of all stored results.
    max_bytes: Annotated[int, Meta(ge=1)] = 1024 * 1024 * 1024

    @property
    def storage(self) -> StorageLimits:
        """Return the limits of the stored results."""
        return StorageLimits(
            max_age_seconds=self.max_age,
            max_results_per_caller=self.max_results_per_caller,
            max_bytes_per_caller=self.max_bytes_per_caller,
            max_bytes=self.max_bytes,
        )


def check_tokens(label: str, tokens: int) -> int:
    """Return a budget. Raises UsageError if it leaves no room for the summary."""
    if tokens and tokens < MIN_TOKENS:
        raise UsageError(f"{label} must be 0 for no limit, or at least {MIN_TOKENS}, got {tokens}")
    return tokens


def declare_result_size(meta: Any, tokens: int) -> dict[str, Any]:
    """Return the `_meta` of a tool with the size of its results that Claude Code should accept.

    A size that the tool declares itself has precedence.
    """
    members = msgspec.json.decode(meta) if isinstance(meta, Raw) else dict(meta or {})
    chars = min(tokens * MAX_CHARS_PER_TOKEN, MAX_RESULT_SIZE_CHARS) if tokens else MAX_RESULT_SIZE_CHARS
    return {MAX_RESULT_SIZE_META_KEY: chars, **members}


def declare_bounding(able: ClientCapabilities) -> ClientCapabilities:
    """Return the capabilities of a client that bounds results itself."""
    return replace(able, experimental={**(able.experimental or {}), **RESULTS_CAPABILITY})


def declares_bounding(able: ClientCapabilities) -> bool:
    """Return whether a client bounds results itself."""
    return able.experimental is not None and RESULTS_META_KEY in able.experimental


def check_settings(settings: ResultSettings) -> ResultSettings:
    """Return the settings. Raises UsageError for a budget that is too small."""
    check_tokens("max_tokens", settings.max_tokens)
    for table in ("tools", "clients"):
        for name, tokens in getattr(settings, table).items():
            check_tokens(f"{table}.{name}", tokens)
    return settings


def parse_result_settings(table: Any, folder: Path) -> ResultSettings:
    """Read the table. Raises UsageError."""
    if not isinstance(table, Mapping):
        raise UsageError(f"results must be a table, got {type(table).__name__}")
    return check_settings(convert(dict(table), ResultSettings, "results"))


def apply_result_settings(server: Server, settings: ResultSettings | None) -> None:
    """Apply the table to a server; None restores the settings without it."""
    if settings is None:
        settings = ResultSettings(max_tokens=getattr(server, "max_result_tokens", 0))
    existing = find_result_limits(server)
    if not (settings.max_tokens or any(settings.tools.values()) or any(settings.clients.values())):
        if existing is not None:
            server.remove(existing.name)
    elif existing is not None:
        existing.configure(settings)
    else:
        limits = service.ResultLimits(0)
        limits.configure(settings)
        server.add(limits)


def find_result_limits(server: Any) -> service.ResultLimits | None:
    """Return the service that bounds the results of a server or another handler, or None."""
    module = get_loaded_module("portico.server.results.service")
    registry = getattr(server, "service_registry", None)
    if module is None or registry is None:
        return None
    services: list[Any] = registry.services
    return next((item for item in services if isinstance(item, module.ResultLimits)), None)


def parse_options(options: Mapping[str, Any]) -> ResultSettings:
    """Return settings from keyword arguments. Raises UsageError."""
    try:
        return check_settings(msgspec.convert(dict(options), ResultSettings))
    except msgspec.ValidationError as mistake:
        raise UsageError(f"ResultLimits: {mistake}") from None
