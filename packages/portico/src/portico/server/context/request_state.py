"""Sealed `requestState` of multi-round-trip requests.

2026-07-28 has no server-to-client requests. A call that needs input ends with the input requests and its state so far;
the client sends the call again with the responses and the state. The state comes back from outside, so it is sealed:
signed, short-lived, and bound to method, parameters and principal.

It is signed, not encrypted: the client can read its own responses and the values of `ctx.step` in it.
"""

from __future__ import annotations

import os
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from portico.protocol.errors import InternalError, InvalidParams
from portico.rpc.identity import principal_id

# Long enough for a user to read a form and answer it; short, because used states are remembered for
# as long.
STATE_TTL_SECONDS = 600.0
# The client sends the state back in the body of its next request, whose size is limited too.
MAX_STATE_BYTES = 256 * 1024
_MAC_BYTES = 32
# 18 bytes become 24 characters of base64 without padding: 144 bits.
_TAG_CHARS = 18


class RequestState(Struct, array_like=True):
    """Responses and finished steps of one call."""

    binding: bytes
    # Unique, so that reuse can be detected.
    id: str
    expires: float
    answers: dict[str, Raw]
    steps: dict[str, Raw]
    # Keys of the input requests that it was issued with: responses to others are rejected.
    requested_keys: list[str] = []


# Keys for servers without configured ones, the current one first. All workers of a cluster share them.
_of_process = [os.urandom(32)]


def set_process_keys(keys: Sequence[bytes]) -> None:
    """Set the keys that servers of this process without configured ones share with other processes."""
    _of_process[:] = keys


# Returns a locator of this process for other processes, for states that only this process can continue.
_place: list[Callable[[], str]] = []


def set_process_locator(name: Callable[[], str] | None) -> None:
    """Set the function that returns unique locators of this process; None if other processes need not find it."""
    _place[:] = [] if name is None else [name]


def process_locator() -> str:
    """Return a locator that leads other processes to this one, or an empty string if there are none."""
    return _place[0]() if _place else ""


def pin_to_process(state: str) -> str:
    """Return a state that only this process can continue: `.locator.state`, which other processes forward here."""
    return f".{name}.{state}" if (name := process_locator()) else state


def pin_like(inner: str | None, state: str) -> str:
    """Return an outer state pinned to the same process as the inner one."""
    return state if inner is None or not inner.startswith(".") else f"{inner.rpartition('.')[0]}.{state}"


class RequestStateSealer:
    """Seals and opens states. Processes that serve the same clients must share the key.

    Without a key, one is derived from the process keys for the server of this `name`.
    """

    def __init__(
        self,
        key: bytes | None = None,
        ttl: float = STATE_TTL_SECONDS,
        name: str = "",
        *,
        previous_keys: Sequence[bytes] = (),
        codec: Any = None,
    ) -> None:
        self._configured_key = key
        # Former keys, which still open states.
        self._previous_keys = previous_keys
        # A codec of the server's author, used instead of a signature.
        self._codec = codec
        self._name = name
        self.ttl = ttl

    def seal(self, binding: bytes, responses: dict[str, Raw], steps: dict[str, Raw], requested_keys: list[str]) -> str:
        """Return a sealed state. Raises InternalError if it is too large."""
        body = msgspec.json.encode(
            # 128 random bits: ids are compared across all processes of a server, see
            # `replay_guard.py`.
            RequestState(binding, os.urandom(16).hex(), time.time() + self.ttl, responses, steps, requested_keys)
        )
        if len(body) > MAX_STATE_BYTES:
            raise InternalError("The state of this call is too large for the client to carry")
        signed = self._mac(body) + body if self._codec is None else self._codec.seal(body).encode()
        return urlsafe_b64encode(signed).decode()

    def unseal(self, sealed: str, binding: bytes) -> RequestState:
        """Return the state. Raises InvalidParams, with the same error for every kind of forgery."""
        state = self._verify(sealed)
        if state is None or state.binding != binding:
            raise InvalidParams("Invalid requestState: it was not issued for this request")
        # After the signature is verified: an unverified timestamp says nothing, and honest clients
        # deserve to learn that they were late.
        if state.expires < time.time():
            raise InvalidParams("Invalid requestState: it has expired; send the request again without it")
        return state

    def _verify(self, sealed: str) -> RequestState | None:
        if sealed.startswith("."):
            # The locator was only needed for routing.
            sealed = sealed.rpartition(".")[2]
        # Before decoding: an attacker must not make the server decode and hash megabytes for each
        # request.
        if len(sealed) > 2 * MAX_STATE_BYTES:
            return None
        try:
            data = urlsafe_b64decode(sealed.encode("ascii"))
            # base64 decoding ignores characters outside the alphabet, so compare with the exact text that we issued.
            if urlsafe_b64encode(data).decode() != sealed:
                return None
            body = self._unseal(data)
            return None if body is None else msgspec.json.decode(body, type=RequestState)
        except ValueError:
            return None

    def _unseal(self, data: bytes) -> bytes | None:
        if self._codec is None:
            return data[_MAC_BYTES:] if self._is_ours(data[:_MAC_BYTES], data[_MAC_BYTES:]) else None
        try:
            return bytes(self._codec.unseal(data.decode()))
        except Exception:
            # Any exception of the codec means that it did not seal this text.
            return None

    def create_tag(self, data: bytes) -> str:
        """Return a short, deterministic tag of the data that only a holder of the key can create."""
        return urlsafe_b64encode(self._mac(data)[:_TAG_CHARS]).decode().rstrip("=")

    def verify_tag(self, mark: str, data: bytes) -> bool:
        """Return whether a tag was created from the data."""
        import hmac

        return hmac.compare_digest(mark.encode(), self.create_tag(data).encode())

    # hmac is imported with the first input request, not with every server.

    def _mac(self, body: bytes) -> bytes:
        return next(self._iterate_macs(body))

    def _iterate_macs(self, body: bytes) -> Iterator[bytes]:
        """Yield the MAC by each key, the current one first."""
        import hmac

        # Two servers in one process must not accept each other's states, so each derives its key
        # from the process key and its name.
        about = b"state of " + self._name.encode()
        keys = (
            [self._configured_key, *self._previous_keys]
            if self._configured_key
            else [hmac.digest(key, about, "sha256") for key in _of_process]
        )
        return (hmac.digest(key, body, "sha256") for key in keys)

    @property
    def key_material(self) -> bytes:
        """Return the configured key, or the name, which protects against mistakes but not against attackers."""
        return self._configured_key or self._name.encode()

    def derive_key(self, purpose: bytes) -> bytes:
        """Return a key for another purpose that the same processes share."""
        return self._mac(b"derived for " + purpose)

    def _is_ours(self, mac: bytes, body: bytes) -> bool:
        import hmac

        # Compared in constant time. Former keys are tried too, so that rotating a key does not fail
        # calls in progress.
        return any(hmac.compare_digest(item, mac) for item in self._iterate_macs(body))


def request_binding(method: str, target: str, arguments: Any, principal: Any) -> bytes:
    """Return a digest of what must not change between the rounds of a call, independent of the JSON formatting."""
    from hashlib import sha256

    # A state of one user must not continue a call of another (confused deputy), and consent to one
    # call must not execute one with other arguments.
    encoded = msgspec.json.encode([method, target, arguments, principal_id(principal)], order="deterministic")
    return sha256(encoded).digest()
