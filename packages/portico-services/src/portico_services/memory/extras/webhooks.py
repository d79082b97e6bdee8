"""Webhooks: others are told over HTTP when a memory was captured, changed or deleted by a call here.

Only addresses that the operator has configured are told, and unless it is said of one that it is private, only such as
are on the open internet. A call never waits for any of this: what is to be told stands in a queue, and is lost with the
process. What is told is what was done to which memory, never what the memory says.

A message is signed as https://www.standardwebhooks.com has it.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import os
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct

from portico import ProtocolError, UsageError
from portico.extend import TransportError, http_exchange
from portico_services import timestamps
from portico_services.memory.store.records import Record

log = logging.getLogger("portico")

MOST_WAITING = 1000
MOST_HOOKS = 20
LONGEST_ANSWER = 100_000
LONGEST_SECRET = 10_000
# How long to wait before each further try, in seconds.
PAUSES = (1.0, 5.0, 30.0, 120.0)
CHANGES = ("captured", "updated", "deleted", "restored")


class HookSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[services.memory.webhooks.NAME]` in a portico.toml."""

    url: Annotated[str, Meta(pattern=r"^https?://[^\s@#]+$", max_length=2000)]
    # What to be told of; everything when left out.
    changes: list[str] = []
    # Where the secret is that messages are signed with: a variable of the environment, or a file.
    secret_variable: str = ""
    secret_file: str = ""
    # Whether it may be on this machine or in a network of our own.
    private: bool = False
    seconds: Annotated[float, Meta(gt=0, le=60)] = 10.0


class HookState(Struct, kw_only=True):
    """What has become of what one was to be told."""

    name: Annotated[str, "Its name in the settings"]
    host: Annotated[str, "Who is told"]
    changes: Annotated[list[str], "Of what it is told"]
    signed: Annotated[bool, "Whether messages are signed"]
    waiting: Annotated[int, "How many messages have not been delivered yet"] = 0
    delivered: Annotated[int, "How many were"] = 0
    failed: Annotated[int, "How many were given up, or had no room to wait"] = 0
    last: Annotated[str, "How the last try ended"] = ""


class _Hook:
    def __init__(self, name: str, settings: HookSettings) -> None:
        self.settings = settings
        self.queue: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue(MOST_WAITING)
        # The one that is being delivered is in the queue no more.
        self.underway = 0
        host = urlsplit(settings.url).hostname or ""
        wanted = settings.changes or list(CHANGES)
        signed = bool(settings.secret_variable or settings.secret_file)
        self.state = HookState(name=name, host=host, changes=wanted, signed=signed)

    def put(self, id: str, body: bytes) -> None:
        try:
            self.queue.put_nowait((id, body))
        except asyncio.QueueFull:
            self.state.failed += 1
            log.warning("the webhook %s is behind, and misses a message", self.state.name)

    async def work(self) -> None:
        """Until it is cancelled."""
        while True:
            id, body = await self.queue.get()
            self.underway = 1
            await self._deliver(id, body)
            self.underway = 0

    async def _deliver(self, id: str, body: bytes) -> None:
        for pause in (0.0, *PAUSES):
            await asyncio.sleep(pause)
            if await self.send(id, body):
                self.state.delivered += 1
                return
        self.state.failed += 1
        log.warning("the webhook %s was not reached: %s", self.state.name, self.state.last)

    async def send(self, id: str, body: bytes) -> bool:
        """One try; whether it was taken."""
        try:
            headers = [("Content-Type", "application/json"), *self._signed(id, body)]
            answer = await http_exchange(
                "POST",
                self.settings.url,
                headers=headers,
                body=body,
                seconds=self.settings.seconds,
                longest=LONGEST_ANSWER,
                public=not self.settings.private,
            )
        except (TransportError, ProtocolError, OSError, ValueError) as failure:
            # Its text may hold the address, and that a token.
            self.state.last = type(failure).__name__
            return False
        self.state.last = str(answer.status)
        return 200 <= answer.status < 300

    def _signed(self, id: str, body: bytes) -> Iterator[tuple[str, str]]:
        at = str(int(time.time()))
        yield "webhook-id", id
        yield "webhook-timestamp", at
        settings = self.settings
        if settings.secret_variable or settings.secret_file:
            digest = hmac.digest(self._secret(), f"{id}.{at}.".encode() + body, hashlib.sha256)
            yield "webhook-signature", f"v1,{base64.b64encode(digest).decode()}"

    def _secret(self) -> bytes:
        """Raises OSError or ValueError: without its signature nothing is sent."""
        if self.settings.secret_file:
            with Path(self.settings.secret_file).expanduser().open(encoding="ascii") as file:
                said = file.read(LONGEST_SECRET).strip()
        else:
            said = os.environ.get(self.settings.secret_variable, "").strip()
        if not said:
            raise ValueError("there is no secret")
        return base64.b64decode(said.removeprefix("whsec_")) if said.startswith("whsec_") else said.encode()


class Webhooks:
    def __init__(self, settings: Mapping[str, Mapping[str, Any]]) -> None:
        if len(settings) > MOST_HOOKS:
            raise UsageError(f"{len(settings)} webhooks are too many; there may be {MOST_HOOKS}")
        self._hooks = {name: _Hook(name, _read(name, said)) for name, said in settings.items()}

    def work(self) -> Iterator[tuple[str, Callable[[], Coroutine[Any, Any, None]]]]:
        """Yield the name and the work of each webhook, to run as long as the store is open."""
        return ((f"memory webhook {name}", hook.work) for name, hook in self._hooks.items())

    def tell(self, change: str, one: Record, prefix: str) -> None:
        """Never waits."""
        wanting = [hook for hook in self._hooks.values() if change in hook.state.changes]
        if not wanting:
            return
        urn = f"{prefix}://{one.domain}/{one.namespace}/{one.id}"
        about = {
            "id": one.id,
            "urn": urn,
            "namespace": one.namespace,
            "project": one.project if one.domain == "project" else None,
            "tags": one.tags,
        }
        id, body = _message(change, memory=about)
        for hook in wanting:
            hook.put(id, body)

    def states(self) -> list[HookState]:
        for hook in self._hooks.values():
            hook.state.waiting = hook.queue.qsize() + hook.underway
        return [hook.state for hook in self._hooks.values()]

    async def test(self, name: str) -> HookState | None:
        """One message at once, to see whether it arrives; None where there is no such webhook."""
        hook = self._hooks.get(name)
        if hook is None:
            return None
        await hook.send(*_message("test"))
        return hook.state


def _message(change: str, **more: Any) -> tuple[str, bytes]:
    id = f"msg_{os.urandom(12).hex()}"
    said = {"type": f"memory.{change}", "timestamp": timestamps.written(timestamps.now()), "data": more}
    return id, msgspec.json.encode(said)


def _read(name: str, said: Mapping[str, Any]) -> HookSettings:
    try:
        settings = msgspec.convert(dict(said), HookSettings)
    except (msgspec.ValidationError, TypeError, ValueError) as mistake:
        raise UsageError(f"the webhook {name!r} cannot be told: {mistake}") from None
    strange = [one for one in settings.changes if one not in CHANGES]
    if strange:
        raise UsageError(f"the webhook {name!r}: {strange[0]!r} is none of {', '.join(CHANGES)}")
    if not settings.private and not settings.url.startswith("https://"):
        raise UsageError(f"the webhook {name!r} needs https; http is for one that is private")
    return settings
