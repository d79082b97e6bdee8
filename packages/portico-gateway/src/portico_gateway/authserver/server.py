"""OAuth authorization server: applies the protocol functions of this package to the rows of the store."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple, Protocol

import msgspec

from portico.auth.assertions import DPOP_ALGORITHM, verify_signature
from portico.rpc.supervision import BackgroundTasks
from portico.store.database import Database
from portico.store.errors import StoreError
from portico.store.event_bus import Subscription
from portico.store.transaction import Event, Transaction
from portico_gateway.authserver import store
from portico_gateway.authserver.client_metadata import ClientMetadataFetcher
from portico_gateway.authserver.clients import (
    OAuthClient,
    is_among,
    is_metadata_document_url,
    verify_client_authentication,
)
from portico_gateway.authserver.config import AuthorizationServerConfig
from portico_gateway.authserver.errors import OAuthErrorResponse
from portico_gateway.authserver.login_flow import LoginFlow, source_of
from portico_gateway.authserver.requests import AuthorizationRequest, validate_resource
from portico_gateway.authserver.signing_keys import SigningKeySet, load_keys, rotate_keys
from portico_gateway.authserver.upstream_login import Identity, is_allowed
from portico_gateway.credentials.encryption import DecryptionFailed, KeyRing

log = logging.getLogger("portico.access")

# Cache lifetime of a client's metadata document.
CLIENT_METADATA_TTL_SECONDS = 3600.0
# Larger identities are stored without their claims; only the mapped fields are retained.
MAX_IDENTITY_BYTES = 64 * 1024
_INVALID_CLIENT = OAuthErrorResponse("invalid_client", "Unknown client, or client authentication failed.", 401)


class TokenGrant(Protocol):
    """Redeems the credential of a token request. Returned errors are raised after the transaction was committed."""

    def __call__(
        self,
        tx: Transaction,
        settings: AuthorizationServerConfig,
        client: OAuthClient,
        form: Mapping[str, str],
        now: float,
        ring: KeyRing,
    ) -> store.IssuedGrant | store.ReplayedCredential | OAuthErrorResponse: ...


class TokenResponse(NamedTuple):
    """Successful response of the token endpoint."""

    access_token: str
    refresh_token: str
    scope: str


class AuthorizationServer:
    """Authorization server in front of an external identity provider. It shares the store of the login flow."""

    def __init__(self, settings: AuthorizationServerConfig, logins: LoginFlow) -> None:
        self.settings = settings
        self.login_flow = logins
        self.keyring = logins.keyring
        self._keys: SigningKeySet | None = None
        self._configured = {client.id: client for client in settings.clients}
        self._documents = ClientMetadataFetcher(settings)
        # Revoked grants whose access tokens may not have expired yet → time until which to remember them.
        self._revoked: dict[str, float] = {}
        # Grant type → function that redeems the credential of a token request in a transaction.
        self.token_grants: dict[str, TokenGrant] = {
            "authorization_code": store.redeem_code,
            "refresh_token": store.rotate_refresh_token,
        }
        # Called when a grant is revoked in this or another process.
        self.on_revoked: Callable[[], None] | None = None

    @property
    def database(self) -> Database:
        return self.login_flow.database

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        # Subscribe before loading, so that a revocation between the two is not missed.
        async with self.database.subscribe(store.REVOKED, store.KEYS) as events:
            await self.get_signing_keys()
            await self._load_revocations()
            supervisor = BackgroundTasks()
            supervisor.run("authorization server changes", partial(self._listen, events))
            try:
                yield
            finally:
                await supervisor.close()

    async def _listen(self, events: Subscription) -> None:
        async for event in events:
            try:
                await self._on_event(event)
            except StoreError as failure:
                log.warning("revocations may be applied late: %s", failure)

    async def _on_event(self, event: Event) -> None:
        if event.topic == store.KEYS:
            self._keys = await self.database.read(partial(_read_keys, self))
        elif event.payload:
            self._mark_revoked(event.payload)
        else:
            await self._load_revocations()

    async def _load_revocations(self) -> None:
        # Older revocations need not be remembered: their access tokens have expired.
        since = time.time() - self.settings.access_seconds
        for grant_id in await self.database.read(partial(store.revoked_since, timestamp=since)):
            self._mark_revoked(grant_id)

    # Keys and tokens

    @property
    def keys(self) -> SigningKeySet | None:
        """Return the keys as of the last read, or None before the first one."""
        return self._keys

    async def get_signing_keys(self) -> SigningKeySet:
        """Return the key set, with a key that may sign; rotate the keys if the newest one is too old."""
        keys = self._keys
        if keys is None or keys.fresh_until <= time.time():
            keys = self._keys = await self.database.write(
                partial(rotate_keys, key_ring=self.keyring, settings=self.settings, now=time.time()),
                isolation="read committed",
            )
        return keys

    async def get_public_keys(self) -> list[dict[str, Any]]:
        """Read the keys from the store and return the public ones as JWKs."""
        # Always from the store: another process may have rotated the keys, and a client that fetches the JWKS because
        # of an unknown key ID must find it.
        self._keys = await self.database.read(partial(_read_keys, self))
        return self._keys.jwks_keys()

    def is_revoked(self, grant_id: str) -> bool:
        return grant_id in self._revoked

    def _mark_revoked(self, grant_id: str) -> None:
        now = time.time()
        for old in [token_id for token_id, until in self._revoked.items() if until < now]:
            del self._revoked[old]
        # Twice the token lifetime also covers tokens that other processes issued just before they saw the event.
        self._revoked[grant_id] = now + 2 * self.settings.access_seconds
        if self.on_revoked is not None:
            self.on_revoked()

    # Clients

    async def get_client(self, client_id: str, address: str = "") -> OAuthClient:
        """Return the client of an authorization request; `address` is the peer that sent it.

        Raises ErrorPageResponse if the client is unknown or its metadata document is invalid.
        """
        configured = self._configured.get(client_id)
        if configured is None:
            configured = await self.database.read(
                partial(store.find_client, client_id=client_id, now=time.time(), ring=self.keyring)
            )
        if configured is not None:
            return configured
        client = await self._documents.fetch(client_id, address)
        now = time.time()
        until, source = now + CLIENT_METADATA_TTL_SECONDS, source_of(address)
        keep = partial(store.keep_client, client=client, now=now, expires_at=until, ring=self.keyring, source=source)
        await self.database.write(keep)
        return client

    async def is_approved(self, client: OAuthClient, uri: str) -> bool:
        """Return whether a browser may be redirected to a client without a new consent (RFC 9700, section 4.11.2).

        This holds if the operator registered the client, or a user approved it with this redirect URI before.
        """
        if client.kind == "configured":
            return True
        find = partial(store.approved_redirects, client_id=client.id, now=time.time(), ring=self.keyring)
        return is_among(uri, await self.database.read(find))

    async def register_client(self, client: OAuthClient, address: str = "") -> None:
        now, source = time.time(), source_of(address)
        keep = partial(
            store.keep_client,
            client=client,
            now=now,
            expires_at=now + store.UNUSED_CLIENT_TTL_SECONDS,
            ring=self.keyring,
            source=source,
        )
        await self.database.write(keep)

    async def authenticate_client(self, form: Mapping[str, str], basic: tuple[str, str] | None) -> OAuthClient:
        """Authenticate the client of a token request. Raises OAuthErrorResponse with `invalid_client`."""
        client_id = basic[0] if basic is not None else form.get("client_id", "")
        # RFC 6749, section 2.3: a client must not use more than one authentication method; two different IDs could
        # authenticate one client and act for the other.
        if basic is not None and form.get("client_id", client_id) != client_id:
            raise _INVALID_CLIENT
        configured = self._configured.get(client_id)
        if configured is None:
            # Accept expired rows: a metadata document has no secret, and its code or token is bound to the client ID.
            configured = await self.database.read(
                partial(store.find_client, client_id=client_id, now=0.0, ring=self.keyring)
            )
        if configured is None and self.settings.client_id_metadata_documents and is_metadata_document_url(client_id):
            configured = OAuthClient(id=client_id, redirect_uris=(), kind="document")
        if configured is None or not verify_client_authentication(configured, form, basic):
            raise _INVALID_CLIENT
        return configured

    async def issue_code(self, request: AuthorizationRequest, identity: Identity) -> str:
        """Create a grant for a user who logged in and return its authorization code."""
        return await self.database.write(
            partial(
                store.create_code,
                settings=self.settings,
                request=request,
                subject=identity.subject,
                identity=self.encode_identity(identity),
                key_ring=self.keyring,
                now=time.time(),
            )
        )

    def encode_identity(self, user: Identity) -> bytes:
        """Return the JSON of an identity, without its claims if they are too large."""
        identity = msgspec.json.encode(user)
        # A provider may return hundreds of groups or nested claims; the row would then be copied with every refresh.
        if len(identity) > MAX_IDENTITY_BYTES:
            identity = msgspec.json.encode(msgspec.structs.replace(user, claims={}))
        return identity

    # The token endpoint

    async def exchange_token(self, client: OAuthClient, form: Mapping[str, str]) -> TokenResponse:
        """Exchange an authorization code, a device code or a refresh token for tokens. Raises OAuthErrorResponse."""
        redeem = self.token_grants.get(form.get("grant_type", ""))
        if redeem is None:
            *others, last = self.token_grants
            raise OAuthErrorResponse("unsupported_grant_type", f"grant_type must be {', '.join(others)} or {last}.")
        if "resource" in form:
            form = {**form, "resource": validate_resource(form, self.settings, OAuthErrorResponse)}
        done = await self.database.write(
            partial(redeem, settings=self.settings, client=client, form=form, now=time.time(), ring=self.keyring)
        )
        if isinstance(done, OAuthErrorResponse):
            raise done
        # RFC 9700, section 4.14.2, and RFC 6749, section 4.1.2: a code or refresh token that is used twice was
        # stolen, and it is unknown who came first. All tokens of the grant are revoked.
        if isinstance(done, store.ReplayedCredential):
            log.warning("a code or refresh token of grant %s was reused; the grant is revoked", done.grant_id)
            self._mark_revoked(done.grant_id)
            raise OAuthErrorResponse("invalid_grant", "The grant is invalid, expired or was already used.")
        identity = await self._recheck_identity(done.grant)
        keys = await self.get_signing_keys()
        return TokenResponse(
            keys.issue_access_token(done.grant, identity.token_claims(), time.time()),
            done.refresh_token,
            done.grant.scope,
        )

    async def _recheck_identity(self, grant: store.GrantRow) -> Identity:
        """Return the user of a grant, if still allowed; the operator may have changed `allow` since the login.

        Raises OAuthErrorResponse with `invalid_grant`, and revokes the grant of a user who is no longer allowed.
        """
        try:
            identity = msgspec.json.decode(
                self.keyring.decrypt(grant.identity, f"provider_grant {grant.id}"), type=Identity
            )
        except DecryptionFailed as failure:
            log.warning("a user must log in again: %s", failure)
            raise OAuthErrorResponse("invalid_grant", "The user must log in again.") from None
        if not is_allowed(self.login_flow.provider, identity):
            await self.database.write(partial(store.revoke, grant_id=grant.id, now=time.time()))
            self._mark_revoked(grant.id)
            raise OAuthErrorResponse("invalid_grant", "The user may no longer use this server.")
        return identity

    async def revoke(self, client: OAuthClient, token: str) -> None:
        """Revoke the grant of a refresh or access token. Unknown tokens are ignored (RFC 7009, section 2.2)."""
        now = time.time()
        revoked = await self.database.write(partial(store.revoke_token, client=client, token=token, now=now))
        if revoked is None:
            # RFC 7009 lets a client revoke an access token as well. Its signature is verified first, so that a forged
            # token cannot revoke another client's grant.
            claims = verify_signature(token, {"keys": (await self.get_signing_keys()).jwks_keys()}, [DPOP_ALGORITHM])
            revoked = str(claims["gid"]) if claims is not None and claims.get("client_id") == client.id else None
            if revoked is not None:
                await self.database.write(partial(store.revoke_grant, client=client, grant_id=revoked, now=now))
        if revoked is not None:
            self._mark_revoked(revoked)


def _read_keys(server: AuthorizationServer, tx: Any) -> SigningKeySet:
    return load_keys(tx, server.keyring, server.settings, time.time())
