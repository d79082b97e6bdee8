"""The journal of runs in the store, on both engines."""

from __future__ import annotations

import pytest

from portico import ToolError
from portico.extend import Transaction
from portico_services.codemode import process_lease
from portico_services.codemode.journal import RunJournal, RunStore, read_output, store_output
from portico_services.codemode.saved_scripts import SavedScript, SavedScriptStore


async def test_journal_returns_its_recorded_entries(store: RunStore) -> None:
    journal = RunJournal(store, "ann", "script")
    journal.record(1, "look", "a", 1.5, '{"value":"\\u0000 \\ud83d\\ude00"}')
    await journal.begin(2, "write", "b")
    await journal.begin(3, "write", "c")
    journal.record(3, "write", "c", 2.5, '{"value":null}')
    journal.approve(["write"])
    await journal.save("paused")
    await journal.pause()
    again = RunJournal(store, "ann", "script", journal.id)
    assert await again.load()
    await again.pause()
    assert (again.seed, again.begun_at, again.approved) == (journal.seed, journal.begun_at, {"write"})
    assert [(item.n, item.place) for item in again.entries.values()] == [(1, 1), (2, None), (3, 2)]
    assert [item.outcome for item in again.sequences] == ['{"value":"\\u0000 \\ud83d\\ude00"}', '{"value":null}']
    again.discard(2)
    await again.save("paused")
    await again.pause()
    assert 2 not in (await _loaded(store, journal.id)).entries
    await again.finish()
    assert not await RunJournal(store, "ann", "script", journal.id).load()


async def _loaded(store: RunStore, id: str) -> RunJournal:
    journal = RunJournal(store, "ann", "script", id)
    assert await journal.load()
    await journal.pause()
    await journal.save("paused")
    await journal.pause()
    return journal


async def test_journal_is_not_anothers(store: RunStore) -> None:
    journal = RunJournal(store, "ann", "script")
    await journal.save("paused")
    await journal.pause()
    assert not await RunJournal(store, "eve", "script", journal.id).load()
    assert not await RunJournal(store, "ann", "other", journal.id).load()


async def test_only_a_dead_process_leaves_its_run_behind(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = RunJournal(store, "ann", "script")
    await journal.save()
    await journal.pause()
    assert await RunJournal.find_unfinished(store, "ann", "script") is None
    monkeypatch.setattr(process_lease, "is_alive", lambda holder, until: False)
    assert await RunJournal.find_unfinished(store, "eve", "script") is None
    match = await RunJournal.find_unfinished(store, "ann", "script")
    assert match is not None and match.id == journal.id and match.is_resumed
    await match.pause()


def test_process_is_identified_by_its_start_time() -> None:
    machine, pid, begun = process_lease.current_holder().split(" ")
    assert process_lease.is_alive(process_lease.current_holder(), 0.0)
    assert not process_lease.is_alive(f"{machine} {pid} 1", 0.0)
    assert process_lease.is_alive(f"elsewhere {pid} {begun}", 1e12)
    assert not process_lease.is_alive(f"elsewhere {pid} {begun}", 0.0)


async def test_outputs_and_scripts_are_their_owners_alone(store: RunStore) -> None:
    id = await store_output(store, "ann", "text/plain", "a\x00b")
    assert await read_output(store, "ann", id) == ("text/plain", "a\x00b")
    assert await read_output(store, "eve", id) is None
    scripts = SavedScriptStore(store)
    await scripts.save("ann", SavedScript("report", "One.", "1", {"look": "x"}, 0.0))
    await scripts.save("ann", SavedScript("report", "Two.", "2", {}, 0.0))
    assert [(item.name, item.code) for item in await scripts.list("ann")] == [("report", "2")]
    assert await scripts.list("eve") == []
    assert not await scripts.delete("eve", "report")
    assert await scripts.delete("ann", "report")


@pytest.mark.parametrize(
    "sql",
    [
        'update portico_run set approved = \'["delete","write"]\'',
        "update portico_run set signature = null",
        "update portico_run set approved = '{'",
        'update portico_run_call set outcome = \'{"value":"forged"}\'',
        "update portico_run_call set tool = 'delete'",
        "insert into portico_run_call (run_id, n, tool, digest, place, at, outcome) "
        "select run_id, 9, tool, digest, 9, at, outcome from portico_run_call",
    ],
)
async def test_journal_that_was_changed_in_the_store_is_not_gone_on_with(store: RunStore, sql: str) -> None:
    journal = RunJournal(store, "ann", "script")
    journal.record(1, "write", "a", 1.5, '{"value":1}')
    journal.approve(["write"])
    await journal.save("paused")
    await journal.pause()
    await _loaded(store, journal.id)
    assert await store.write(lambda tx: tx.execute(sql)) == 1
    assert not await RunJournal(store, "ann", "script", journal.id).load()


async def test_saved_script_that_was_changed_in_the_store_is_not_run(store: RunStore) -> None:
    scripts = SavedScriptStore(store)
    for name in ("changed", "moved", "invalid", "kept"):
        await scripts.save("ann", SavedScript(name, "One.", "1", {}, 0.0))

    def change(tx: Transaction) -> None:
        tx.execute("update portico_saved_script set code = '2' where name = 'changed'")
        tx.execute("update portico_saved_script set owner = 'eve' where name = 'moved'")
        tx.execute("update portico_saved_script set tools = '{' where name = 'invalid'")

    await store.write(change)
    for owner, name in (("ann", "changed"), ("eve", "moved"), ("ann", "invalid")):
        with pytest.raises(ToolError, match="Unknown saved script"):
            await scripts.find(owner, name)
    assert [item.name for item in await scripts.list("ann")] == ["kept"]
    assert await scripts.list("eve") == []


async def test_runs_in_postgresql_need_a_key(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PORTICO_ENCRYPTION_KEYS")
    store = RunStore(postgres_url)
    with pytest.raises(ToolError, match="PORTICO_ENCRYPTION_KEYS"):
        await RunJournal(store, "ann", "script").save()
    await store.close()
