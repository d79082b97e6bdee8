"""Multi-round-trip requests: what travels in `requestState` while the client answers a question.

2026-07-28 has no requests from server to client. A call that needs an answer ends with the question and everything
it has learnt so far; the client sends the call again with both. The state comes back from outside, so it is sealed:
signed, short-lived, and bound to the method, the parameters and the principal it was made for.

It is signed, not encrypted: the client can read its own answers and the values of `ctx.step` in it.
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
from portico.rpc.identity import identity_of

LIFETIME_SECONDS = 600.0
LARGEST_STATE = 256 * 1024
_MAC = 32
_MARK = 18


class State(Struct, array_like=True):
    """What has been answered and done so far in one call."""

    binding: bytes
    # Each is another one, so that it can be told whether it was used.
    id: str
    expires: float
    answers: dict[str, Raw]
    steps: dict[str, Raw]
    # The keys of the questions that it was given with: an answer to another is none.
    asked: list[str] = []


# What servers without a key of their own seal with, the one in use first. The workers of a fleet have the same.
_of_process = [os.urandom(32)]


def use_keys(keys: Sequence[bytes]) -> None:
    """From now on servers of this process that have no key of their own share these with other processes."""
    _of_process[:] = keys


# Names this process, where others serve the same clients: for what no other can go on with.
_place: list[Callable[[], str]] = []


def use_place(name: Callable[[], str] | None) -> None:
    """From now on this process is found by such names, each of which is another one; None: it is not looked for."""
    _place[:] = [] if name is None else [name]


def here() -> str:
    """A name that leads other processes to this one; empty where there are no others."""
    return _place[0]() if _place else ""


def kept_here(state: str) -> str:
    """A state that only this process can go on with: `.name.state`, by which others send it here."""
    return f".{name}.{state}" if (name := here()) else state


def kept_as(inner: str | None, state: str) -> str:
    """A state around another one, which is kept where that is."""
    return state if inner is None or not inner.startswith(".") else f"{inner.rpartition('.')[0]}.{state}"


class Seal:
    """Closes and opens states. Processes that serve the same clients must share the key.

    Without one it is made of that of the process, for the server of this `name` alone.
    """

    def __init__(
        self,
        key: bytes | None = None,
        lifetime: float = LIFETIME_SECONDS,
        name: str = "",
        *,
        others: Sequence[bytes] = (),
        codec: Any = None,
    ) -> None:
        self._given = key
        # What it was sealed with before, and is still opened with.
        self._others = others
        # An object of the server's author, which seals in place of a signature.
        self._codec = codec
        self._name = name
        self.lifetime = lifetime

    def close(self, binding: bytes, answers: dict[str, Raw], steps: dict[str, Raw], asked: list[str]) -> str:
        body = msgspec.json.encode(
            State(binding, os.urandom(16).hex(), time.time() + self.lifetime, answers, steps, asked)
        )
        if len(body) > LARGEST_STATE:
            raise InternalError("The state of this call has grown too large to be carried by the client")
        signed = self._mac(body) + body if self._codec is None else self._codec.seal(body).encode()
        return urlsafe_b64encode(signed).decode()

    def open(self, sealed: str, binding: bytes) -> State:
        """The state, or -32602: one answer for every way in which it can be wrong."""
        state = self._verified(sealed)
        if state is None or state.binding != binding:
            raise InvalidParams("Invalid requestState: it was not issued for this request")
        if state.expires < time.time():
            raise InvalidParams("Invalid requestState: it has expired; send the request again without it")
        return state

    def _verified(self, sealed: str) -> State | None:
        if sealed.startswith("."):
            # Where it is kept was for those who had to find it.
            sealed = sealed.rpartition(".")[2]
        if len(sealed) > 2 * LARGEST_STATE:
            return None
        try:
            data = urlsafe_b64decode(sealed.encode("ascii"))
            # Python's decoder skips what is not of the alphabet; only the exact text we issued will do.
            if urlsafe_b64encode(data).decode() != sealed:
                return None
            body = self._unsealed(data)
            return None if body is None else msgspec.json.decode(body, type=State)
        except ValueError:
            return None

    def _unsealed(self, data: bytes) -> bytes | None:
        if self._codec is None:
            return data[_MAC:] if self._is_ours(data[:_MAC], data[_MAC:]) else None
        try:
            return bytes(self._codec.unseal(data.decode()))
        except Exception:
            # Whatever a codec says of a text from outside: it has not sealed it.
            return None

    def mark(self, said: bytes) -> str:
        """A short text that only a holder of the key can make of this, the same each time."""
        return urlsafe_b64encode(self._mac(said)[:_MARK]).decode().rstrip("=")

    def is_mark(self, mark: str, said: bytes) -> bool:
        import hmac

        return hmac.compare_digest(mark.encode(), self.mark(said).encode())

    # Cryptography is loaded with the first question, not with every server.

    def _mac(self, body: bytes) -> bytes:
        return next(self._macs(body))

    def _macs(self, body: bytes) -> Iterator[bytes]:
        """By each key, the one in use first."""
        import hmac

        about = b"state of " + self._name.encode()
        keys = (
            [self._given, *self._others] if self._given else [hmac.digest(key, about, "sha256") for key in _of_process]
        )
        return (hmac.digest(key, body, "sha256") for key in keys)

    @property
    def lasting(self) -> bytes:
        """The key that was given. Without one, the name: a guard against mistakes, and not against intent."""
        return self._given or self._name.encode()

    def derived(self, purpose: bytes) -> bytes:
        """Another key, for something else that the same processes share."""
        return self._mac(b"derived for " + purpose)

    def _is_ours(self, mac: bytes, body: bytes) -> bool:
        import hmac

        return any(hmac.compare_digest(one, mac) for one in self._macs(body))


def binding(method: str, target: str, arguments: Any, principal: Any) -> bytes:
    """A digest of what must stay the same between the rounds of one call, however the client writes it down."""
    from hashlib import sha256

    said = msgspec.json.encode([method, target, arguments, identity_of(principal)], order="deterministic")
    return sha256(said).digest()
