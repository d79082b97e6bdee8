"""What the vault keeps, as functions of a Transaction."""

from __future__ import annotations

from msgspec import Struct

from portico.store.rows import json_column
from portico.store.transaction import Transaction

CHANGED = "vault"


class CredentialSlot(Struct, frozen=True):
    """Whose credential it is, and for what: no row is found without both."""

    principal: str
    upstream: str

    @property
    def topic(self) -> str:
        """What the other processes are told; PostgreSQL takes no zeros in it."""
        return json_column([self.principal, self.upstream])


class VaultRow(Struct, frozen=True):
    principal: str
    upstream: str
    issuer: str
    body: str
    updated_at: float
    renewing_until: float | None = None

    @property
    def place(self) -> str:
        """What its seal is bound to."""
        return f"vault_token {self.principal}\0{self.upstream}\0{self.issuer}"


_WHERE = "where principal = :principal and upstream = :upstream"


def find(tx: Transaction, slot: CredentialSlot) -> VaultRow | None:
    """The newest; an upstream may have moved from one issuer to another."""
    found = tx.all(
        VaultRow,
        f"select * from vault_token {_WHERE} order by updated_at desc limit 1",
        {"principal": slot.principal, "upstream": slot.upstream},
    )
    return found[0] if found else None


def keep(tx: Transaction, row: VaultRow) -> None:
    """In place of whatever there was for this principal and upstream, from any issuer."""
    slot = {"principal": row.principal, "upstream": row.upstream}
    tx.run(f"delete from vault_token {_WHERE}", slot)
    tx.run(
        "insert into vault_token (principal, upstream, issuer, body, updated_at) values "
        "(:principal, :upstream, :issuer, :body, :now)",
        {**slot, "issuer": row.issuer, "body": row.body, "now": row.updated_at},
    )
    tx.publish(CHANGED, CredentialSlot(row.principal, row.upstream).topic)


def replace(tx: Transaction, row: VaultRow, body: str | None, now: float) -> bool:
    """Put another token in place of this very one, or None to forget it. False: it is another by now."""
    key = {"principal": row.principal, "upstream": row.upstream, "issuer": row.issuer, "old": row.body}
    where = f"{_WHERE} and issuer = :issuer and body = :old"
    if body is None:
        changed = tx.run(f"delete from vault_token {where}", key)
    else:
        changed = tx.run(
            f"update vault_token set body = :body, updated_at = :now, renewing_until = null {where}",
            {**key, "body": body, "now": now},
        )
    if changed:
        tx.publish(CHANGED, CredentialSlot(row.principal, row.upstream).topic)
    return changed == 1


def begin_renewal(tx: Transaction, row: VaultRow, now: float, until: float) -> bool:
    """Whether it is ours to renew this token: of all processes one gets it, and has it for a while."""
    return (
        tx.run(
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


def end_renewal(tx: Transaction, row: VaultRow) -> None:
    tx.run(
        f"update vault_token set renewing_until = null {_WHERE} and issuer = :issuer and body = :old",
        {"principal": row.principal, "upstream": row.upstream, "issuer": row.issuer, "old": row.body},
    )


def remove(tx: Transaction, slot: CredentialSlot) -> bool:
    """Whatever there is for a principal and an upstream. Whether there was something."""
    gone = tx.run(f"delete from vault_token {_WHERE}", {"principal": slot.principal, "upstream": slot.upstream})
    if gone:
        tx.publish(CHANGED, slot.topic)
    return gone > 0


def slots(tx: Transaction) -> list[CredentialSlot]:
    """Who has connected what."""
    return tx.all(CredentialSlot, "select distinct principal, upstream from vault_token order by principal, upstream")


def slots_of(tx: Transaction, principal: str) -> list[CredentialSlot]:
    return tx.all(
        CredentialSlot,
        "select distinct principal, upstream from vault_token where principal = :principal order by upstream",
        {"principal": principal},
    )


def all_rows(tx: Transaction) -> list[VaultRow]:
    return tx.all(VaultRow, "select * from vault_token")


def find_clients(tx: Transaction, upstream: str) -> list[tuple[str, str]]:
    return tx.all(
        tuple[str, str], "select issuer, body from vault_client where upstream = :upstream", {"upstream": upstream}
    )


def keep_client(tx: Transaction, upstream: str, issuer: str, body: str) -> None:
    tx.run(
        "insert into vault_client (upstream, issuer, body) values (:upstream, :issuer, :body) "
        "on conflict (upstream, issuer) do update set body = excluded.body",
        {"upstream": upstream, "issuer": issuer, "body": body},
    )


def find_client_issuer(tx: Transaction, upstream: str, url: str, client: str) -> str | None:
    """Return the issuer that a configured client was first used with."""
    where = "where upstream = :upstream and url = :url and client = :client"
    key = {"upstream": upstream, "url": url, "client": client}
    return tx.maybe(str, f"select issuer from vault_client_issuer {where}", key)


def bind_client(tx: Transaction, upstream: str, url: str, client: str, issuer: str) -> None:
    """Bind a configured client to an issuer, unless it is bound already."""
    tx.run(
        "insert into vault_client_issuer (upstream, url, client, issuer) values (:upstream, :url, :client, :issuer) "
        "on conflict (upstream, url, client) do nothing",
        {"upstream": upstream, "url": url, "client": client, "issuer": issuer},
    )
