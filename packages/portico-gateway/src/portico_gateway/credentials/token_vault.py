"""Token vault: users' tokens for upstreams, stored encrypted and renewed by one process at a time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec

from portico.auth.authorization_code import PendingAuthorization
from portico.auth.client_registration import ClientRegistration
from portico.auth.errors import AuthorizationError, GrantDenied
from portico.auth.token_storage import MemoryStorage, TokenStorage
from portico.auth.tokens import Token
from portico.caching import LruCache
from portico.protocol.errors import UsageError
from portico.rpc.supervision import BackgroundTasks
from portico.store.database import Database
from portico.store.event_bus import Subscription
from portico.transports.http_client.oauth_fetcher import OAuthFetcher, resolve_addresses
from portico_gateway.credentials import upstream_accounts, vault_store
from portico_gateway.credentials.encryption import DecryptionFailed, KeyRing
from portico_gateway.credentials.upstream_accounts import UpstreamAccount
from portico_gateway.credentials.vault_store import CredentialKey, StoredToken

log = logging.getLogger("portico.access")

MIGRATIONS = Path(__file__).with_name("migrations")
# Renew a token this long before it expires, or in the last fifth of a shorter lifetime.
# Two minutes cover clock differences and a call that starts with the token just before it expires.
RENEW_BEFORE_EXPIRY_SECONDS = 120.0
# Lease for one renewal; after it, another process tries.
# Longer than the timeout of a token request, so that a slow authorization server does not lead to two concurrent
# refreshes: with rotating refresh tokens the second one would revoke the grant (RFC 9700, section 4.14.2).
RENEWAL_LEASE_SECONDS = 40.0
# Decrypted tokens are held in memory only, and for at most this many users.
MAX_CACHED_TOKENS = 10_000


class TokenVault:
    """Stores and renews users' tokens. `home` is the public base URL of the pages."""

    def __init__(self, home: str, store: str | None, ring: KeyRing) -> None:
        self.base_url = home
        self._store = store or "sqlite://"
        self._keyring = ring
        self._database: Database | None = None
        self._known: LruCache[CredentialKey, tuple[StoredToken, Token]] = LruCache(MAX_CACHED_TOKENS)
        # Counts invalidations. A read that started before one must not fill the cache.
        self._turn = 0
        self._locks: dict[CredentialKey, asyncio.Lock] = {}
        self._changes: dict[str, set[asyncio.Event]] = {}
        self._tasks = BackgroundTasks()
        self._fetchers: dict[str, OAuthFetcher] = {}
        # Encrypts all rows again, once after a key rotation.
        self.reseal_task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        async with Database(self._store) as database:
            await database.migrate("vault", MIGRATIONS)
            self._database = database
            async with database.subscribe(vault_store.CHANGE_CHANNEL) as events:
                self._tasks.start(self._listen(events))
                self.reseal_task = self._tasks.start(self._reseal())
                try:
                    yield
                finally:
                    await self._tasks.close()
                    for fetcher in self._fetchers.values():
                        await fetcher.close()
                    self._known.clear()
                    self._database = None

    @property
    def database(self) -> Database:
        if self._database is None:
            raise UsageError("the token vault is not open")
        return self._database

    # Reading

    async def get_token(
        self, account: UpstreamAccount, key: CredentialKey, rejected_token: str | None = None
    ) -> Token | None:
        """Return the principal's token for an upstream, or None if the user must connect the account.

        `rejected_token` is an access token that the upstream did not accept; it is not returned again.
        """
        result = await self._find_for(account, key)
        if result is None:
            return None
        row, token = result
        now = time.time()
        # A token that is still valid is returned immediately; its renewal runs in the background.
        if token.access_token != rejected_token and not token.is_expired(now):
            if _needs_renewal(token, row, now) and token.refresh_token is not None:
                self._tasks.start(self._renew_ahead(account, key))
            return token
        return await self._get_renewed(account, key, rejected_token)

    async def _find_for(self, account: UpstreamAccount, slot: CredentialKey) -> tuple[StoredToken, Token] | None:
        """Return the principal's stored token if it was issued for the upstream's current URL.

        An alias may have been reassigned to another server, which must not receive the credentials of the first.
        """
        token = await self._load_token(slot)
        if token is None or token[1].is_for(account.url):
            return token
        log.warning(
            "a user's credential for %s was issued for %s, but %s is now at %s: the user must connect again",
            slot.upstream, token[1].server or token[1].resource, slot.upstream, account.url,
        )  # fmt: skip
        return None

    async def _load_token(self, slot: CredentialKey) -> tuple[StoredToken, Token] | None:
        # The counter is read before the query. If another process changes the token while the query runs, its result
        # must not enter the cache after the invalidation.
        cached, turn = self._known.get(slot), self._turn
        if cached is None:
            row = await self.database.read(partial(vault_store.find_token, slot=slot))
            if row is None:
                return None
            try:
                token = msgspec.json.decode(self._keyring.decrypt(row.body, row.seal_context), type=Token)
            except (DecryptionFailed, msgspec.DecodeError) as failure:
                log.warning("cannot decrypt a credential for %s: %s", slot.upstream, failure)
                return None
            cached = row, token
            if turn == self._turn:
                self._known[slot] = cached
        return cached

    def _invalidate(self, slot: CredentialKey | None = None) -> None:
        """Remove one or all tokens from the cache, and keep reads in progress from filling it."""
        self._turn += 1
        if slot is None:
            self._known.clear()
        else:
            self._known.pop(slot, None)

    async def discard_token(self, slot: CredentialKey, token: Token) -> None:
        """Delete a token that the upstream rejected, unless it was replaced already."""
        result = await self._load_token(slot)
        # The user may have connected again since the token was rejected; the new token must survive.
        if result is not None and result[1].access_token == token.access_token:
            await self.database.write(partial(vault_store.replace_token, row=result[0], body=None, now=time.time()))
            self._invalidate(slot)

    async def connected_upstreams(self, principal: str) -> list[str]:
        """Return the upstreams for which a principal has a token."""
        result = await self.database.read(partial(vault_store.list_keys_of, principal=principal))
        return [slot.upstream for slot in result]

    async def disconnect(self, slot: CredentialKey) -> bool:
        """Delete the principal's token for an upstream. Return whether there was one."""
        deleted = await self.database.write(partial(vault_store.delete_token, slot=slot))
        self._invalidate(slot)
        return deleted

    # Renewal

    async def _renew_ahead(self, account: UpstreamAccount, slot: CredentialKey) -> None:
        # A renewal is running already; a second one in the background would only wait for it.
        if not self._lock(slot).locked():
            with contextlib.suppress(AuthorizationError):
                await self._get_renewed(account, slot, None, ahead=True)

    async def _get_renewed(
        self, account: UpstreamAccount, slot: CredentialKey, refused: str | None, *, ahead: bool = False
    ) -> Token | None:
        """Return a renewed token, waiting for a renewal in another process if there is one.

        Raises AuthorizationError if the renewal fails or takes too long.
        """
        async with self._lock(slot):
            until = time.monotonic() + RENEWAL_LEASE_SECONDS
            while time.monotonic() < until:
                # Subscribe before reading the row, so that a change between the two is not missed.
                with self._wait_for_change(slot) as changed:
                    self._invalidate(slot)
                    result = await self._find_for(account, slot)
                    if result is None:
                        return None
                    row, token = result
                    now = time.time()
                    late = ahead and _needs_renewal(token, row, now)
                    if token.access_token != refused and not token.is_expired(now) and not late:
                        return token  # another call or process renewed it
                    if token.refresh_token is None:
                        await self.discard_token(slot, token)
                        return None
                    begin = partial(
                        vault_store.acquire_renewal_lease, row=row, now=now, until=now + RENEWAL_LEASE_SECONDS
                    )
                    if await self.database.write(begin, isolation="read committed"):
                        return await self._renew(account, slot, row, token)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(max(0.1, (row.renewing_until or now) - now)):
                            await changed.wait()
        raise AuthorizationError(f"Renewing the credential for {slot.upstream} takes too long.")

    async def _renew(
        self, account: UpstreamAccount, slot: CredentialKey, row: StoredToken, held: Token
    ) -> Token | None:
        storage = await self._client_credentials(account)
        try:
            token = await self._fetcher(account).run_conversation(
                upstream_accounts.refresh_token(account, self.base_url, storage, held)
            )
        except GrantDenied as denial:
            # These errors are final (RFC 6749, section 5.2): the refresh token will never work again. Other errors
            # may be temporary, so the credential is retained.
            if denial.error in ("invalid_grant", "unauthorized_client", "invalid_client"):
                log.info("a credential for %s was rejected and deleted: %s", slot.upstream, denial)
                await self.database.write(partial(vault_store.replace_token, row=row, body=None, now=time.time()))
                self._invalidate(slot)
                return None
            await self.database.write(partial(vault_store.release_renewal_lease, row=row))
            raise
        # Release the lease on cancellation too, so that other processes need not wait until it expires.
        except BaseException:
            await self.database.write(partial(vault_store.release_renewal_lease, row=row))
            raise
        # Record the URL for which the token was issued; `_find_for` refuses it for any other.
        token = msgspec.structs.replace(token, server=account.url)
        body = self._keyring.encrypt(msgspec.json.encode(token), row.seal_context)
        await self.database.write(partial(vault_store.replace_token, row=row, body=body, now=time.time()))
        self._invalidate(slot)
        return token

    # Connecting

    async def begin_authorization(self, account: UpstreamAccount) -> tuple[str, PendingAuthorization]:
        """Return the URL where the user authorizes access, and the state to store until the browser returns."""
        storage = await self._client_credentials(account)
        url, pending = await self._fetcher(account).run_conversation(
            upstream_accounts.begin_authorization(account, self.base_url, storage)
        )
        await self._store_client(account, pending.issuer, storage)
        return url, pending

    async def complete_authorization(
        self, account: UpstreamAccount, slot: CredentialKey, pending: PendingAuthorization, returned: Mapping[str, str]
    ) -> None:
        """Redeem the authorization code and store the token for its principal."""
        storage = await self._client_credentials(account)
        finish = upstream_accounts.redeem_code(account, self.base_url, storage, pending, returned)
        token = msgspec.structs.replace(await self._fetcher(account).run_conversation(finish), server=account.url)
        row = StoredToken(slot.principal, slot.upstream, token.issuer, "", time.time())
        row = msgspec.structs.replace(row, body=self._keyring.encrypt(msgspec.json.encode(token), row.seal_context))
        await self.database.write(partial(vault_store.put_token, row=row))
        self._invalidate(slot)

    async def wait_until_connected(self, account: UpstreamAccount, slot: CredentialKey, seconds: float) -> bool:
        """Wait up to `seconds` until the principal has a credential for this upstream. Return whether there is one."""
        # Subscribe before the first check, so that no change is missed.
        with self._wait_for_change(slot) as changed:
            if await self._find_for(account, slot) is not None:
                return True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await changed.wait()
        return await self._find_for(account, slot) is not None

    async def _client_credentials(self, account: UpstreamAccount) -> TokenStorage:
        """Return our client registrations at the upstream's issuers. The storage contains no tokens."""
        storage = TokenStorage(MemoryStorage())
        for issuer, body in await self.database.read(partial(vault_store.find_clients, upstream=account.alias)):
            with contextlib.suppress(DecryptionFailed, msgspec.DecodeError):
                plain = self._keyring.decrypt(body, f"vault_client {account.alias}\0{issuer}")
                storage.store_registration(issuer, msgspec.json.decode(plain, type=ClientRegistration))
        # A configured client stays bound to the issuer with which it was first used (2026-07-28, Authorization), so
        # that an
        # upstream cannot redirect the client secret to another issuer.
        if account.client is not None:
            client = account.client.client_id
            find = partial(vault_store.find_client_issuer, upstream=account.alias, url=account.url, client=client)
            bound = await self.database.read(find)
            if bound is not None:
                storage.bind_issuer(account.url, client, bound)
        return storage

    async def _store_client(self, account: UpstreamAccount, issuer: str, storage: TokenStorage) -> None:
        registration = storage.registration(issuer)
        if registration is not None:
            body = self._keyring.encrypt(msgspec.json.encode(registration), f"vault_client {account.alias}\0{issuer}")
            keep = partial(vault_store.put_client, upstream=account.alias, issuer=issuer, body=body)
            await self.database.write(keep)
        if account.client is not None:
            client = account.client.client_id
            bind = partial(
                vault_store.bind_client, upstream=account.alias, url=account.url, client=client, issuer=issuer
            )
            await self.database.write(bind)

    # Background tasks

    async def _listen(self, events: Subscription) -> None:
        async for event in events:
            self._invalidate(CredentialKey(*msgspec.json.decode(event.payload)) if event.payload else None)
            # An empty payload means that events may have been lost: invalidate everything.
            topics = [event.payload] if event.payload else list(self._changes)
            for item in [item for topic in topics for item in self._changes.get(topic, ())]:
                item.set()

    async def _reseal(self) -> None:
        """Encrypt rows of older keys with the current one, so that the older keys can be removed."""
        for row in await self.database.read(vault_store.list_tokens):
            if self._keyring.needs_rotation(row.body):
                with contextlib.suppress(DecryptionFailed):
                    body = self._keyring.encrypt(self._keyring.decrypt(row.body, row.seal_context), row.seal_context)
                    await self.database.write(
                        partial(vault_store.replace_token, row=row, body=body, now=row.updated_at)
                    )

    @contextlib.contextmanager
    def _wait_for_change(self, slot: CredentialKey) -> Iterator[asyncio.Event]:
        event = asyncio.Event()
        self._changes.setdefault(slot.topic, set()).add(event)
        try:
            yield event
        finally:
            self._changes[slot.topic].discard(event)
            if not self._changes[slot.topic]:
                del self._changes[slot.topic]

    def _lock(self, slot: CredentialKey) -> asyncio.Lock:
        """Return the lock of a credential, after dropping unused locks if there are too many."""
        if len(self._locks) > MAX_CACHED_TOKENS:
            self._locks = {key: lock for key, lock in self._locks.items() if lock.locked()}
        return self._locks.setdefault(slot, asyncio.Lock())

    def _fetcher(self, account: UpstreamAccount) -> OAuthFetcher:
        return self._fetchers.setdefault(account.url, OAuthFetcher(partial(resolve_addresses, account.url)))


def _needs_renewal(token: Token, row: StoredToken, now: float) -> bool:
    """Return whether a valid token should be renewed now."""
    if token.expires_at is None:
        return False
    life = token.expires_at - row.updated_at
    return now > token.expires_at - min(RENEW_BEFORE_EXPIRY_SECONDS, life / 5)
