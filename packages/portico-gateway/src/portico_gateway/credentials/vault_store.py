"""Tables of the token vault, as functions of a Transaction."""

from __future__ import annotations

from msgspec import Struct

from portico.store.rows import encode_json_column
from portico.store.transaction import Transaction

CHANGE_CHANNEL = "vault"


class CredentialKey(Struct, frozen=True):
    """Key of a credential. Every query needs both the principal and the upstream."""

    principal: str
    upstream: str

    @property
    def topic(self) -> str:
        """Return the payload of change events: JSON, since PostgreSQL does not allow NUL characters."""
        return encode_json_column([self.principal, self.upstream])


class StoredToken(Struct, frozen=True):
    """Encrypted token of a principal for an upstream."""

    principal: str
    upstream: str
    issuer: str
    body: str
    updated_at: float
    renewing_until: float | None = None

    @property
    def seal_context(self) -> str:
        """Return the encryption context of the row."""
        # A row that is copied to another user or upstream in the database no longer decrypts.
        return f"vault_token {self.principal}\0{self.upstream}\0{self.issuer}"


_WHERE = "where principal = :principal and upstream = :upstream"


def find_token(tx: Transaction, slot: CredentialKey) -> StoredToken | None:
    """Return the newest token, or None. There may be several if the upstream changed its issuer."""
    rows = tx.fetch_all(
        StoredToken,
        f"select * from vault_token {_WHERE} order by updated_at desc limit 1",
        {"principal": slot.principal, "upstream": slot.upstream},
    )
    return rows[0] if rows else None


def put_token(tx: Transaction, row: StoredToken) -> None:
    """Store a token, replacing those of this principal and upstream from any issuer."""
    slot = {"principal": row.principal, "upstream": row.upstream}
    # Of every issuer: after a change of issuer, the token of the old one must not come back.
    tx.execute(f"delete from vault_token {_WHERE}", slot)
    tx.execute(
        "insert into vault_token (principal, upstream, issuer, body, updated_at) values "
        "(:principal, :upstream, :issuer, :body, :now)",
        {**slot, "issuer": row.issuer, "body": row.body, "now": row.updated_at},
    )
    tx.publish(CHANGE_CHANNEL, CredentialKey(row.principal, row.upstream).topic)


def replace_token(tx: Transaction, row: StoredToken, body: str | None, now: float) -> bool:
    """Replace this token, or delete it if `body` is None. Return False if it was changed by another process."""
    key = {"principal": row.principal, "upstream": row.upstream, "issuer": row.issuer, "old": row.body}
    # Compare and swap: two processes may renew the same token, and the loser must not overwrite the newer one.
    where = f"{_WHERE} and issuer = :issuer and body = :old"
    if body is None:
        changed = tx.execute(f"delete from vault_token {where}", key)
    else:
        changed = tx.execute(
            f"update vault_token set body = :body, updated_at = :now, renewing_until = null {where}",
            {**key, "body": body, "now": now},
        )
    if changed:
        tx.publish(CHANGE_CHANNEL, CredentialKey(row.principal, row.upstream).topic)
    return changed == 1


def acquire_renewal_lease(tx: Transaction, row: StoredToken, now: float, until: float) -> bool:
    """Acquire the lease to renew a token. Return whether this process holds it."""
    return (
        tx.execute(
            # Comparing the body makes the lease void for a token that was renewed since it was read.
            f"update vault_token set renewing_until = :until {_WHERE} and issuer = :issuer and body = :old "
            "and (renewing_until is null or renewing_until < :now)",
            {
                "principal": row.principal,
                "upstream": row.upstream,
                "issuer": row.issuer,
                "old": row.body,
                "now": now,
                "until": until,
            },
        )
        == 1
    )


def release_renewal_lease(tx: Transaction, row: StoredToken) -> None:
    tx.execute(
        # The body is compared here as well, so that a late release cannot end the lease of a newer token.
        f"update vault_token set renewing_until = null {_WHERE} and issuer = :issuer and body = :old",
        {"principal": row.principal, "upstream": row.upstream, "issuer": row.issuer, "old": row.body},
    )


def delete_token(tx: Transaction, slot: CredentialKey) -> bool:
    """Delete the tokens for a principal and an upstream. Return whether there were any."""
    deleted = tx.execute(f"delete from vault_token {_WHERE}", {"principal": slot.principal, "upstream": slot.upstream})
    if deleted:
        tx.publish(CHANGE_CHANNEL, slot.topic)
    return deleted > 0


def list_keys(tx: Transaction) -> list[CredentialKey]:
    """Return the keys of all stored tokens."""
    return tx.fetch_all(
        CredentialKey, "select distinct principal, upstream from vault_token order by principal, upstream"
    )


def list_keys_of(tx: Transaction, principal: str) -> list[CredentialKey]:
    """Return the keys of a principal's tokens."""
    return tx.fetch_all(
        CredentialKey,
        "select distinct principal, upstream from vault_token where principal = :principal order by upstream",
        {"principal": principal},
    )


def list_tokens(tx: Transaction) -> list[StoredToken]:
    return tx.fetch_all(StoredToken, "select * from vault_token")


def find_clients(tx: Transaction, upstream: str) -> list[tuple[str, str]]:
    return tx.fetch_all(
        tuple[str, str], "select issuer, body from vault_client where upstream = :upstream", {"upstream": upstream}
    )


def put_client(tx: Transaction, upstream: str, issuer: str, body: str) -> None:
    """Store our client registration at an issuer."""
    tx.execute(
        "insert into vault_client (upstream, issuer, body) values (:upstream, :issuer, :body) "
        "on conflict (upstream, issuer) do update set body = excluded.body",
        {"upstream": upstream, "issuer": issuer, "body": body},
    )


def find_client_issuer(tx: Transaction, upstream: str, url: str, client: str) -> str | None:
    """Return the issuer with which a configured client was first used."""
    where = "where upstream = :upstream and url = :url and client = :client"
    key = {"upstream": upstream, "url": url, "client": client}
    return tx.fetch_optional(str, f"select issuer from vault_client_issuer {where}", key)


def bind_client(tx: Transaction, upstream: str, url: str, client: str, issuer: str) -> None:
    """Bind a configured client to an issuer, unless it is already bound."""
    tx.execute(
        "insert into vault_client_issuer (upstream, url, client, issuer) values (:upstream, :url, :client, :issuer) "
        # The first issuer stays bound: an upstream that names another one later must not receive the client's secret.
        "on conflict (upstream, url, client) do nothing",
        {"upstream": upstream, "url": url, "client": client, "issuer": issuer},
    )
