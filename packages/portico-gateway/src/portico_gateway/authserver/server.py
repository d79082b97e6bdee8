"""The face: decisions of `auth.provider` on rows of the store, one after the other as a login goes."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

import msgspec

from portico.auth.assertions import ALGORITHM, verify_signature
from portico.rpc.supervision import BackgroundTasks
from portico.store.database import Database
from portico.store.errors import StoreError
from portico.store.event_bus import Subscription
from portico.store.transaction import Event
from portico_gateway.authserver import store
from portico_gateway.authserver.client_metadata import ClientDocuments
from portico_gateway.authserver.clients import KnownClient, authenticated, is_among, is_document_url
from portico_gateway.authserver.config import FaceSettings
from portico_gateway.authserver.errors import GrantRefused
from portico_gateway.authserver.login_flow import BrowserLogins, source_of
from portico_gateway.authserver.requests import AuthorizationRequest, target
from portico_gateway.authserver.signing_keys import FaceKeys, fresh_keys, read_keys
from portico_gateway.authserver.upstream_login import Identity, admits
from portico_gateway.credentials.encryption import Unsealable

log = logging.getLogger("portico.access")

# How long a client's document is believed.
DOCUMENT_SECONDS = 3600.0
# Of a person whose claims are longer than this, only the ones that have a meaning here are kept.
LONGEST_IDENTITY = 64 * 1024
_UNKNOWN = GrantRefused("invalid_client", "There is no such client, or it has not shown that it is the one.", 401)


class Issuance(NamedTuple):
    """What a client gets."""

    access_token: str
    refresh_token: str
    scope: str


class Face:
    """An authorization server of our own in front of a login elsewhere. Its rows are those of the logins."""

    def __init__(self, settings: FaceSettings, logins: BrowserLogins) -> None:
        self.settings = settings
        self.logins = logins
        self.ring = logins.ring
        self._keys: FaceKeys | None = None
        self._configured = {client.id: client for client in settings.clients}
        self._documents = ClientDocuments(settings)
        # Grants that were revoked while access tokens of theirs may still be about, and until when to remember.
        self._revoked: dict[str, float] = {}
        # Called when a grant is revoked, by whichever process.
        self.on_revoked: Callable[[], None] | None = None

    @property
    def database(self) -> Database:
        return self.logins.database

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        async with self.database.subscribe(store.REVOKED, store.KEYS) as events:
            await self.fresh_keys()
            await self._recall()
            supervisor = BackgroundTasks()
            supervisor.run("authorization server changes", partial(self._listen, events))
            try:
                yield
            finally:
                await supervisor.close()

    async def _listen(self, events: Subscription) -> None:
        async for event in events:
            try:
                await self._hear(event)
            except StoreError as failure:
                log.warning("what was revoked may be seen late: %s", failure)

    async def _hear(self, event: Event) -> None:
        if event.topic == store.KEYS:
            self._keys = await self.database.read(partial(_read_keys, self))
        elif event.payload:
            self._note_revoked(event.payload)
        else:
            await self._recall()

    async def _recall(self) -> None:
        since = time.time() - self.settings.access_seconds
        for grant_id in await self.database.read(partial(store.revoked_since, moment=since)):
            self._note_revoked(grant_id)

    # Keys and tokens

    @property
    def keys(self) -> FaceKeys | None:
        """As they were last read."""
        return self._keys

    async def fresh_keys(self) -> FaceKeys:
        """The keys, with one that may sign."""
        keys = self._keys
        if keys is None or keys.fresh_until <= time.time():
            keys = self._keys = await self.database.write(
                partial(fresh_keys, ring=self.ring, face=self.settings, now=time.time()), isolation="read committed"
            )
        return keys

    async def known_keys(self) -> list[dict[str, Any]]:
        """The public keys, as they are in the store now."""
        self._keys = await self.database.read(partial(_read_keys, self))
        return self._keys.public()

    def is_revoked(self, grant_id: str) -> bool:
        return grant_id in self._revoked

    def _note_revoked(self, grant_id: str) -> None:
        now = time.time()
        for old in [one for one, until in self._revoked.items() if until < now]:
            del self._revoked[old]
        self._revoked[grant_id] = now + 2 * self.settings.access_seconds
        if self.on_revoked is not None:
            self.on_revoked()

    # Clients

    async def client(self, client_id: str, address: str = "") -> KnownClient:
        """Return a client that asks for a user's consent, from an address. Raises PageRefused."""
        known = self._configured.get(client_id)
        if known is None:
            known = await self.database.read(
                partial(store.find_client, client_id=client_id, now=time.time(), ring=self.ring)
            )
        if known is not None:
            return known
        client = await self._documents.fetch(client_id)
        now = time.time()
        until, source = now + DOCUMENT_SECONDS, source_of(address)
        keep = partial(store.keep_client, client=client, now=now, expires_at=until, ring=self.ring, source=source)
        await self.database.write(keep)
        return client

    async def is_approved(self, client: KnownClient, uri: str) -> bool:
        """Whether a browser may be sent to a client without a user's decision (RFC 9700, 4.11.2): the operator has
        registered it, or a user has let it in at this redirect URI before."""
        if client.kind == "configured":
            return True
        find = partial(store.approved_redirects, client_id=client.id, now=time.time(), ring=self.ring)
        return is_among(uri, await self.database.read(find))

    async def register(self, client: KnownClient, address: str = "") -> None:
        now, source = time.time(), source_of(address)
        keep = partial(
            store.keep_client,
            client=client,
            now=now,
            expires_at=now + store.UNUSED_SECONDS,
            ring=self.ring,
            source=source,
        )
        await self.database.write(keep)

    async def authenticate(self, form: Mapping[str, str], basic: tuple[str, str] | None) -> KnownClient:
        """The client of a request to the token endpoint. Raises GrantRefused."""
        client_id = basic[0] if basic is not None else form.get("client_id", "")
        if basic is not None and form.get("client_id", client_id) != client_id:
            raise _UNKNOWN
        known = self._configured.get(client_id)
        if known is None:
            # However old: a document has no secret to look up, and its code or token is bound to its name.
            known = await self.database.read(partial(store.find_client, client_id=client_id, now=0.0, ring=self.ring))
        if known is None and self.settings.documents and is_document_url(client_id):
            known = KnownClient(id=client_id, redirect_uris=(), kind="document")
        if known is None or not authenticated(known, form, basic):
            raise _UNKNOWN
        return known

    async def grant(self, asked: AuthorizationRequest, who: Identity) -> str:
        """A code."""
        identity = msgspec.json.encode(who)
        if len(identity) > LONGEST_IDENTITY:
            identity = msgspec.json.encode(msgspec.structs.replace(who, claims={}))
        return await self.database.write(
            partial(
                store.grant_code,
                face=self.settings,
                asked=asked,
                subject=who.subject,
                identity=identity,
                ring=self.ring,
                now=time.time(),
            )
        )

    # The token endpoint

    async def token(self, client: KnownClient, form: Mapping[str, str]) -> Issuance:
        """Raises GrantRefused."""
        kinds = {"authorization_code": store.redeem_code, "refresh_token": store.rotate}
        redeem = kinds.get(form.get("grant_type", ""))
        if redeem is None:
            raise GrantRefused("unsupported_grant_type", "The grant_type is authorization_code or refresh_token.")
        if "resource" in form:
            form = {**form, "resource": target(form, self.settings, GrantRefused)}
        done = await self.database.write(
            partial(redeem, face=self.settings, client=client, form=form, now=time.time(), ring=self.ring)
        )
        if isinstance(done, store.Reused):
            log.warning("a code or refresh token of the grant %s came again; the grant is revoked", done.grant_id)
            self._note_revoked(done.grant_id)
            raise GrantRefused("invalid_grant", "It is not valid, has expired or was used before.")
        who = await self._still_admitted(done.grant)
        keys = await self.fresh_keys()
        return Issuance(keys.access_token(done.grant, who.told(), time.time()), done.refresh_token, done.grant.scope)

    async def _still_admitted(self, grant: store.GrantRow) -> Identity:
        """Who it is, if they may still come in: the operator may have changed their mind since they logged in."""
        try:
            who = msgspec.json.decode(self.ring.open(grant.identity, f"provider_grant {grant.id}"), type=Identity)
        except Unsealable as failure:
            log.warning("a person has to log in again: %s", failure)
            raise GrantRefused("invalid_grant", "The person has to log in again.") from None
        if not admits(self.logins.where, who):
            await self.database.write(partial(store.revoke, grant_id=grant.id, now=time.time()))
            self._note_revoked(grant.id)
            raise GrantRefused("invalid_grant", "The person may no longer use this server.")
        return who

    async def revoke(self, client: KnownClient, token: str) -> None:
        """RFC 7009: what is not there is revoked already."""
        now = time.time()
        revoked = await self.database.write(partial(store.revoke_token, client=client, token=token, now=now))
        if revoked is None:
            claims = verify_signature(token, {"keys": (await self.fresh_keys()).public()}, [ALGORITHM])
            revoked = str(claims["gid"]) if claims is not None and claims.get("client_id") == client.id else None
            if revoked is not None:
                await self.database.write(partial(store.revoke_grant, client=client, grant_id=revoked, now=now))
        if revoked is not None:
            self._note_revoked(revoked)


def _read_keys(face: Face, tx: Any) -> FaceKeys:
    return read_keys(tx, face.ring, face.settings, time.time())
