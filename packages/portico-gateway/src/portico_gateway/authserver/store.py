"""Tables of the authorization server, as functions of a Transaction.

Each decision and its consequences are one transaction: if two requests present the same code concurrently, exactly one
of them is the replay.

Rows that grant access are signed with a key derived from the encryption key: a role that can write to the database must
not be able to create a code or a refresh token for another user's grant. The used and revoked columns are not signed.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from portico.store.rows import encode_json_column
from portico.store.transaction import Transaction
from portico_gateway.authserver.clients import OAuthClient
from portico_gateway.authserver.config import AuthorizationServerConfig
from portico_gateway.authserver.errors import OAuthErrorResponse
from portico_gateway.authserver.requests import AuthorizationRequest, verify_code_challenge
from portico_gateway.credentials.encryption import KeyRing, digest

REVOKED, KEYS = "provider.revoked", "provider.keys"

# RFC 6749, section 4.1.2, recommends at most ten minutes. A client redeems its code immediately, so a minute suffices
# and shortens the time in which a stolen code is useful.
CODE_TTL_SECONDS = 60.0
# Time for a user to enter a password and a second factor at the identity provider.
LOGIN_TTL_SECONDS = 600.0
# Registration is free for attackers, so clients that no user has approved expire.
UNUSED_CLIENT_TTL_SECONDS = 24 * 3600.0
# Both tables can be filled without authentication, so their size is bounded.
MAX_CLIENTS = 50_000
MAX_FLOWS = 50_000
# Maximum rows per address (IPv6: /64) and per wider network (IPv4: /24, IPv6: /48).
MAX_PER_NETWORK = 2_000
MAX_PER_WIDER_NETWORK = 10_000
# Number of rows removed in one step when a table is full, so that not every insert has to delete.
_ROOM = 100

# Contexts of the signatures: the signature of one kind of row is never valid for another kind.
_CLIENTS, _GRANTS, _CODES, _TOKENS = b"rows of clients", b"rows of grants", b"rows of codes", b"rows of tokens"

_USED = OAuthErrorResponse("invalid_grant", "The grant is invalid, expired or was already used.")


class Source(Struct, frozen=True):
    """Networks of a request: one that a single sender has, and a wider one that a sender may control entirely."""

    network: str = ""
    wider_network: str = ""


class GrantRow(Struct, frozen=True):
    """A user's grant to a client."""

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

    def signed_columns(self) -> tuple[str, ...]:
        """Return the fields that the signature covers."""
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
        """Return whether the signature of the row is valid."""
        signed = (self.id, self.grant_id, self.redirect_uri, self.challenge, repr(self.expires_at))
        return ring.signing.is_row_signed(_CODES, self.signature, *signed)


class _RefreshRow(Struct, frozen=True):
    grant_id: str
    expires_at: float
    used_at: float | None
    signature: str | None


class IssuedGrant(Struct, frozen=True):
    """Valid grant with its new refresh token."""

    grant: GrantRow
    refresh_token: str


class ReplayedCredential(Struct, frozen=True):
    """Replay of a code or token. The grant is revoked, since the legitimate user and the thief cannot be told apart."""

    grant_id: str


# Clients


def find_client(tx: Transaction, client_id: str, now: float, ring: KeyRing) -> OAuthClient | None:
    """Return a stored client, or None if it is missing, expired or has an invalid signature."""
    optional = tx.fetch_optional(
        tuple[str, str | None],
        "select body, signature from provider_client where id = :id and (expires_at is null or expires_at > :now)",
        {"id": client_id, "now": now},
    )
    # A role that can write to the database could otherwise add its own redirect URI to a client that users trust.
    if optional is None or not ring.signing.is_row_signed(_CLIENTS, optional[1], client_id, optional[0]):
        return None
    return msgspec.json.decode(optional[0], type=OAuthClient)


def keep_client(
    tx: Transaction,
    client: OAuthClient,
    now: float,
    expires_at: float | None,
    ring: KeyRing,
    source: Source = Source(),
) -> None:
    """Insert or update a client."""
    tx.execute("delete from provider_client where expires_at < :now", {"now": now})
    # A flood displaces unapproved clients, first those of its own networks, and never a client that a user approved.
    make_room(tx, "provider_client", MAX_CLIENTS, source)
    body = encode_json_column(client)
    tx.execute(
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


def make_room(tx: Transaction, table: str, limit: int, source: Source) -> None:
    """Delete the oldest temporary rows of a network that has too many; if the table is full, of the largest network.

    A network that floods the table never displaces the rows of others.
    """
    own = {"network": source.network, "wider": source.wider_network}
    temporary = f"from {table} where expires_at is not null"
    within = f"{temporary} and wider_network = :wider"
    # One row makes room for one: a single sender only ever displaces its own rows.
    if tx.fetch_one(int, f"select count(*) {within} and network = :network", own) >= MAX_PER_NETWORK:
        _remove_oldest(tx, table, own, 1)
    elif tx.fetch_one(int, f"select count(*) {within}", {"wider": source.wider_network}) >= MAX_PER_WIDER_NETWORK:
        _remove_largest(tx, table, within, {"wider": source.wider_network})
    if tx.fetch_one(int, f"select count(*) from {table}") >= limit:
        order = "group by wider_network order by count(*) desc, min(expires_at) limit 1"
        rows = tx.fetch_all(str, f"select wider_network {temporary} {order}")
        if not rows:
            raise OAuthErrorResponse(
                "temporarily_unavailable", "The server has too many clients; try again later.", 503
            )
        _remove_largest(tx, table, within, {"wider": rows[0]})


def _remove_largest(tx: Transaction, table: str, within: str, wider: dict[str, str]) -> None:
    """Delete the oldest rows of the largest network within a wider network."""
    largest = f"select network, count(*) {within} group by network order by count(*) desc, min(expires_at) limit 1"
    [(network, count)] = tx.fetch_all(tuple[str, int], largest, wider)
    _remove_oldest(tx, table, {**wider, "network": network}, min(_ROOM, (count + 1) // 2))


def _remove_oldest(tx: Transaction, table: str, network: dict[str, str], count: int) -> None:
    oldest = (
        f"select id from {table} where expires_at is not null and network = :network and wider_network = :wider "
        f"order by expires_at limit {count}"
    )
    tx.execute(f"delete from {table} where id in ({oldest})", network)


def approved_redirects(tx: Transaction, client_id: str, now: float, ring: KeyRing) -> set[str]:
    """Return the redirect URIs for which a user approved this client, in a grant that is still valid."""
    rows = tx.fetch_all(
        _CodeRow,
        "select provider_code.id, grant_id, redirect_uri, challenge, provider_code.expires_at, used_at, "
        "provider_code.signature from provider_code join provider_grant on provider_grant.id = provider_code.grant_id "
        "where provider_grant.client = :client and provider_grant.revoked_at is null "
        "and provider_grant.expires_at > :now order by provider_code.expires_at desc limit 100",
        {"client": client_id, "now": now},
    )
    return {code.redirect_uri for code in rows if code.is_signed(ring) and _is_grant_of(tx, code, client_id, ring)}


def _is_grant_of(tx: Transaction, code: _CodeRow, client_id: str, ring: KeyRing) -> bool:
    grant = tx.fetch_one(GrantRow, "select * from provider_grant where id = :id", {"id": code.grant_id})
    return grant.client == client_id and ring.signing.is_row_signed(_GRANTS, grant.signature, *grant.signed_columns())


# Login flows


def create_login(tx: Transaction, flow: str, browser: str, body: str, now: float, source: Source = Source()) -> None:
    tx.execute("delete from provider_flow where expires_at < :now", {"now": now})
    make_room(tx, "provider_flow", MAX_FLOWS, source)
    tx.execute(
        "insert into provider_flow (id, browser, body, expires_at, network, wider_network) values "
        "(:id, :browser, :body, :until, :network, :wider)",
        {
            # Only hashes are stored: anyone who reads the table cannot continue a login of someone else.
            "id": digest(flow),
            "browser": digest(browser),
            "body": body,
            "until": now + LOGIN_TTL_SECONDS,
            "network": source.network,
            "wider": source.wider_network,
        },
    )


def consume_login(tx: Transaction, flow: str, browser: str, now: float) -> str | None:
    """Return the body of a flow and delete it. None if it is missing, expired or belongs to another browser."""
    key = {"id": digest(flow), "browser": digest(browser), "now": now}
    where = "where id = :id and browser = :browser and expires_at > :now"
    # The row is locked, so that of two concurrent requests only one gets the body.
    body = tx.fetch_optional(str, f"select body from provider_flow {where} for update", key)
    if body is not None:
        tx.execute("delete from provider_flow where id = :id", {"id": key["id"]})
    return body


# Grants


def create_grant(
    tx: Transaction,
    settings: AuthorizationServerConfig,
    client_id: str,
    scopes: tuple[str, ...],
    resource: str,
    subject: str,
    identity: bytes,
    key_ring: KeyRing,
    now: float,
) -> GrantRow:
    """Create a user's grant to a client, after consent and login."""
    grant_id = secrets.token_urlsafe(16)
    # Expired grants remain until their last access token has expired, so that revocation still finds them.
    tx.execute("delete from provider_grant where expires_at < :past", {"past": now - settings.access_seconds})
    grant = GrantRow(
        id=grant_id,
        client=client_id,
        subject=subject,
        identity=key_ring.encrypt(identity, f"provider_grant {grant_id}"),
        scope=" ".join(scopes),
        resource=resource,
        created_at=now,
        expires_at=now + settings.max_session_age,
    )
    tx.execute(
        "insert into provider_grant (id, client, subject, identity, scope, resource, created_at, expires_at, signature)"
        " values (:id, :client, :subject, :identity, :scope, :resource, :created_at, :expires_at, :signature)",
        msgspec.structs.asdict(grant) | {"signature": key_ring.signing.sign_row(_GRANTS, *grant.signed_columns())},
    )
    # The client is in use and no longer expires.
    tx.execute("update provider_client set expires_at = null where id = :id and kind = 'registered'", {"id": client_id})
    return grant


def create_code(
    tx: Transaction,
    settings: AuthorizationServerConfig,
    request: AuthorizationRequest,
    subject: str,
    identity: bytes,
    key_ring: KeyRing,
    now: float,
) -> str:
    """Create a grant after consent and login, and return the authorization code."""
    code = secrets.token_urlsafe(32)
    grant = create_grant(
        tx, settings, request.client_id, request.scopes, request.resource, subject, identity, key_ring, now
    )
    until = now + CODE_TTL_SECONDS
    tx.execute(
        "insert into provider_code (id, grant_id, redirect_uri, challenge, expires_at, signature) values "
        "(:id, :grant, :uri, :challenge, :until, :signature)",
        {
            "id": digest(code),
            "grant": grant.id,
            "uri": request.redirect_uri,
            "challenge": request.challenge,
            "until": until,
            "signature": key_ring.signing.sign_row(
                _CODES, digest(code), grant.id, request.redirect_uri, request.challenge, repr(until)
            ),
        },
    )
    return code


def redeem_code(
    tx: Transaction,
    settings: AuthorizationServerConfig,
    client: OAuthClient,
    form: Mapping[str, str],
    now: float,
    ring: KeyRing,
) -> IssuedGrant | ReplayedCredential:
    """Redeem an authorization code.

    A replay revokes the grant with all its tokens (OAuth 2.1, section 4.1.3). Raises OAuthErrorResponse if the code is
    unknown or belongs to another client.
    """
    name = digest(form.get("code", ""))
    code = tx.fetch_optional(
        _CodeRow,
        "select id, grant_id, redirect_uri, challenge, expires_at, used_at, signature from provider_code "
        "where id = :id for update",
        {"id": name},
    )
    # Unknown, forged and expired codes get the same error.
    if code is None or not code.is_signed(ring):
        raise _USED
    grant = find_grant(tx, code.grant_id, ring)
    if grant.client != client.id:
        raise _USED  # another client must not learn whether the code exists
    if code.used_at is not None:
        revoke(tx, grant.id, now)
        return ReplayedCredential(grant.id)
    # Before the code is marked as used: a client that names the wrong resource may correct its request.
    check_target(form, grant)
    # A code can be tried once, even with a wrong verifier, so that PKCE cannot be brute-forced.
    tx.execute("update provider_code set used_at = :now where id = :id", {"now": now, "id": name})
    unfit = code.expires_at <= now or grant.revoked_at is not None or form.get("redirect_uri") != code.redirect_uri
    if unfit or not verify_code_challenge(form.get("code_verifier", ""), code.challenge):
        revoke(tx, grant.id, now)
        return ReplayedCredential(grant.id)
    return IssuedGrant(grant, create_refresh_token(tx, settings, grant, now, ring))


def rotate_refresh_token(
    tx: Transaction,
    settings: AuthorizationServerConfig,
    client: OAuthClient,
    form: Mapping[str, str],
    now: float,
    ring: KeyRing,
) -> IssuedGrant | ReplayedCredential:
    """Rotate a refresh token.

    A replay revokes the grant (OAuth 2.1, section 4.3.1). Raises OAuthErrorResponse if the token is not valid.
    """
    name = digest(form.get("refresh_token", ""))
    token = _refresh(tx, name)
    if token is None or not ring.signing.is_row_signed(
        _TOKENS, token.signature, name, token.grant_id, repr(token.expires_at)
    ):
        raise _USED
    grant = find_grant(tx, token.grant_id, ring)
    if grant.client != client.id:
        raise _USED
    # The client rotates its token with every use, so a used one is in two hands (RFC 9700, section 4.14.2).
    if token.used_at is not None:
        revoke(tx, grant.id, now)
        return ReplayedCredential(grant.id)
    # An expired token is not a sign of theft, so it does not revoke anything.
    if grant.revoked_at is not None or token.expires_at <= now or grant.expires_at <= now:
        raise _USED
    check_target(form, grant)
    tx.execute("update provider_refresh set used_at = :now where id = :id", {"now": now, "id": name})
    return IssuedGrant(grant, create_refresh_token(tx, settings, grant, now, ring))


def check_target(form: Mapping[str, str], grant: GrantRow) -> None:
    """Raise OAuthErrorResponse if the request names another resource than the user approved (RFC 8707, section 2.2)."""
    if form.get("resource", grant.resource).rstrip("/") != grant.resource.rstrip("/"):
        raise OAuthErrorResponse("invalid_target", "The grant is for another resource.")


def revoke_token(tx: Transaction, client: OAuthClient, token: str, now: float) -> str | None:
    """Revoke the grant of a refresh token (RFC 7009). Return its ID, or None if the client has no such token."""
    result = _refresh(tx, digest(token))
    grant = None if result is None else tx.fetch_optional(GrantRow, _ONE_GRANT, {"id": result.grant_id})
    if grant is None or grant.client != client.id:
        return None
    revoke(tx, grant.id, now)
    return grant.id


def revoke_grant(tx: Transaction, client: OAuthClient, grant_id: str, now: float) -> None:
    """Revoke a grant that an access token names, if it belongs to the client."""
    grant = tx.fetch_optional(GrantRow, _ONE_GRANT, {"id": grant_id})
    if grant is not None and grant.client == client.id:
        revoke(tx, grant.id, now)


def revoke(tx: Transaction, grant_id: str, now: float) -> None:
    """Mark a grant as revoked and notify all processes."""
    tx.execute(
        "update provider_grant set revoked_at = :now where id = :id and revoked_at is null",
        {"now": now, "id": grant_id},
    )
    # Part of the transaction: other processes are notified exactly if the revocation is stored.
    tx.publish(REVOKED, grant_id)


def revoke_user(tx: Transaction, subject: str, now: float) -> list[str]:
    """Revoke all grants of a user and return the IDs of those that were valid."""
    rows = tx.fetch_all(
        str,
        "select id from provider_grant where subject = :subject and revoked_at is null and expires_at > :now "
        "for update",
        {"subject": subject, "now": now},
    )
    for grant_id in rows:
        revoke(tx, grant_id, now)
    return rows


def revoked_since(tx: Transaction, timestamp: float) -> list[str]:
    """Return the IDs of grants revoked at or after a timestamp."""
    return tx.fetch_all(str, "select id from provider_grant where revoked_at >= :moment", {"moment": timestamp})


_ONE_GRANT = "select * from provider_grant where id = :id for update"


def find_grant(tx: Transaction, grant_id: str, ring: KeyRing) -> GrantRow:
    """Return a grant. Raises OAuthErrorResponse if its signature is invalid."""
    grant = tx.fetch_one(GrantRow, _ONE_GRANT, {"id": grant_id})
    if not ring.signing.is_row_signed(_GRANTS, grant.signature, *grant.signed_columns()):
        raise _USED
    return grant


def _refresh(tx: Transaction, name: str) -> _RefreshRow | None:
    return tx.fetch_optional(
        _RefreshRow,
        "select grant_id, expires_at, used_at, signature from provider_refresh where id = :id for update",
        {"id": name},
    )


def create_refresh_token(
    tx: Transaction, settings: AuthorizationServerConfig, grant: GrantRow, now: float, ring: KeyRing
) -> str:
    """Create the next refresh token of a grant."""
    token = secrets.token_urlsafe(32)
    # Rotation never extends a grant: after the maximum age the user logs in again.
    name, until = digest(token), min(grant.expires_at, now + settings.idle_seconds)
    tx.execute("delete from provider_refresh where expires_at < :now", {"now": now})
    tx.execute(
        "insert into provider_refresh (id, grant_id, expires_at, signature) values (:id, :grant, :until, :signature)",
        {
            "id": name,
            "grant": grant.id,
            "until": until,
            "signature": ring.signing.sign_row(_TOKENS, name, grant.id, repr(until)),
        },
    )
    return token
