"""Webhooks: HTTP notifications when a call captures, changes or deletes a memory.

Only URLs configured by the operator are called, and only on public addresses unless a webhook sets
`allow_private_hosts`. A call never waits for a delivery: deliveries are queued in memory and lost with the process. A
payload contains the kind of change and the memory's id, project and tags, never its content.

Messages are signed according to https://www.standardwebhooks.com.
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

from portico import ProtocolError, UsageError, settings_file
from portico.errors import TransportError
from portico.extend import http_request
from portico_services import timestamps
from portico_services.memory.store.records import MemoryRecord

log = logging.getLogger("portico")

MAX_QUEUED_DELIVERIES = 1000
MAX_WEBHOOKS = 20
MAX_RESPONSE_BYTES = 100_000
MAX_SECRET_BYTES = 10_000
# Delays before each retry.
RETRY_DELAYS_SECONDS = (1.0, 5.0, 30.0, 120.0)
EVENT_TYPES = ("captured", "updated", "deleted", "restored")


class WebhookSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of `[services.memory.webhooks.NAME]` in portico.toml."""

    # URL that receives a POST for each change, without credentials or a fragment; at most 2,000 characters.
    url: Annotated[str, Meta(pattern=r"^https?://[^\s@#]+$", max_length=2000)]
    # Events to send: `captured`, `updated`, `deleted`, `restored`; all if empty.
    events: list[str] = []
    # Environment variable with the secret that signs messages.
    secret_env: str = ""
    # File with the secret that signs messages.
    secret_file: str = ""
    # Whether the URL may be on this machine or in a private network.
    allow_private_hosts: bool = False
    # Timeout of one delivery.
    timeout: Annotated[float, Meta(gt=0, le=60)] = 10.0


class WebhookStatus(Struct, kw_only=True):
    """Delivery status of a webhook."""

    name: Annotated[str, "Name in the settings"]
    host: Annotated[str, "Receiving host"]
    changes: Annotated[list[str], "Events that are sent"]
    signed: Annotated[bool, "Whether messages are signed"]
    waiting: Annotated[int, "Messages not delivered yet"] = 0
    delivered: Annotated[int, "Messages delivered"] = 0
    failed: Annotated[int, "Messages dropped after the last retry or because the queue was full"] = 0
    last: Annotated[str, "HTTP status or error of the last attempt"] = ""


class _WebhookWorker:
    """Queue and deliveries of one webhook."""

    def __init__(self, name: str, settings: WebhookSettings) -> None:
        self.settings = settings
        self.queue: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue(MAX_QUEUED_DELIVERIES)
        # The message being delivered is no longer in the queue.
        self.underway = 0
        host = urlsplit(settings.url).hostname or ""
        events = settings.events or list(EVENT_TYPES)
        signed = bool(settings.secret_env or settings.secret_file)
        self.state = WebhookStatus(name=name, host=host, changes=events, signed=signed)

    def enqueue(self, id: str, body: bytes) -> None:
        """Queue a message; drop it if the queue is full."""
        try:
            self.queue.put_nowait((id, body))
        except asyncio.QueueFull:
            self.state.failed += 1
            log.warning("webhook %s: queue full, message dropped", self.state.name)

    async def run(self) -> None:
        """Deliver queued messages until cancelled."""
        while True:
            id, body = await self.queue.get()
            self.underway = 1
            await self._deliver(id, body)
            self.underway = 0

    async def _deliver(self, id: str, body: bytes) -> None:
        """Deliver a message with retries."""
        for pause in (0.0, *RETRY_DELAYS_SECONDS):
            await asyncio.sleep(pause)
            if await self.send(id, body):
                self.state.delivered += 1
                return
        self.state.failed += 1
        log.warning("webhook %s: delivery failed: %s", self.state.name, self.state.last)

    async def send(self, id: str, body: bytes) -> bool:
        """Send a message once and return whether the receiver accepted it."""
        try:
            headers = [("Content-Type", "application/json"), *self._sign(id, body)]
            response = await http_request(
                "POST",
                self.settings.url,
                headers=headers,
                body=body,
                timeout=self.settings.timeout,
                max_response_bytes=MAX_RESPONSE_BYTES,
                public_only=not self.settings.allow_private_hosts,
            )
        except (TransportError, ProtocolError, OSError, ValueError) as failure:
            # The message may contain the URL, which may contain a token.
            self.state.last = type(failure).__name__
            return False
        self.state.last = str(response.status)
        return 200 <= response.status < 300

    def _sign(self, id: str, body: bytes) -> Iterator[tuple[str, str]]:
        """Yield the Standard Webhooks headers, with a signature if a secret is configured."""
        # Signed together with the body, so that a recorded message cannot be replayed later.
        at = str(int(time.time()))
        yield "webhook-id", id
        yield "webhook-timestamp", at
        settings = self.settings
        if settings.secret_env or settings.secret_file:
            # Standard Webhooks, “Signature scheme”: the signed content is `id.timestamp.body`.
            digest = hmac.digest(self._secret(), f"{id}.{at}.".encode() + body, hashlib.sha256)
            yield "webhook-signature", f"v1,{base64.b64encode(digest).decode()}"

    def _secret(self) -> bytes:
        """Return the signing secret. Raises `OSError` or `ValueError` if it is missing: nothing is sent unsigned."""
        if self.settings.secret_file:
            with Path(self.settings.secret_file).expanduser().open(encoding="ascii") as file:
                secret = file.read(MAX_SECRET_BYTES).strip()
        else:
            secret = os.environ.get(self.settings.secret_env, "").strip()
        if not secret:
            raise ValueError("the signing secret is empty")
        # Standard Webhooks: a secret is base64 after the prefix `whsec_`. Plain secrets are accepted as they are.
        return base64.b64decode(secret.removeprefix("whsec_")) if secret.startswith("whsec_") else secret.encode()


class WebhookDispatcher:
    """Sends memory events to the configured webhooks."""

    def __init__(self, settings: Mapping[str, Mapping[str, Any]]) -> None:
        if len(settings) > MAX_WEBHOOKS:
            raise UsageError(f"webhooks: expected at most {MAX_WEBHOOKS}, got {len(settings)}")
        self._hooks = {name: _WebhookWorker(name, _parse_settings(name, section)) for name, section in settings.items()}

    def workers(self) -> Iterator[tuple[str, Callable[[], Coroutine[Any, Any, None]]]]:
        """Yield the name and the worker coroutine of each webhook, to run while the store is open."""
        return ((f"memory webhook {name}", hook.run) for name, hook in self._hooks.items())

    def dispatch(self, change: str, item: MemoryRecord, prefix: str) -> None:
        """Queue an event for all webhooks that subscribe to it, without waiting."""
        subscribers = [hook for hook in self._hooks.values() if change in hook.state.changes]
        if not subscribers:
            return
        urn = f"{prefix}://{item.domain}/{item.namespace}/{item.id}"
        about = {
            "id": item.id,
            "urn": urn,
            "namespace": item.namespace,
            "project": item.project if item.domain == "project" else None,
            "tags": item.tags,
        }
        id, body = _build_payload(change, memory=about)
        for hook in subscribers:
            hook.enqueue(id, body)

    def statuses(self) -> list[WebhookStatus]:
        for hook in self._hooks.values():
            hook.state.waiting = hook.queue.qsize() + hook.underway
        return [hook.state for hook in self._hooks.values()]

    async def send_test(self, name: str) -> WebhookStatus | None:
        """Send a test event now and return the status, or None for an unknown webhook."""
        hook = self._hooks.get(name)
        if hook is None:
            return None
        await hook.send(*_build_payload("test"))
        return hook.state


def _build_payload(change: str, **more: Any) -> tuple[str, bytes]:
    # Retries of a message have the same id, by which a receiver drops duplicates.
    id = f"msg_{os.urandom(12).hex()}"
    payload = {"type": f"memory.{change}", "timestamp": timestamps.format_iso(timestamps.now_ms()), "data": more}
    return id, msgspec.json.encode(payload)


def _parse_settings(name: str, section: Mapping[str, Any]) -> WebhookSettings:
    """Validate the settings of a webhook. Raises `UsageError`."""
    table = f"webhooks.{name}"
    if not isinstance(section, Mapping):
        raise UsageError(f"{table}: expected a table, got {section!r}")
    # The error for an invalid value repeats it, and a password must not reach a log.
    if "@" in str(section.get("url", "")):
        raise UsageError(f"[{table}] url must not contain credentials; use secret_env or secret_file")
    settings = settings_file.convert(dict(section), WebhookSettings, table)
    for event in settings.events:
        if event not in EVENT_TYPES:
            raise settings_file.wrong_value(table, "events", f"any of {', '.join(EVENT_TYPES)}", event)
    # A payload names projects and tags, so it crosses a public network only encrypted.
    if not settings.allow_private_hosts and not settings.url.startswith("https://"):
        raise UsageError(f"[{table}] url: expected https://, unless allow_private_hosts is true")
    return settings
