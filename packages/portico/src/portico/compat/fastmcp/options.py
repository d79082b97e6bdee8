"""Settings of servers that FastMCP and the official SDK have as objects, and their keywords by our names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Protocol, Self

import msgspec

from portico._lazy import LazyModule
from portico.protocol.errors import Error, UsageError
from portico.server.components.validation import checked_hints

if TYPE_CHECKING:
    from portico.server.context import request_state
    from portico.server.context.request_state import Seal
else:
    request_state = LazyModule("portico.server.context.request_state")

P = ParamSpec("P")

OnDuplicate = Literal["error", "warn", "replace", "ignore"]


class CacheHint(msgspec.Struct, frozen=True):
    """How long clients may keep the answers of one method, and whether several users may share them."""

    ttl_ms: int = 0
    scope: Literal["public", "private"] = "private"

    def __post_init__(self) -> None:
        checked_hints(self.ttl_ms, self.scope)


def hints_by_method(given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Such hints, ours or theirs, as the members of results."""
    return {method: checked_hints(one.ttl_ms, one.scope) for method, one in given.items()}


class InvalidRequestState(Error):
    """A codec raises it for a state that it has not sealed. The client is not told why."""


class StateCodec(Protocol):
    """Encrypts or signs what clients carry from one round to the next."""

    def seal(self, payload: bytes) -> str: ...
    def unseal(self, token: str) -> bytes: ...


class RequestStateSecurity:
    """How states are sealed that clients carry from one round to the next.

    * **keys** – the first seals, and each of them opens: `[new, old]` while a key is being replaced.
    * **codec** – or an object with `seal(bytes) -> str` and `unseal(str) -> bytes`, which raises InvalidRequestState.
    * **ttl** – for how many seconds a state is good: 600 unless said otherwise.
    """

    def __init__(
        self,
        *,
        keys: Sequence[bytes | bytearray | str] | None = None,
        codec: StateCodec | None = None,
        ttl: float | None = None,
        **_: Any,
    ) -> None:
        if (keys is None) == (codec is None):
            raise UsageError("RequestStateSecurity needs keys or a codec, and not both")
        self._keys = [key.encode() if isinstance(key, str) else bytes(key) for key in keys or ()]
        if keys is not None and (not self._keys or min(map(len, self._keys)) < 32):
            raise UsageError("the keys of a RequestStateSecurity have at least 32 bytes each")
        self._codec = codec
        self._ttl = ttl

    @classmethod
    def ephemeral(cls, *, ttl: float | None = None, **_: Any) -> Self:
        """With a key of this process alone, or of its fleet: what a server has that is told nothing."""
        made = cls.__new__(cls)
        made._keys, made._codec, made._ttl = [], None, ttl
        return made

    def sealing(self, name: str) -> Seal:
        first = self._keys[0] if self._keys else None
        lifetime = {} if self._ttl is None else {"lifetime": self._ttl}
        return request_state.Seal(first, name=name, others=self._keys[1:], codec=self._codec, **lifetime)


# What theirs have to be told, and ours does by itself.
NEEDLESS = frozenset(
    {"mask_error_details", "dereference_schemas", "include_fastmcp_meta", "debug",
     "dependencies", "session_state_store", "client_log_level", "tasks", "subscriptions",
     "sampling_handler_behavior", "on_duplicate_resources", "on_duplicate_prompts", "warn_on_duplicate_resources",
     "warn_on_duplicate_prompts"}
)  # fmt: skip
_RENAMED = {
    "list_page_size": "page_size",
    "strict_input_validation": "strict_arguments",
    "on_duplicate_tools": "on_duplicate",
    "warn_on_duplicate_tools": "on_duplicate",
}


# Where it is served, which the SDK's first major version took with the server.
_WHERE = frozenset(
    {"host", "port", "stateless_http", "json_response", "streamable_http_path", "sse_path", "message_path",
     "mount_path", "transport_security"}
)  # fmt: skip


def takes_familiar_options(init: Callable[Concatenate[Any, P], None]) -> Callable[Concatenate[Any, P], None]:
    """The constructor of a Server that understands the keywords of theirs, of which each may be None."""

    @wraps(init)
    def made(self: Any, /, *args: P.args, **options: P.kwargs) -> None:
        where = {name: options.pop(name) for name in tuple(options) if name in _WHERE}
        familiar, components, experimental = _familiar_options(options)
        init(self, *args, **familiar)
        if where:
            self.http_defaults = where
        if experimental:
            self.capabilities = msgspec.structs.replace(self.capabilities, experimental=experimental)
        for component in components:
            self.add(component)

    return made


def _familiar_options(given: Mapping[str, Any]) -> tuple[dict[str, Any], list[Any], dict[str, Any] | None]:
    """Keywords by their names here; and, for afterwards, the components and the capabilities among them."""
    options = {name: value for name, value in given.items() if name not in NEEDLESS}
    for theirs, ours in _RENAMED.items():
        if theirs in options:
            options.setdefault(ours, options.pop(theirs))
    components = [one for name in ("tools", "resources") for one in options.pop(name, None) or ()]
    experimental = options.pop("experimental_capabilities", None)
    if isinstance(options.get("on_duplicate"), bool):
        options["on_duplicate"] = "ignore"
    if (seconds := options.pop("cache_ttl", None)) is not None:
        options["ttl_ms"] = round(1000 * seconds)
    if type(options.get("version")) in (int, float):
        options["version"] = str(options["version"])
    said = {name: value for name, value in options.items() if value is not None or name == "resource_security"}
    return said, components, experimental
