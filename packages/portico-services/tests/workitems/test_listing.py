"""Several lists in one store, labels, due dates and notes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from portico import Client, Server
from portico.protocol.versions import SUPPORTED_PROTOCOL_VERSIONS
from portico.store.database import Database
from portico.store.transaction import Transaction
from portico_services.workitems import Tasks, edits, listing, records, validation
from portico_services.workitems.edits import WorkItemChanges, WorkItemDraft
from portico_services.workitems.errors import InvalidWorkItem
from portico_services.workitems.item_store import MIGRATIONS, WorkItemStore
from portico_services.workitems.listing import ALL_PROJECTS, ListQuery
from support.work_items import Clock, call_failing_tool, call_tool, check_counts, create_item

Serving = Callable[..., Any]
MINUTE_MS = 60_000


async def listed(items: WorkItemStore, **wanted: Any) -> list[str]:
    return [item.id for item in (await items.list_page(ListQuery(**wanted))).items]


# Projects


async def test_projects_list_their_own_tasks_and_those_without_a_project(items: WorkItemStore) -> None:
    ours, theirs = items.for_project("github.com/ann/app"), items.for_project("github.com/ben/app")
    mine, other, shared = await create_item(ours), await create_item(theirs), await create_item(items)
    assert await listed(ours) == [shared, mine]
    assert await listed(theirs) == [shared, other]
    assert await listed(items) == [shared]
    assert await listed(items.for_project(ALL_PROJECTS)) == [shared, other, mine]
    assert [node.id for node in await ours.list_ready()] == [mine, shared]
    assert (await theirs.counts()).ready == 2
    assert [node.item.id for node in (await theirs.tree()).nodes] == [other, shared]
    assert await items.projects() == ["", "github.com/ann/app", "github.com/ben/app"]
    # An id is enough to name a task, wherever it is.
    assert (await theirs.get(mine)).project == "github.com/ann/app"


async def test_project_names_ignore_case(bare_url: str, tmp_path: Path) -> None:
    """Nor for what was stored when they did."""
    folder = tmp_path / "older"
    folder.mkdir()
    for path in sorted(MIGRATIONS.glob("000[1-4]*")):
        (folder / path.name).write_text(path.read_text())
    insert = (
        "insert into work_item (id, description, status, priority, created_at, updated_at, words, project) "
        "values (?, 'kept', 'pending', 2, 1, 1, 'kept', ?)"
    )
    rows = [("task_a", "github.com/Ann/App"), ("task_b", "git.example.com/Ann/App")]
    async with Database(bare_url) as database:
        await database.migrate("work_items", folder)
        await database.write(lambda tx: tx.execute_many(insert, rows))
        items = WorkItemStore(database, project="GitHub.com/ann/App")
        await items.open()
        assert await listed(items) == await listed(items.for_project("github.com/Ann/App")) == ["task_a"]
        assert await listed(items.for_project("git.example.com/ann/app")) == []
        assert await listed(items.for_project("git.example.com/Ann/App")) == ["task_b"]


async def test_next_task_is_of_the_project_or_of_none(items: WorkItemStore) -> None:
    ours, theirs = items.for_project("ours"), items.for_project("theirs")
    late, urgent = await create_item(ours, priority=4), await create_item(items, priority=2)
    elsewhere = await create_item(theirs, priority=1)
    for expected in (urgent, late, None):
        result = await ours.next("ann")
        assert (result.id if result else None) == expected
    result = await theirs.next("ann", query="something")
    assert result is not None and result.id == elsewhere
    assert await theirs.next("ann", query="something") is None


async def test_parent_determines_the_listed_project(items: WorkItemStore) -> None:
    ours, theirs = items.for_project("ours"), items.for_project("theirs")
    there = await create_item(theirs)
    below = await create_item(ours, parent_id=there)
    assert await listed(ours, parent_id=there) == [below]
    assert await listed(ours, parent_id=f"tasks://{there}") == [below]
    result = await ours.next("ann", parent_id=there)
    assert result is not None and result.id == below


async def test_no_task_is_of_every_project(items: WorkItemStore) -> None:
    made = await create_item(items.for_project("ours"))
    with pytest.raises(InvalidWorkItem, match="means all projects"):
        await items.update(made, WorkItemChanges(project=f" {ALL_PROJECTS} "))
    assert (await items.get(made)).project == "ours"


async def test_subtasks_belong_to_the_project_of_their_root(items: WorkItemStore) -> None:
    ours, theirs = items.for_project("ours"), items.for_project("theirs")
    plan = await create_item(ours, "plan")
    part = await create_item(theirs, "part", parent_id=plan)
    deep = await create_item(items, "deep", parent_id=part)
    assert {(await items.get(item)).project for item in (plan, part, deep)} == {"ours"}
    with pytest.raises(InvalidWorkItem, match="moves with it"):
        await items.update(part, WorkItemChanges(project="theirs"))
    await items.update(plan, WorkItemChanges(project="theirs"))
    assert {(await items.get(item)).project for item in (plan, part, deep)} == {"theirs"}
    other = await create_item(ours, "other plan")
    await items.update(part, WorkItemChanges(parent_id=other))
    assert {(await items.get(item)).project for item in (other, part, deep)} == {"ours"}
    await check_counts(items)


async def test_cursor_is_of_its_list(items: WorkItemStore) -> None:
    ours = items.for_project("ours")
    for _ in range(3):
        await create_item(ours)
        await create_item(items)
    page = await ours.list_page(ListQuery(), limit=4)
    assert len((await ours.list_page(ListQuery(), limit=4, cursor=page.cursor)).items) == 2
    with pytest.raises(InvalidWorkItem, match="cursor"):
        await items.list_page(ListQuery(), cursor=page.cursor)


async def test_listing_all_projects_is_limited(items: WorkItemStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MAX_PROJECTS", 3)
    for number in range(4):
        await create_item(items.for_project(f"project {number}"))
    with pytest.raises(InvalidWorkItem, match="more than 3 projects"):
        await items.for_project(ALL_PROJECTS).list_page(ListQuery())
    with pytest.raises(InvalidWorkItem, match="a task belongs to one"):
        await create_item(items.for_project(ALL_PROJECTS))


async def test_tasks_from_before_projects_are_listed_in_every_project(bare_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "older"
    folder.mkdir()
    for path in sorted(MIGRATIONS.glob("000[12]*")):
        (folder / path.name).write_text(path.read_text())

    def fill(tx: Transaction) -> None:
        tx.execute(
            "insert into work_item (id, description, status, priority, created_at, updated_at, words) "
            "values ('task_a', 'kept', 'pending', 2, 1, 1, 'kept')",
            {},
        )
        tx.execute(
            "insert into work_item_event (item, version, change, at, fields) values ('task_a', 2, 'updated', 1, '{}')",
            {},
        )

    async with Database(bare_url) as database:
        await database.migrate("work_items", folder)
        await database.write(fill)
        items = WorkItemStore(database, project="app")
        await items.open()
        assert await listed(items) == ["task_a"]
        kept = await items.get("task_a")
        assert (kept.project, kept.due, kept.labels, kept.priority) == ("", None, (), 2)
        assert len((await items.history("task_a")).events) == 1
        result = await items.next("ann")
        assert result is not None and result.id == "task_a"


async def test_call_is_about_the_project_of_the_folder_or_the_one_it_names(serving: Serving, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    item, two = await serving(project_dir=tmp_path / "one"), await serving(project_dir=tmp_path / "two")
    mine = await call_tool(item, "create_task", description="mine")
    named = await call_tool(item, "create_task", description="named", project="elsewhere")
    assert "project" not in mine
    assert [task["id"] for task in (await call_tool(item, "list_tasks"))["tasks"]] == [mine["id"]]
    assert (await call_tool(two, "list_tasks"))["count"] == 0
    assert (await call_tool(two, "next_task"))["found"] is False
    (seen,) = (await call_tool(two, "list_tasks", project="elsewhere"))["tasks"]
    assert (seen["id"], "project" in seen) == (named["id"], False)
    everything = (await call_tool(two, "list_tasks", project="*"))["tasks"]
    assert {task["id"] for task in everything} == {mine["id"], named["id"]}
    assert all(task["project"] for task in everything)
    plan = await call_tool(two, "create_tasks", tasks=[{"description": "a", "ref": "a"}], project="elsewhere")
    assert plan["count"] == 1
    assert (await call_tool(two, "next_task", project="elsewhere"))["task"]["id"] == named["id"]


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_client_roots_determine_the_listed_project(url: str, tmp_path: Path, revision: str) -> None:
    server = Server("planning", version="1")
    server.add(Tasks(url))
    folders = [tmp_path / name / "app" for name in ("x", "y")]
    async with server.lifespan():
        for folder in folders:
            folder.mkdir(parents=True)
            async with Client(server, protocol_version=revision, roots=[folder]) as client:
                await client.call_tool("create_task", {"description": f"Look after {folder}"})
        for folder in folders:
            async with Client(server, protocol_version=revision, roots=[folder]) as client:
                items = [await client.call_tool("next_task", {"worker": "ann"}) for _ in range(2)]
                assert [str(folder) in result.content[0].text for result in items] == [True, False]
                standing = (await client.read_resource("tasks://all"))[0].text
                assert (str(folder) in standing, standing.count("Look after")) == (True, 1)


# Labels


async def test_labels_are_set_added_removed_and_found(items: WorkItemStore) -> None:
    id = await create_item(items, labels=["Backend", "in review", "backend"])
    other = await create_item(items, labels=["backend"])
    assert (await items.get(id)).labels == ("backend", "in-review")
    assert await listed(items, labels=("backend",)) == [other, id]
    assert await listed(items, labels=("backend", "in-review")) == [id]
    after = await items.update(id, WorkItemChanges(add_labels=["Urgent"], remove_labels=["in review"]))
    assert after.labels == ("backend", "urgent")
    assert await listed(items, labels=("in-review",)) == []
    after = await items.update(id, WorkItemChanges(labels=[]))
    assert after.labels == ()
    assert await listed(items, labels=("backend",)) == [other]
    fields = [event.fields["labels"] for event in (await items.history(id)).events]
    assert fields == [[["backend", "urgent"], []], [["backend", "in-review"], ["backend", "urgent"]]]


async def test_next_task_can_be_requested_by_labels(items: WorkItemStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await create_item(items, priority=1)
    docs = await create_item(items, labels=["docs"], priority=4)
    both = await create_item(items, labels=["docs", "api"], priority=5)
    assert await items.next("ann", labels=["docs", "tests"]) is None
    result = await items.next("ann", labels=["API", "docs"])
    assert result is not None and result.id == both
    result = await items.next("ann", labels=["docs"])
    assert result is not None and result.id == docs


async def test_labels_are_bounded(items: WorkItemStore) -> None:
    with pytest.raises(InvalidWorkItem, match="at most 20 labels"):
        await create_item(items, labels=[f"label{number}" for number in range(validation.MAX_LABELS + 1)])
    id = await create_item(items, labels=[f"label{number}" for number in range(validation.MAX_LABELS)])
    with pytest.raises(InvalidWorkItem, match="at most 20 labels"):
        await items.update(id, WorkItemChanges(add_labels=["one more"]))
    for wrong in ("", "  ", "x" * (validation.MAX_LABEL_CHARS + 1)):
        with pytest.raises(InvalidWorkItem, match="label"):
            await create_item(items, labels=[wrong])


# Dates


async def test_earlier_due_date_comes_first_at_equal_priority(items: WorkItemStore) -> None:
    never, late = await create_item(items), await create_item(items, due="2030-05-01")
    soon, urgent = await create_item(items, due="2030-04-01T12:00:00+02:00"), await create_item(items, priority=1)
    assert [item.id for item in await items.list_ready()] == [urgent, soon, late, never]
    assert (await items.get(soon)).due == 1_901_268_000_000
    assert [(await items.next("ann")).id for _ in range(4)] == [urgent, soon, late, never]  # type: ignore[union-attr]


async def test_day_ends_with_its_last_moment(items: WorkItemStore) -> None:
    assert (await items.get(await create_item(items, due="2030-01-01"))).due == 1_893_542_399_999
    assert (await items.get(await create_item(items, due="2030-01-01T00:00"))).due == 1_893_456_000_000
    for wrong in ("tomorrow", "2030-13-01", "10000-01-01", "\0", "2030-01-01T25:00"):
        with pytest.raises(InvalidWorkItem, match="Invalid date"):
            await create_item(items, due=wrong)


async def test_overdue_items_are_listed_by_due_date(items: WorkItemStore, clock: Clock) -> None:
    dates = ["2023-11-10", "2023-11-12", "2023-11-11", "2031-01-01"]
    made = [await create_item(items, due=due) for due in dates]
    done = await create_item(items, due="2023-11-01")
    await items.complete(done)
    await create_item(items)
    assert await listed(items, overdue=True) == [made[0], made[2], made[1]]
    assert await listed(items, due_before=validation.parse_timestamp("2032-01-01")) == [
        made[0],
        made[2],
        made[1],
        made[3],
    ]
    assert (
        await listed(items, due_before=validation.parse_timestamp("2023-11-11"), overdue=True) == [made[0], made[2]][:1]
    )
    results: list[str] = []
    cursor = None
    for _ in range(3):
        page = await items.list_page(ListQuery(overdue=True), limit=1, cursor=cursor)
        results, cursor = [*results, page.items[0].id], page.cursor
    assert (results, cursor) == ([made[0], made[2], made[1]], None)
    assert await items.count(ListQuery(overdue=True)) == 3
    await items.update(made[0], WorkItemChanges(due=""))
    await items.update(made[3], WorkItemChanges(due="2023-11-02"))
    assert await listed(items, overdue=True) == [made[3], made[2], made[1]]


async def test_dates_and_labels_are_shown(serving: Serving) -> None:
    client = await serving()
    made = await call_tool(client, "create_task", description="late", due="2020-02-29", labels=["Docs"])
    assert (made["due_at"], made["overdue"], made["labels"]) == ("2020-02-29T23:59:59.999Z", True, ["docs"])
    (line,) = (await call_tool(client, "list_tasks", overdue=True, labels=["docs"]))["tasks"]
    assert (line["due_at"], line["overdue"], line["labels"]) == (made["due_at"], True, ["docs"])
    after = await call_tool(client, "update_task", id=made["id"], due="", remove_labels=["docs"], add_labels=["api"])
    assert ("due_at" in after, "overdue" in after, after["labels"]) == (False, False, ["api"])
    (change, _) = (await call_tool(client, "task_history", id=made["id"]))["changes"]
    assert {"name": "due_at", "before": made["due_at"], "after": None} in change["fields"]
    text, error = await call_failing_tool(client, "list_tasks", due_before="soon")
    assert "Invalid date" in text and error["code"] == "validation_error"


# Notes


async def test_notes_are_added_and_never_overwritten(serving: Serving) -> None:
    client = await serving()
    made = await call_tool(client, "create_task", description="Fix the parser")
    for number in range(3):
        noted = await call_tool(client, "add_note", id=made["id"], text=f"tried {number}", worker="ann")
    assert noted == {"id": made["id"], "version": 4, "notes": 3}
    result = await call_tool(client, "get_task", id=made["id"])
    assert [note["text"] for note in result["notes"]] == ["tried 0", "tried 1", "tried 2"]
    assert {note["who"] for note in result["notes"]} == {"ann"}
    result = await call_tool(client, "get_task", id=made["id"], notes=2)
    assert ([note["text"] for note in result["notes"]], result["older_notes"]) == (["tried 1", "tried 2"], 1)
    changes = (await call_tool(client, "task_history", id=made["id"]))["changes"]
    assert [change["change"] for change in changes] == ["note added"] * 3 + ["created"]
    assert changes[0]["fields"][0]["after"] == "tried 2"
    taken = await call_tool(client, "next_task", worker="ben")
    assert len(taken["task"]["notes"]) == 3
    text, error = await call_failing_tool(client, "add_note", id=made["id"], text="mine", worker="ann")
    assert "ben" in text and error["code"] == "already_claimed"
    await call_tool(client, "delete_task", id=made["id"])
    changes = (await call_tool(client, "task_history", id=made["id"]))["changes"]
    assert changes[-2]["fields"][0]["after"] == "tried 0"


async def test_notes_are_bounded(items: WorkItemStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edits, "MAX_NOTES", 2)
    id = await create_item(items)
    for _ in range(2):
        await items.add_note(id, "x" * validation.MAX_NOTE_CHARS)
    with pytest.raises(InvalidWorkItem, match="the maximum"):
        await items.add_note(id, "one more")
    for wrong in ("", " \n", "x" * (validation.MAX_NOTE_CHARS + 1)):
        with pytest.raises(InvalidWorkItem, match="note"):
            await items.add_note(id, wrong)
    assert await items.read(lambda tx: records.count_notes(tx, id)) == 2
    assert (await items.create_batch([WorkItemDraft(description="other", labels=["a"], due="2030-01-01")]))[
        0
    ].labels == ("a",)


# Labels and dates at their bounds


async def test_label_length_is_checked_after_casefolding(items: WorkItemStore) -> None:
    fits, too_long = "ß" * (validation.MAX_LABEL_CHARS // 2), "ß" * (validation.MAX_LABEL_CHARS // 2 + 1)
    made = await create_item(items, labels=[fits])
    with pytest.raises(InvalidWorkItem, match="got 62"):
        await create_item(items, labels=[too_long])
    assert (await items.update(made, WorkItemChanges(priority=1))).labels == ("s" * validation.MAX_LABEL_CHARS,)


async def test_oversized_stored_label_does_not_block_updates(
    items: WorkItemStore,
) -> None:
    made, longer = await create_item(items), "s" * (validation.MAX_LABEL_CHARS + 2)
    await items.database.write(
        lambda tx: tx.execute(
            "update work_item set labels = :labels where id = :id", {"labels": f'["{longer}"]', "id": made}
        )
    )
    assert (await items.update(made, WorkItemChanges(priority=1, add_labels=["a"]))).labels == ("a", longer)


async def test_labels_are_counted_when_all_is_added_and_removed(items: WorkItemStore) -> None:
    old, new = ([f"{kind}{number:02}" for number in range(validation.MAX_LABELS)] for kind in ("old", "new"))
    made = await create_item(items, labels=old)
    assert (await items.update(made, WorkItemChanges(add_labels=new, remove_labels=old))).labels == tuple(new)
    with pytest.raises(InvalidWorkItem, match="at most 20 labels"):
        await items.update(made, WorkItemChanges(add_labels=["another"]))


async def test_before_a_date_is_before_the_day_begins(serving: Serving) -> None:
    client = await serving()
    for due in ("2026-01-30", "2026-01-31T00:00:00Z", "2026-01-31T12:00:00Z", "2026-01-31"):
        await client.call_tool("create_task", {"description": due, "due": due})
    for date, expected in (
        ("2026-01-31", ["2026-01-30"]),
        ("2026-02-01", ["2026-01-30", "2026-01-31T00:00:00Z", "2026-01-31T12:00:00Z", "2026-01-31"]),
        ("2026-01-31T13:00:00+01:00", ["2026-01-30", "2026-01-31T00:00:00Z"]),
    ):
        page = (await client.call_tool("list_tasks", {"due_before": date}, result_type=dict)).data
        assert [task["description"] for task in page["tasks"]] == expected
