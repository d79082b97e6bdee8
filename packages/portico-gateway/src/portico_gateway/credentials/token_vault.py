"""The vault: tokens of people at upstreams, in the store. Those about to end are renewed, once for all processes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from portico.auth.authorization_code import PendingCode
from portico.auth.client_registration import Registration
from portico.auth.errors import AuthorizationFailed, GrantDenied
from portico.auth.token_storage import Credentials, Memory
from portico.auth.tokens import Token
from portico.protocol.errors import UsageError
from portico.store.database import Database
from portico.store.event_bus import Subscription
from portico.transports.http_client.oauth_fetcher import Fetcher, addresses_of
from portico_gateway.credentials import upstream_accounts, vault_store
from portico_gateway.credentials.encryption import KeyRing, Unsealable
from portico_gateway.credentials.upstream_accounts import UpstreamAccount
from portico_gateway.credentials.vault_store import CredentialSlot, VaultRow

log = logging.getLogger("portico.access")

MIGRATIONS = Path(__file__).with_name("migrations")
# A token is renewed this long before its end, or in the last fifth of a short life.
AHEAD_SECONDS = 120.0
# How long one process has to renew a token, before another tries.
RENEWAL_SECONDS = 40.0
MOST_KNOWN = 10_000


class Vault:
    """`home` is what our pages are called from outside. Tokens are remembered here for as long as they are good."""

    def __init__(self, home: str, store: str | None, ring: KeyRing) -> None:
        self.home = home
        self._store = store or "sqlite://"
        self._ring = ring
        self._database: Database | None = None
        self._known: dict[CredentialSlot, tuple[VaultRow, Token]] = {}
        # How often something has changed.
        self._turn = 0
        self._locks: dict[CredentialSlot, asyncio.Lock] = {}
        self._changes: dict[str, set[asyncio.Event]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._fetchers: dict[str, Fetcher] = {}
        # Goes through all rows once, after a key was replaced.
        self.sealed_anew: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        async with Database(self._store) as database:
            await database.migrate("vault", MIGRATIONS)
            self._database = database
            async with database.subscribe(vault_store.CHANGED) as events:
                self._begin(self._listen(events))
                self.sealed_anew = self._begin(self._seal_anew())
                try:
                    yield
                finally:
                    for task in list(self._tasks):
                        task.cancel()
                    await asyncio.gather(*self._tasks, return_exceptions=True)
                    for fetcher in self._fetchers.values():
                        await fetcher.close()
                    self._known.clear()
                    self._database = None

    @property
    def database(self) -> Database:
        if self._database is None:
            raise UsageError("the vault is not open")
        return self._database

    # Using

    async def token(self, account: UpstreamAccount, slot: CredentialSlot, refused: str | None = None) -> Token | None:
        """Return the token of this principal for this upstream, or None if the user has to connect the account.

        `refused` is an access token that the upstream did not accept: it is not returned again.
        """
        found = await self._find_for(account, slot)
        if found is None:
            return None
        row, token = found
        now = time.time()
        if token.access_token != refused and not token.expired(now):
            if _is_late(token, row, now) and token.refresh_token is not None:
                self._begin(self._renew_ahead(account, slot))
            return token
        return await self._renewed(account, slot, refused)

    async def _find_for(self, account: UpstreamAccount, slot: CredentialSlot) -> tuple[VaultRow, Token] | None:
        """Return what is stored for this principal, if it was obtained for the URL that the upstream has now. An alias
        may have been given to another server, which must not see the credentials of the first."""
        found = await self._find(slot)
        if found is None or found[1].is_for(account.url):
            return found
        log.warning(
            "the credential of a user for %s was obtained for %s, and %s is at %s now: the user has to connect again",
            slot.upstream, found[1].server or found[1].resource, slot.upstream, account.url,
        )  # fmt: skip
        return None

    async def _find(self, slot: CredentialSlot) -> tuple[VaultRow, Token] | None:
        known, turn = self._known.get(slot), self._turn
        if known is None:
            row = await self.database.read(partial(vault_store.find, slot=slot))
            if row is None:
                return None
            try:
                token = msgspec.json.decode(self._ring.open(row.body, row.place), type=Token)
            except (Unsealable, msgspec.DecodeError) as failure:
                log.warning("a credential for %s cannot be opened: %s", slot.upstream, failure)
                return None
            known = row, token
            if turn == self._turn:
                if len(self._known) >= MOST_KNOWN:
                    self._known.clear()
                self._known[slot] = known
        return known

    def _drop(self, slot: CredentialSlot | None = None) -> None:
        """What is remembered of this one, or of all, is true no more; nor is what is being read."""
        self._turn += 1
        if slot is None:
            self._known.clear()
        else:
            self._known.pop(slot, None)

    async def forget(self, slot: CredentialSlot, token: Token) -> None:
        """A token is of no use any more."""
        found = await self._find(slot)
        if found is not None and found[1].access_token == token.access_token:
            await self.database.write(partial(vault_store.replace, row=found[0], body=None, now=time.time()))
            self._drop(slot)

    async def connected(self, principal: str) -> list[str]:
        """The upstreams where there is something of this principal's."""
        found = await self.database.read(partial(vault_store.slots_of, principal=principal))
        return [slot.upstream for slot in found]

    async def disconnect(self, slot: CredentialSlot) -> bool:
        """Forget what there is for this principal and upstream. Whether there was something."""
        gone = await self.database.write(partial(vault_store.remove, slot=slot))
        self._drop(slot)
        return gone

    # Renewing

    async def _renew_ahead(self, account: UpstreamAccount, slot: CredentialSlot) -> None:
        if not self._lock(slot).locked():
            with contextlib.suppress(AuthorizationFailed):
                await self._renewed(account, slot, None, ahead=True)

    async def _renewed(
        self, account: UpstreamAccount, slot: CredentialSlot, refused: str | None, *, ahead: bool = False
    ) -> Token | None:
        async with self._lock(slot):
            until = time.monotonic() + RENEWAL_SECONDS
            while time.monotonic() < until:
                with self._watching(slot) as changed:
                    self._drop(slot)
                    found = await self._find_for(account, slot)
                    if found is None:
                        return None
                    row, token = found
                    now = time.time()
                    late = ahead and _is_late(token, row, now)
                    if token.access_token != refused and not token.expired(now) and not late:
                        return token  # another call, or another process, was quicker
                    if token.refresh_token is None:
                        await self.forget(slot, token)
                        return None
                    begin = partial(vault_store.begin_renewal, row=row, now=now, until=now + RENEWAL_SECONDS)
                    if await self.database.write(begin, isolation="read committed"):
                        return await self._renew(account, slot, row, token)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(max(0.1, (row.renewing_until or now) - now)):
                            await changed.wait()
        raise AuthorizationFailed(f"The credential for {slot.upstream} is being renewed, and that takes too long.")

    async def _renew(self, account: UpstreamAccount, slot: CredentialSlot, row: VaultRow, held: Token) -> Token | None:
        known = await self._credentials(account)
        try:
            token = await self._fetcher(account).hold(upstream_accounts.renew(account, self.home, known, held))
        except GrantDenied as denial:
            if denial.error in ("invalid_grant", "unauthorized_client", "invalid_client"):
                log.info("a credential for %s was refused, and is forgotten: %s", slot.upstream, denial)
                await self.database.write(partial(vault_store.replace, row=row, body=None, now=time.time()))
                self._drop(slot)
                return None
            await self.database.write(partial(vault_store.end_renewal, row=row))
            raise
        except BaseException:
            await self.database.write(partial(vault_store.end_renewal, row=row))
            raise
        token = msgspec.structs.replace(token, server=account.url)
        body = self._ring.seal(msgspec.json.encode(token), row.place)
        await self.database.write(partial(vault_store.replace, row=row, body=body, now=time.time()))
        self._drop(slot)
        return token

    # Connecting

    async def begin(self, account: UpstreamAccount) -> tuple[str, PendingCode]:
        """The page where the person says yes, and what to remember until they are back."""
        known = await self._credentials(account)
        url, pending = await self._fetcher(account).hold(upstream_accounts.begin(account, self.home, known))
        await self._keep_client(account, pending.issuer, known)
        return url, pending

    async def connect(
        self, account: UpstreamAccount, slot: CredentialSlot, pending: PendingCode, returned: Mapping[str, str]
    ) -> None:
        """Keep what a person has allowed, for them alone."""
        known = await self._credentials(account)
        finish = upstream_accounts.finish(account, self.home, known, pending, returned)
        token = msgspec.structs.replace(await self._fetcher(account).hold(finish), server=account.url)
        row = VaultRow(slot.principal, slot.upstream, token.issuer, "", time.time())
        row = msgspec.structs.replace(row, body=self._ring.seal(msgspec.json.encode(token), row.place))
        await self.database.write(partial(vault_store.keep, row=row))
        self._drop(slot)

    async def wait(self, account: UpstreamAccount, slot: CredentialSlot, seconds: float) -> bool:
        """Wait up to `seconds` for a credential of this principal for this upstream. Return whether there is one."""
        with self._watching(slot) as changed:
            if await self._find_for(account, slot) is not None:
                return True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await changed.wait()
        return await self._find_for(account, slot) is not None

    async def _credentials(self, account: UpstreamAccount) -> Credentials:
        """What we know of ourselves at the upstream's issuers. No token is in it."""
        known = Credentials(Memory())
        for issuer, body in await self.database.read(partial(vault_store.find_clients, upstream=account.alias)):
            with contextlib.suppress(Unsealable, msgspec.DecodeError):
                plain = self._ring.open(body, f"vault_client {account.alias}\0{issuer}")
                known.keep_registration(issuer, msgspec.json.decode(plain, type=Registration))
        if account.client is not None:
            client = account.client.client_id
            find = partial(vault_store.find_client_issuer, upstream=account.alias, url=account.url, client=client)
            bound = await self.database.read(find)
            if bound is not None:
                known.bind(account.url, client, bound)
        return known

    async def _keep_client(self, account: UpstreamAccount, issuer: str, known: Credentials) -> None:
        registration = known.registration(issuer)
        if registration is not None:
            body = self._ring.seal(msgspec.json.encode(registration), f"vault_client {account.alias}\0{issuer}")
            keep = partial(vault_store.keep_client, upstream=account.alias, issuer=issuer, body=body)
            await self.database.write(keep)
        if account.client is not None:
            client = account.client.client_id
            bind = partial(
                vault_store.bind_client, upstream=account.alias, url=account.url, client=client, issuer=issuer
            )
            await self.database.write(bind)

    # What goes on meanwhile

    async def _listen(self, events: Subscription) -> None:
        async for event in events:
            self._drop(CredentialSlot(*msgspec.json.decode(event.payload)) if event.payload else None)
            # An empty payload may mean any of them.
            topics = [event.payload] if event.payload else list(self._changes)
            for one in [one for topic in topics for one in self._changes.get(topic, ())]:
                one.set()

    async def _seal_anew(self) -> None:
        """What an older key has sealed is sealed with the one in use, so that the older one can go."""
        for row in await self.database.read(vault_store.all_rows):
            if self._ring.outdated(row.body):
                with contextlib.suppress(Unsealable):
                    body = self._ring.seal(self._ring.open(row.body, row.place), row.place)
                    await self.database.write(partial(vault_store.replace, row=row, body=body, now=row.updated_at))

    @contextlib.contextmanager
    def _watching(self, slot: CredentialSlot) -> Iterator[asyncio.Event]:
        event = asyncio.Event()
        self._changes.setdefault(slot.topic, set()).add(event)
        try:
            yield event
        finally:
            self._changes[slot.topic].discard(event)
            if not self._changes[slot.topic]:
                del self._changes[slot.topic]

    def _lock(self, slot: CredentialSlot) -> asyncio.Lock:
        if len(self._locks) > MOST_KNOWN:
            self._locks = {one: lock for one, lock in self._locks.items() if lock.locked()}
        return self._locks.setdefault(slot, asyncio.Lock())

    def _fetcher(self, account: UpstreamAccount) -> Fetcher:
        return self._fetchers.setdefault(account.url, Fetcher(partial(addresses_of, account.url)))

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _is_late(token: Token, row: VaultRow, now: float) -> bool:
    """Whether it is time to renew a token that is still good."""
    if token.expires_at is None:
        return False
    life = token.expires_at - row.updated_at
    return now > token.expires_at - min(AHEAD_SECONDS, life / 5)
