"""Verification of the audit log finds the first record that was changed."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from portico import Client, Server
from portico.audit.checkpoints import (
    CheckpointFile,
    CheckpointRef,
    SignedCheckpoint,
)
from portico.audit.hash_chain import chain_hash, genesis_hash
from portico.audit.signing_keys import PUBLIC_KEYS_FILE, TrustedKeys, load_or_create_key, load_public_keys
from portico.audit.verification import VerificationReport
from portico.server.policy import settings as access_settings
from portico.store.database import Database
from portico.store.transaction import Transaction
from portico_gateway.audit import retention, store as tables, writer
from portico_gateway.audit.store import verify_store
from portico_gateway.audit.writer import MAX_SIGNING_CREDIT, MAX_SIGNING_DELAY_SECONDS, SigningSchedule
from support.paths import PROGRAMS

CHILD = PROGRAMS / "audit_child.py"
TIMEOUT_SECONDS = 60.0
CALLS = 20
# With its begin and its end.
LAST = CALLS + 2

Harm = Callable[[Transaction], object]


@pytest.fixture(autouse=True)
def signed_at_the_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is."""
    monkeypatch.setattr(writer, "MIN_SIGNING_DELAY_SECONDS", TIMEOUT_SECONDS)


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "audit.db")
    response: str = request.getfixturevalue("postgres_url")
    return response


async def record(folder: Path, store: str, calls: int = CALLS) -> None:
    server = Server("house")

    @server.tool
    async def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    access_settings.apply(
        server, access_settings.read({"audit": {"include_stdio": True, "data_dir": str(folder), "store": store}})
    )
    async with Client(server) as client:
        for at in range(calls):
            await client.call_tool("add", {"a": at, "b": 1})


async def verified(folder: Path, store: str, expected: CheckpointRef | None = None) -> VerificationReport:
    keys = TrustedKeys(load_public_keys(folder / PUBLIC_KEYS_FILE))
    head = expected or CheckpointFile(folder, store).read()
    async with Database(store) as database:
        return await database.read(lambda tx: verify_store(tx, keys, head))


async def harmed(folder: Path, store: str, harm: Harm) -> VerificationReport:
    async with Database(store) as database:
        await database.write(harm)
    return await verified(folder, store)


def first(report: VerificationReport) -> tuple[str, int]:
    """What happened, and to which record."""
    result = next(finding for finding in report.findings if finding.chain)
    assert f"record {result.number} of the chain {result.chain}" in result.description
    return result.kind, result.number


async def test_untouched_audit_verifies(tmp_path: Path, store: str) -> None:
    await record(tmp_path, store)
    await record(tmp_path, store)
    report = await verified(tmp_path, store)
    assert (report.findings, report.notes) == ([], [])
    assert (report.records, report.chains, report.checkpoints) == (2 * LAST, 2, 4)
    assert str(CheckpointFile(tmp_path, store).read()) == report.head


# One record


def _set(number: int, **columns: Any) -> Harm:
    result = ", ".join(f"{name} = :{name}" for name in columns)
    return lambda tx: tx.execute(f"update audit_record set {result} where number = :n", {**columns, "n": number})


def _bent(tx: Transaction, number: int) -> str:
    body = tx.fetch_one(str, "select body from audit_record where number = ?", [number])
    return body.replace('"outcome":"ok"', '"outcome":"no"')


def _change(tx: Transaction) -> None:
    _set(7, body=_bent(tx, 7))(tx)


def _change_with_its_hash(tx: Transaction) -> None:
    body = _bent(tx, 7)
    before = tx.fetch_one(str, "select hash from audit_record where number = 6")
    _set(7, body=body, hash=chain_hash(bytes.fromhex(before), body.encode()).hex())(tx)


def _change_and_make_all_hashes_anew(tx: Transaction) -> None:
    _change(tx)
    _anew(tx)


def _anew(tx: Transaction) -> None:
    chain = tx.fetch_one(str, "select min(chain) from audit_record")
    before = genesis_hash(chain)
    for number, body in tx.fetch_all(tuple[int, str], "select number, body from audit_record order by number"):
        before = chain_hash(before, body.encode())
        _set(number, hash=before.hex())(tx)
    tx.execute("update audit_head set hash = ?", [before.hex()])


def _change_the_moment(tx: Transaction) -> None:
    _set(7, at=5)(tx)


def _change_a_hash(tx: Transaction) -> None:
    _set(7, hash="0" * 64)(tx)


def _remove(tx: Transaction) -> None:
    tx.execute("delete from audit_record where number = 7")


def _remove_and_close_the_gap(tx: Transaction) -> None:
    tx.execute("delete from audit_record where number = 7")
    for number in range(8, LAST + 1):
        body = tx.fetch_one(str, "select body from audit_record where number = ?", [number])
        body = body.replace(f'"number":{number},', f'"number":{number - 1},')
        tx.execute("update audit_record set number = ?, body = ? where number = ?", [number - 1, body, number])
    _anew(tx)


def _swap(tx: Transaction) -> None:
    tx.execute("update audit_record set number = -1 where number = 7")
    tx.execute("update audit_record set number = 7 where number = 8")
    tx.execute("update audit_record set number = 8 where number = -1")


def _insert(tx: Transaction) -> None:
    chain = tx.fetch_one(str, "select min(chain) from audit_record")
    for number in range(LAST, 6, -1):
        tx.execute("update audit_record set number = ? where number = ?", [number + 1, number])
    forged = tx.fetch_one(str, "select body from audit_record where number = 6").replace('"number":6,', '"number":7,')
    before = tx.fetch_one(str, "select hash from audit_record where number = 6")
    at = tx.fetch_one(int, "select at from audit_record where number = 6")
    tx.execute(
        "insert into audit_record (chain, number, at, body, hash) values (?, 7, ?, ?, ?)",
        [chain, at, forged, chain_hash(bytes.fromhex(before), forged.encode()).hex()],
    )


def _append(tx: Transaction) -> None:
    chain, at, hash = tx.fetch_one(
        tuple[str, int, str], "select chain, at, hash from audit_record order by number desc limit 1"
    )
    body = f'{{"number":{LAST + 1},"at":{at}}}'
    tx.execute(
        "insert into audit_record (chain, number, at, body, hash) values (?, ?, ?, ?, ?)",
        [chain, LAST + 1, at, body, chain_hash(bytes.fromhex(hash), body.encode()).hex()],
    )


def _forge_a_chain(tx: Transaction) -> None:
    body = '{"number":1,"at":2}'
    tx.execute(
        "insert into audit_record (chain, number, at, body, hash) values ('0', 1, 2, ?, ?)",
        [body, chain_hash(genesis_hash("0"), body.encode()).hex()],
    )


def _cut_off(tx: Transaction) -> None:
    tx.execute("delete from audit_record where number > 12")
    tx.execute("update audit_head set number = 12, covered = 0")


def _remove_all(tx: Transaction) -> None:
    tx.execute("delete from audit_record")
    tx.execute("delete from audit_head")


@pytest.mark.parametrize(
    ("harm", "damage", "number"),
    [
        (_change, "changed", 7),
        (_change_with_its_hash, "changed", 7),
        (_change_and_make_all_hashes_anew, "changed", 7),
        (_change_the_moment, "changed", 7),
        (_change_a_hash, "changed", 7),
        (_remove, "removed", 7),
        (_remove_and_close_the_gap, "changed", 7),
        (_swap, "reordered", 7),
        (_insert, "inserted", 7),
        (_append, "inserted", LAST + 1),
        (_forge_a_chain, "inserted", 1),
        (_cut_off, "truncated", 13),
        (_remove_all, "truncated", 1),
    ],
)
async def test_first_record_is_named(tmp_path: Path, store: str, harm: Harm, damage: str, number: int) -> None:
    await record(tmp_path, store)
    assert first(await harmed(tmp_path, store, harm)) == (damage, number)


# Checkpoints


async def _three_checkpoints(folder: Path, store: str) -> None:
    await record(folder, store, 2)
    await record(folder, store, 2)


@pytest.mark.parametrize(
    ("harm", "damage", "number"),
    [
        (
            "update audit_checkpoint set body = replace(body, '\"number\":2', '\"number\": 2') where number = 2",
            "changed",
            2,
        ),
        ("update audit_checkpoint set signature = 'AAAA' where number = 2", "changed", 2),
        ("delete from audit_checkpoint where number = 2", "removed", 2),
        ("delete from audit_checkpoint where number = 1", "removed", 1),
        ("delete from audit_checkpoint where number = 4", "rolled back", 4),
        ("delete from audit_checkpoint", "rolled back", 4),
    ],
)
async def test_first_checkpoint_is_named(tmp_path: Path, store: str, harm: str, damage: str, number: int) -> None:
    await _three_checkpoints(tmp_path, store)
    report = await harmed(tmp_path, store, lambda tx: tx.execute(harm))
    assert (report.findings[0].kind, report.findings[0].number) == (damage, number)


async def test_unknown_key_does_not_verify(tmp_path: Path, store: str) -> None:
    await record(tmp_path, store, 2)
    other = tmp_path / "other"
    load_or_create_key(other)
    shutil.copy(other / PUBLIC_KEYS_FILE, tmp_path / PUBLIC_KEYS_FILE)
    report = await verified(tmp_path, store)
    assert "signed with an unknown key" in report.findings[0].description


# An older copy


def _copy(folder: Path, there: Path) -> None:
    shutil.copytree(folder, there, ignore=shutil.ignore_patterns("audit-head-*", "older"))


async def test_older_copy_that_was_put_back_is_noticed(tmp_path: Path) -> None:
    data, older = tmp_path / "data", tmp_path / "older"
    store = str(data / "audit.db")
    await record(data, store, 3)
    _copy(data, older)
    await record(data, store, 3)
    shutil.copytree(older, data, dirs_exist_ok=True)
    report = await verified(data, store)
    assert [finding.kind for finding in report.findings] == ["rolled back"]
    assert "checkpoint 4 was written, but the last one is 2" in report.findings[0].description


async def test_older_copy_that_was_written_to_since_is_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data, older = tmp_path / "data", tmp_path / "older"
    store = str(data / "audit.db")
    await record(data, store, 3)
    _copy(data, older)
    await record(data, store, 3)
    shutil.copytree(older, data, dirs_exist_ok=True)
    await record(data, store, 3)
    assert "audit store rollback detected" in caplog.text
    report = await verified(data, store)
    assert [(finding.kind, finding.number) for finding in report.findings] == [("rolled back", 3)]


async def test_external_checkpoint_detects_rollback(tmp_path: Path) -> None:
    data, older = tmp_path / "data", tmp_path / "older"
    store = str(data / "audit.db")
    await record(data, store, 3)
    shutil.copytree(data, older)
    await record(data, store, 3)
    kept = CheckpointRef.parse((await verified(data, store)).head)
    shutil.rmtree(data)
    shutil.copytree(older, data)
    assert (await verified(data, store)).findings == []
    assert [finding.kind for finding in (await verified(data, store, kept)).findings] == ["rolled back"]
    await record(data, store, 3)
    assert [finding.kind for finding in (await verified(data, store, kept)).findings] == ["rolled back"]


# Several processes, and one that is killed


async def _child(folder: Path, store: str, calls: int) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(CHILD),
        str(folder),
        store,
        str(calls),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    async with asyncio.timeout(TIMEOUT_SECONDS):
        assert await process.stdout.readline() == b"written\n"
    return process


async def test_several_processes_have_a_chain_each_in_one_store(tmp_path: Path, store: str) -> None:
    children = await asyncio.gather(*(_child(tmp_path, store, 1200) for _ in range(2)))
    for child in children:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await child.communicate(b"")
    report = await verified(tmp_path, store)
    assert (report.findings, report.notes) == ([], [])
    assert (report.chains, report.records) == (2, 2 * 1202)
    # At the begin, after a thousand, and at the end of each.
    assert report.checkpoints == 6
    assert first(
        await harmed(tmp_path, store, lambda tx: tx.execute("delete from audit_record where number = 700"))
    ) == (
        "removed",
        700,
    )


async def test_concurrent_writers_are_not_reported_as_tampering(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = str(tmp_path / "audit.db")
    await record(tmp_path, store, 1)
    looked = tables.last_checkpoint

    def overtaken(tx: Transaction) -> SignedCheckpoint | None:
        result = looked(tx)
        assert result is not None
        CheckpointFile(tmp_path, store).write(replace(result.ref, number=result.number + 1))
        return result

    monkeypatch.setattr(tables, "last_checkpoint", overtaken)
    await record(tmp_path, store, 1)
    assert "older copy" not in caplog.text


async def test_killed_writer_is_not_reported_as_tampering(tmp_path: Path, store: str) -> None:
    child = await _child(tmp_path, store, 30)
    child.kill()
    await child.wait()
    child.stdin.close()  # type: ignore[union-attr]
    report = await verified(tmp_path, store)
    assert report.findings == []
    assert report.records == 31
    assert "30 records that no checkpoint has signed yet" in report.notes[0]
    assert "has no end marker: its process is still running, or was killed" in report.notes[1]
    # The next one signs what was left.
    await record(tmp_path, store, 1)
    report = await verified(tmp_path, store)
    assert report.findings == []
    assert not any("signed" in note for note in report.notes)
    assert first(
        await harmed(tmp_path, store, lambda tx: tx.execute("delete from audit_record where number = 31"))
    ) == (
        "truncated",
        31,
    )


def test_signing_is_soon_and_in_the_long_run_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    soon = 1.0
    monkeypatch.setattr(writer, "MIN_SIGNING_DELAY_SECONDS", soon)
    pace, now = SigningSchedule(), 1000.0
    pace.record_signing(now)
    assert pace.next_signing_at == now + soon
    # Busy for an hour: at first every second, and then no more often than it earns.
    signed = 0
    while now < 4600.0:
        now = pace.next_signing_at
        pace.record_signing(now)
        signed += 1
    assert pace.next_signing_at == pytest.approx(now + MAX_SIGNING_DELAY_SECONDS)
    assert signed <= 3600 / MAX_SIGNING_DELAY_SECONDS + MAX_SIGNING_CREDIT + 1
    # After some rest it is soon again.
    pace.record_signing(now + 100.0)
    assert pace.next_signing_at == now + 100.0 + soon


# What is kept no longer


async def test_audit_verifies_after_retention_removes_old_records(tmp_path: Path, store: str) -> None:
    await record(tmp_path, store, 5)
    await record(tmp_path, store, 5)
    key = load_or_create_key(tmp_path)

    def cut(tx: Transaction) -> None:
        moments = tx.fetch_all(int, "select at from audit_record order by at")
        assert retention.apply_retention(tx, key, moments[-1] + 1, moments[9], 0) is not None

    report = await harmed(tmp_path, store, cut)
    assert report.findings == []
    assert report.records == 5
    # Without the word that was signed, the same is tampering.
    report = await harmed(tmp_path, store, lambda tx: tx.execute("delete from audit_checkpoint where number = 5"))
    assert {finding.kind for finding in report.findings} >= {"removed"}
    await record(tmp_path, store, 1)


async def test_writer_cuts_by_itself(tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await record(tmp_path, store, 5)
    async with Database(store) as database:
        before = await database.read(lambda tx: tx.fetch_one(int, "select count(*) from audit_record"))
    assert before == 7
    server = Server("house")
    message = {"include_stdio": True, "data_dir": str(tmp_path), "store": store, "retention": "1d"}
    access_settings.apply(server, access_settings.read({"audit": message}))
    now = writer._now_us
    monkeypatch.setattr(writer, "_now_us", lambda: now() + 2 * 86400 * 1_000_000)
    async with server.lifespan():
        assert server.policy is not None
        await server.policy.audit_hook.writer.apply_retention()  # type: ignore[union-attr]
    report = await verified(tmp_path, store)
    assert report.findings == []
    assert report.records == 2


async def test_malformed_record_body_is_reported(tmp_path: Path, store: str) -> None:
    await record(tmp_path, store)
    for body in ("", "{}", "[" * 5000, msgspec.json.encode({"number": "x"}).decode()):
        assert first(await harmed(tmp_path, store, _set(3, body=body))) == ("changed", 3)
