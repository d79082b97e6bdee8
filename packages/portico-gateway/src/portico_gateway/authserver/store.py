"""What the face keeps, as functions of a Transaction. Each decision and what follows from it is one transaction: of
two that present the same code at once, one is the second.

Rows that say who may have a token are signed with the sealing key: a role that can write to the database must not be
able to make a code or a refresh token for another person's grant. Whether a row was used or revoked is not signed."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from portico.store.rows import json_column
from portico.store.transaction import Transaction
from portico_gateway.authserver.clients import KnownClient
from portico_gateway.authserver.config import FaceSettings
from portico_gateway.authserver.errors import GrantRefused
from portico_gateway.authserver.requests import AuthorizationRequest, verifies
from portico_gateway.credentials.encryption import KeyRing, digest

REVOKED, KEYS = "provider.revoked", "provider.keys"

CODE_SECONDS = 60.0
FLOW_SECONDS = 600.0
# Registrations cost their makers nothing, so those that no person logs in with are not kept.
UNUSED_SECONDS = 24 * 3600.0
MAX_CLIENTS = 50_000
MAX_FLOWS = 50_000
# Of these so many may come from one address (IPv6: /64), and from one wider network (IPv4: /24, IPv6: /48).
MAX_PER_NETWORK = 2_000
MAX_PER_WIDER_NETWORK = 10_000
# How many rows are removed at once when a table is full, so that the next ones find room.
_ROOM = 100

_CLIENTS, _GRANTS, _CODES, _TOKENS = b"rows of clients", b"rows of grants", b"rows of codes", b"rows of tokens"

_USED = GrantRefused("invalid_grant", "It is not valid, has expired or was used before.")


class Source(Struct, frozen=True):
    """Where a request comes from: the network of one sender, and a wider one that a sender may have all of."""

    network: str = ""
    wider_network: str = ""


class GrantRow(Struct, frozen=True):
    """What a person allowed a client."""

    id: str
    client: str
    subject: str
    identity: str
    scope: str
    resource: str
    created_at: float
    expires_at: float
    revoked_at: float | None = None
    signature: str | None = None

    def signed(self) -> tuple[str, ...]:
        expires = repr(self.expires_at)
        return self.id, self.client, self.subject, self.identity, self.scope, self.resource, expires


class _CodeRow(Struct, frozen=True):
    id: str
    grant_id: str
    redirect_uri: str
    challenge: str
    expires_at: float
    used_at: float | None
    signature: str | None

    def is_signed(self, ring: KeyRing) -> bool:
        signed = (self.id, self.grant_id, self.redirect_uri, self.challenge, repr(self.expires_at))
        return ring.signing.is_row_signed(_CODES, self.signature, *signed)


class _RefreshRow(Struct, frozen=True):
    grant_id: str
    expires_at: float
    used_at: float | None
    signature: str | None


class Renewed(Struct, frozen=True):
    """A grant that holds, and the refresh token that goes with it from now on."""

    grant: GrantRow
    refresh_token: str


class Reused(Struct, frozen=True):
    """A code or token that was used before came again: the grant is revoked, whichever of the two was the thief."""

    grant_id: str


# Clients


def find_client(tx: Transaction, client_id: str, now: float, ring: KeyRing) -> KnownClient | None:
    found = tx.maybe(
        tuple[str, str | None],
        "select body, signature from provider_client where id = :id and (expires_at is null or expires_at > :now)",
        {"id": client_id, "now": now},
    )
    if found is None or not ring.signing.is_row_signed(_CLIENTS, found[1], client_id, found[0]):
        return None
    return msgspec.json.decode(found[0], type=KnownClient)


def keep_client(
    tx: Transaction,
    client: KnownClient,
    now: float,
    expires_at: float | None,
    ring: KeyRing,
    source: Source = Source(),
) -> None:
    tx.run("delete from provider_client where expires_at < :now", {"now": now})
    # A flood pushes out what is as unused as itself, of its own networks first, and never a client that a user let in.
    _make_room(tx, "provider_client", MAX_CLIENTS, source)
    body = json_column(client)
    tx.run(
        "insert into provider_client (id, kind, body, created_at, expires_at, signature, network, wider_network) "
        "values (:id, :kind, :body, :now, :until, :signature, :network, :wider) on conflict (id) do update set "
        "body = excluded.body, expires_at = excluded.expires_at, signature = excluded.signature",
        {
            "id": client.id,
            "kind": client.kind,
            "body": body,
            "now": now,
            "until": expires_at,
            "signature": ring.signing.sign_row(_CLIENTS, client.id, body),
            "network": source.network,
            "wider": source.wider_network,
        },
    )


def _make_room(tx: Transaction, table: str, most: int, source: Source) -> None:
    """Remove the oldest rows that expire, of the network that has too many of them; if the table is full, of the
    network that has the most. A network that floods it never takes the room of others."""
    own = {"network": source.network, "wider": source.wider_network}
    temporary = f"from {table} where expires_at is not null"
    within = f"{temporary} and wider_network = :wider"
    if tx.one(int, f"select count(*) {within} and network = :network", own) >= MAX_PER_NETWORK:
        _remove_oldest(tx, table, own, 1)
    elif tx.one(int, f"select count(*) {within}", {"wider": source.wider_network}) >= MAX_PER_WIDER_NETWORK:
        _remove_largest(tx, table, within, {"wider": source.wider_network})
    if tx.one(int, f"select count(*) from {table}") >= most:
        order = "group by wider_network order by count(*) desc, min(expires_at) limit 1"
        found = tx.all(str, f"select wider_network {temporary} {order}")
        if not found:
            raise GrantRefused("temporarily_unavailable", "The server has too many clients; try again later.", 503)
        _remove_largest(tx, table, within, {"wider": found[0]})


def _remove_largest(tx: Transaction, table: str, within: str, wider: dict[str, str]) -> None:
    """Remove the oldest rows of the network that has the most of them within a wider one."""
    largest = f"select network, count(*) {within} group by network order by count(*) desc, min(expires_at) limit 1"
    [(network, count)] = tx.all(tuple[str, int], largest, wider)
    _remove_oldest(tx, table, {**wider, "network": network}, min(_ROOM, (count + 1) // 2))


def _remove_oldest(tx: Transaction, table: str, network: dict[str, str], count: int) -> None:
    oldest = (
        f"select id from {table} where expires_at is not null and network = :network and wider_network = :wider "
        f"order by expires_at limit {count}"
    )
    tx.run(f"delete from {table} where id in ({oldest})", network)


def approved_redirects(tx: Transaction, client_id: str, now: float, ring: KeyRing) -> set[str]:
    """Return the redirect URIs at which a user has let this client have a code, in a grant that still holds."""
    found = tx.all(
        _CodeRow,
        "select provider_code.id, grant_id, redirect_uri, challenge, provider_code.expires_at, used_at, "
        "provider_code.signature from provider_code join provider_grant on provider_grant.id = provider_code.grant_id "
        "where provider_grant.client = :client and provider_grant.revoked_at is null "
        "and provider_grant.expires_at > :now order by provider_code.expires_at desc limit 100",
        {"client": client_id, "now": now},
    )
    return {code.redirect_uri for code in found if code.is_signed(ring) and _is_grant_of(tx, code, client_id, ring)}


def _is_grant_of(tx: Transaction, code: _CodeRow, client_id: str, ring: KeyRing) -> bool:
    grant = tx.one(GrantRow, "select * from provider_grant where id = :id", {"id": code.grant_id})
    return grant.client == client_id and ring.signing.is_row_signed(_GRANTS, grant.signature, *grant.signed())


# Browsers on their way


def begin_flow(tx: Transaction, flow: str, browser: str, body: str, now: float, source: Source = Source()) -> None:
    tx.run("delete from provider_flow where expires_at < :now", {"now": now})
    _make_room(tx, "provider_flow", MAX_FLOWS, source)
    tx.run(
        "insert into provider_flow (id, browser, body, expires_at, network, wider_network) values "
        "(:id, :browser, :body, :until, :network, :wider)",
        {
            "id": digest(flow),
            "browser": digest(browser),
            "body": body,
            "until": now + FLOW_SECONDS,
            "network": source.network,
            "wider": source.wider_network,
        },
    )


def end_flow(tx: Transaction, flow: str, browser: str, now: float) -> str | None:
    """What a browser was about, once: a second time, or with another browser, there is nothing."""
    key = {"id": digest(flow), "browser": digest(browser), "now": now}
    where = "where id = :id and browser = :browser and expires_at > :now"
    body = tx.maybe(str, f"select body from provider_flow {where} for update", key)
    if body is not None:
        tx.run("delete from provider_flow where id = :id", {"id": key["id"]})
    return body


# Grants


def grant_code(
    tx: Transaction, face: FaceSettings, asked: AuthorizationRequest, subject: str, identity: bytes, ring: KeyRing,
    now: float,
) -> str:  # fmt: skip
    """A person said yes and is who they are: a code for the client."""
    grant_id, code = secrets.token_urlsafe(16), secrets.token_urlsafe(32)
    tx.run("delete from provider_grant where expires_at < :past", {"past": now - face.access_seconds})
    grant = GrantRow(
        id=grant_id,
        client=asked.client_id,
        subject=subject,
        identity=ring.seal(identity, f"provider_grant {grant_id}"),
        scope=" ".join(asked.scopes),
        resource=asked.resource,
        created_at=now,
        expires_at=now + face.login_every,
    )
    tx.run(
        "insert into provider_grant (id, client, subject, identity, scope, resource, created_at, expires_at, signature)"
        " values (:id, :client, :subject, :identity, :scope, :resource, :created_at, :expires_at, :signature)",
        msgspec.structs.asdict(grant) | {"signature": ring.signing.sign_row(_GRANTS, *grant.signed())},
    )
    until = now + CODE_SECONDS
    tx.run(
        "insert into provider_code (id, grant_id, redirect_uri, challenge, expires_at, signature) values "
        "(:id, :grant, :uri, :challenge, :until, :signature)",
        {
            "id": digest(code),
            "grant": grant_id,
            "uri": asked.redirect_uri,
            "challenge": asked.challenge,
            "until": until,
            "signature": ring.signing.sign_row(
                _CODES, digest(code), grant_id, asked.redirect_uri, asked.challenge, repr(until)
            ),
        },
    )
    # It is in use: it stays.
    tx.run(
        "update provider_client set expires_at = null where id = :id and kind = 'registered'", {"id": asked.client_id}
    )
    return code


def redeem_code(
    tx: Transaction, face: FaceSettings, client: KnownClient, form: Mapping[str, str], now: float, ring: KeyRing
) -> Renewed | Reused:
    """The grant of a code. One that comes again revokes all that the first had brought (OAuth 2.1, section 4.1.3)."""
    name = digest(form.get("code", ""))
    code = tx.maybe(
        _CodeRow,
        "select id, grant_id, redirect_uri, challenge, expires_at, used_at, signature from provider_code "
        "where id = :id for update",
        {"id": name},
    )
    if code is None or not code.is_signed(ring):
        raise _USED
    grant = _grant(tx, code.grant_id, ring)
    if grant.client != client.id:
        raise _USED  # another client's: it is none of this one's business whether there is such a code
    if code.used_at is not None:
        revoke(tx, grant.id, now)
        return Reused(grant.id)
    _check_target(form, grant)
    tx.run("update provider_code set used_at = :now where id = :id", {"now": now, "id": name})
    unfit = code.expires_at <= now or grant.revoked_at is not None or form.get("redirect_uri") != code.redirect_uri
    if unfit or not verifies(form.get("code_verifier", ""), code.challenge):
        revoke(tx, grant.id, now)
        return Reused(grant.id)
    return Renewed(grant, _refresh_token(tx, face, grant, now, ring))


def rotate(
    tx: Transaction, face: FaceSettings, client: KnownClient, form: Mapping[str, str], now: float, ring: KeyRing
) -> Renewed | Reused:
    """A refresh token for the next one. One that was used before revokes the grant (OAuth 2.1, section 4.3.1)."""
    name = digest(form.get("refresh_token", ""))
    token = _refresh(tx, name)
    if token is None or not ring.signing.is_row_signed(
        _TOKENS, token.signature, name, token.grant_id, repr(token.expires_at)
    ):
        raise _USED
    grant = _grant(tx, token.grant_id, ring)
    if grant.client != client.id:
        raise _USED
    if token.used_at is not None:
        revoke(tx, grant.id, now)
        return Reused(grant.id)
    if grant.revoked_at is not None or token.expires_at <= now or grant.expires_at <= now:
        raise _USED
    _check_target(form, grant)
    tx.run("update provider_refresh set used_at = :now where id = :id", {"now": now, "id": name})
    return Renewed(grant, _refresh_token(tx, face, grant, now, ring))


def _check_target(form: Mapping[str, str], grant: GrantRow) -> None:
    """RFC 8707, section 2.2: a token is for what the person was asked about, and nothing else."""
    if form.get("resource", grant.resource).rstrip("/") != grant.resource.rstrip("/"):
        raise GrantRefused("invalid_target", "The grant is for another resource.")


def revoke_token(tx: Transaction, client: KnownClient, token: str, now: float) -> str | None:
    """Revoke the grant of a refresh token (RFC 7009); the id of the grant if there was one of this client."""
    found = _refresh(tx, digest(token))
    grant = None if found is None else tx.maybe(GrantRow, _ONE_GRANT, {"id": found.grant_id})
    if grant is None or grant.client != client.id:
        return None
    revoke(tx, grant.id, now)
    return grant.id


def revoke_grant(tx: Transaction, client: KnownClient, grant_id: str, now: float) -> None:
    """The same, by what an access token names."""
    grant = tx.maybe(GrantRow, _ONE_GRANT, {"id": grant_id})
    if grant is not None and grant.client == client.id:
        revoke(tx, grant.id, now)


def revoke(tx: Transaction, grant_id: str, now: float) -> None:
    tx.run(
        "update provider_grant set revoked_at = :now where id = :id and revoked_at is null",
        {"now": now, "id": grant_id},
    )
    tx.publish(REVOKED, grant_id)


def revoke_person(tx: Transaction, subject: str, now: float) -> list[str]:
    """All that a person has allowed any client; the ids of what held until now."""
    found = tx.all(
        str,
        "select id from provider_grant where subject = :subject and revoked_at is null and expires_at > :now "
        "for update",
        {"subject": subject, "now": now},
    )
    for grant_id in found:
        revoke(tx, grant_id, now)
    return found


def revoked_since(tx: Transaction, moment: float) -> list[str]:
    return tx.all(str, "select id from provider_grant where revoked_at >= :moment", {"moment": moment})


_ONE_GRANT = "select * from provider_grant where id = :id for update"


def _grant(tx: Transaction, grant_id: str, ring: KeyRing) -> GrantRow:
    """Return a grant that we have made. Raises GrantRefused for one that was changed."""
    grant = tx.one(GrantRow, _ONE_GRANT, {"id": grant_id})
    if not ring.signing.is_row_signed(_GRANTS, grant.signature, *grant.signed()):
        raise _USED
    return grant


def _refresh(tx: Transaction, name: str) -> _RefreshRow | None:
    return tx.maybe(
        _RefreshRow,
        "select grant_id, expires_at, used_at, signature from provider_refresh where id = :id for update",
        {"id": name},
    )


def _refresh_token(tx: Transaction, face: FaceSettings, grant: GrantRow, now: float, ring: KeyRing) -> str:
    token = secrets.token_urlsafe(32)
    name, until = digest(token), min(grant.expires_at, now + face.idle_seconds)
    tx.run("delete from provider_refresh where expires_at < :now", {"now": now})
    tx.run(
        "insert into provider_refresh (id, grant_id, expires_at, signature) values (:id, :grant, :until, :signature)",
        {
            "id": name,
            "grant": grant.id,
            "until": until,
            "signature": ring.signing.sign_row(_TOKENS, name, grant.id, repr(until)),
        },
    )
    return token
