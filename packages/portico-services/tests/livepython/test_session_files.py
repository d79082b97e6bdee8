"""Tools that change methods in place and save sessions."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from portico import Client, Server
from portico.auth import Principal
from portico_services.livepython import LivePython, session_files, session_tools
from portico_services.livepython.attachment import AttachedPython
from support.live_python import REVISION, WorkerDialog, jail_only

Begin = Callable[..., Any]
pytestmark = jail_only


@pytest.fixture
def kept(talk: Begin, tmp_path: Path) -> Begin:
    async def begin(**more: Any) -> WorkerDialog:
        begun: WorkerDialog = await talk(tools="all", saved_sessions_dir=tmp_path / "saved", **more)
        return begun

    return begin


async def test_usual_tools_are_few_and_all_are_more(tmp_path: Path) -> None:
    async def listed(live: LivePython) -> set[str]:
        server = Server("live", version="1")
        server.add(live)
        async with Client(server) as client:
            return {tool.name for tool in await client.list_tools()}

    usual = await listed(LivePython(saved_sessions_dir=tmp_path))
    assert len(usual) == 11
    assert await listed(LivePython(tools="all")) - usual == {"define_method", "list_changes", "undo_change"}
    assert await listed(LivePython(tools="all", saved_sessions_dir=tmp_path)) - usual == {
        *("define_method", "list_changes", "undo_change", "save_session", "restore_session"),
        *("list_saved_sessions", "delete_saved_session"),
    }
    assert "define_method" not in await listed(AttachedPython({}))
    assert {"evaluate", "define_method"} <= await listed(AttachedPython({}, evaluate=True))


async def test_method_is_changed_and_the_change_is_a_patch(kept: Begin) -> None:
    live = await kept()
    await live.run("class A:\n    def f(self):\n        return 1\na = A()")
    response = await live.call("define_method", className="A", source="def f(self):\n    return 2")
    assert response.structured == {"className": "A", "selector": "f", "kind": "changed", "module": "__main__"}
    assert await live.text("a.f()") == "2"
    response = await live.call("list_changes")
    assert response.text.startswith("--- /dev/null\n+++ b/A.py\n")
    assert response.structured["patch"] == response.text
    assert (await live.call("list_changes", session="other")).text == "No methods were changed."
    assert "one `def`" in (await live.call("define_method", className="A", source="1")).text
    undone = await live.call("undo_change", className="A", selector="f")
    assert undone.structured["kind"] == "restored"
    assert (await live.call("list_changes")).text == "No methods were changed."
    assert "was not changed in this session" in (await live.call("undo_change", className="A", selector="f")).text


async def test_saved_session_is_restored_by_another_server(kept: Begin) -> None:
    live = await kept()
    await live.run("import json\nclass A:\n    def f(self): return 1\na = [A()]; text = 'ö'; free = (x for x in a)")
    response = (await live.call("save_session", name="monday")).structured
    assert (response["names"], response["total"]) == (["A", "a", "json", "text"], 4)
    assert [item["name"] for item in response["leftOut"]] == ["free"]
    again = await kept()
    (listed,) = (await again.call("list_saved_sessions")).structured["result"]
    assert listed == response
    back = (await again.call("restore_session", name="monday", session="tuesday")).structured
    assert (back["names"], back["leftOut"]) == (["A", "a", "json", "text"], [])
    assert await again.text("a[0].f(), text, json.dumps(1)", session="tuesday") == "(1, 'ö', '1')"
    assert "NameError" in await again.text("a")


async def test_invalid_session_names_are_rejected(kept: Begin) -> None:
    live = await kept(max_saved_sessions=2)
    for name in ("../x", "a/b", "", "x" * 65, "\0"):
        for tool in ("save_session", "restore_session", "delete_saved_session"):
            assert (await live.call(tool, name=name)).is_error
    assert "Unknown saved session 'a'." in (await live.call("restore_session", name="a")).text
    for name in ("a", "..", "a"):
        assert not (await live.call("save_session", name=name)).is_error
    assert "limit of 2 saved sessions" in (await live.call("save_session", name="c")).text
    # Those of one moment may stand in any order.
    text = (await live.call("delete_saved_session", name="c")).text
    assert "saved: a, .." in text or "saved: .., a" in text
    deleted = (await live.call("delete_saved_session", name="a")).structured
    assert deleted == {"name": "a", "deleted": True}
    assert not (await live.call("save_session", name="c")).is_error


async def test_large_sessions_travel_in_parts_up_to_a_bound(kept: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    live = await kept()
    await live.run("import random; big = random.randbytes(3_000_000)")
    response = await live.call("save_session", name="big")
    assert response.structured["size"] > 3_000_000
    await live.run("before = big", session="other")
    assert not (await live.call("restore_session", name="big", session="other")).is_error
    assert await live.text("len(big)", session="other") == "3000000"
    monkeypatch.setattr(session_tools, "MAX_SESSION_BYTES", 2_000_000)
    assert "2,000,000 can be saved. The largest are big (3," in (await live.call("save_session", name="big")).text
    monkeypatch.setattr(session_files, "MAX_TOTAL_BYTES", 3_000_000)
    await live.run("big = 1")
    assert "total size limit" in (await live.call("save_session", name="small")).text


async def test_saved_sessions_are_unpickled_only_in_the_sandbox(kept: Begin, tmp_path: Path) -> None:
    """Neither saving, listing nor restoring runs anything of it here."""
    live = await kept()
    mark = tmp_path / "escaped"
    await live.run(
        "class Bad:\n"
        f"    def __reduce__(self): return (open, ({str(mark)!r}, 'w'))\n"
        "class Worse:\n"
        "    def __reduce__(self): return (exec, ('import os; found = os.getpid()',))\n"
        "bad, worse = Bad(), Worse()"
    )
    response = (await live.call("save_session", name="evil")).structured
    # Reading it is tried before it is kept, and there it is refused.
    assert "Permission" in next(item["reason"] for item in response["leftOut"] if item["name"] == "bad")
    back = (await live.call("restore_session", name="evil", session="other")).structured
    assert "worse" in back["names"]
    assert not mark.exists()
    pid = (await live.run("import os; os.getpid()", session="other")).structured["value"]
    assert pid != os.getpid()


async def test_damaged_session_file_is_rejected(kept: Begin, tmp_path: Path) -> None:
    live = await kept()
    await live.run("x = 1")
    await live.call("save_session", name="a")
    (path,) = (tmp_path / "saved").rglob("*.session")
    assert oct(path.stat().st_mode & 0o777) == "0o600"
    data = path.read_bytes()
    for damage in (data[:-1], b"", data.replace(b"\n", b"", 1), b"[]\n"):
        path.write_bytes(damage)
        assert "is damaged" in (await live.call("restore_session", name="a")).text
        await live.call("list_saved_sessions")


async def test_saved_sessions_are_private_to_their_principal(tmp_path: Path) -> None:
    server, live = Server("live", version="1"), LivePython(tools="all", saved_sessions_dir=tmp_path)
    server.add(live)
    async with (
        Client(server, protocol_version=REVISION, principal=Principal("ada")) as hers,
        Client(server, protocol_version=REVISION, principal=Principal("bob")) as his,
    ):
        ada, bob = WorkerDialog(hers, live), WorkerDialog(his, live)
        await ada.run("x = 1")
        assert not (await ada.call("save_session", name="mine")).is_error
        assert "Unknown saved session" in (await bob.call("restore_session", name="mine")).text
        assert (await bob.call("list_saved_sessions")).structured["result"] == []
        assert len((await ada.call("list_saved_sessions")).structured["result"]) == 1
