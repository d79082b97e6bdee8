"""No result contains a hidden name, for any query in any order."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from portico import Client, Server
from portico_services.system import machine as machines, processes
from portico_services.system.files import line_ranges
from portico_services.system.results import ProcessInfo
from portico_services.system.service import System

LEVELS = ("anonymize", "strict")
# Somebody with an account here, somebody whom a log calls a user, and their machines.
NAMES = ("m.kowalski", "strauß", "adalbert", "203.0.113.77", "pluto7", "mars.example.net", "eva@mars.example.net")
TOKEN = re.compile(r"\b(?:user|host|address|mail)-[0-9a-f]{12}\b")

LOG = """\
Jun 14 15:16:01 pluto7 sshd[1]: Failed password for invalid user adalbert from 203.0.113.77 port 1
Jun 14 15:16:02 pluto7 sshd[2]: Accepted publickey for m.kowalski from mars.example.net port 2
Jun 14 15:16:03 pluto7 m.kowalski[3]: wrote to eva@mars.example.net
Jun 14 15:16:04 pluto7 su[4]: session opened for user strauß by (uid=0); STRAUSS is in
"""


class Shown:
    """What a machine with these names shows."""

    def __init__(self, folder: Path, level: str) -> None:
        self.folder = folder
        self.server = Server("machine")
        self.service = System(
            allowed_paths=[folder / "data"],
            logs={"auth": folder / "auth.log"},
            platform_logs=False,
            access_levels={"registry": "read-write"},
            privacy=level,
            file_index=False,
        )
        self.server.add(self.service)
        self.tokens: set[str] = set()

    def arguments(self) -> list[str]:
        return [*sorted(self.tokens), "user-000000000000"]

    def check(self, said: Any, given: str = "") -> None:
        """What was asked may be repeated, but nobody in this test asks by a name."""
        text = json.dumps(said, ensure_ascii=False, default=str)
        self.tokens |= set(TOKEN.findall(text))
        folded = text.casefold()
        for name in NAMES:
            assert not re.search(rf"(?<!\w){re.escape(name.casefold())}(?!\w)", folded), (name, given, text[:2000])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("names")
    (top / "auth.log").write_text(LOG, encoding="utf-8")
    home = top / "data" / "home" / "m.kowalski"
    home.mkdir(parents=True)
    (home / "m.kowalski.txt").write_text(f"user=adalbert\nhe is adalbert\n{LOG}", encoding="utf-8")
    (home / "long.txt").write_text("x " * 60 + "m.kowalski " + "y " * 60, encoding="utf-8")
    (home / "utf16.txt").write_text("user=adalbert\nhe is adalbert\n", encoding="utf-16")
    (top / "data" / "plain.txt").write_text("nobody is here\n", encoding="utf-8")
    return top


@pytest.fixture(autouse=True)
def _people(monkeypatch: pytest.MonkeyPatch) -> None:
    people = [("user", "m.kowalski"), ("user", "Strauß"), ("host", "pluto7")]
    monkeypatch.setattr(machines, "local_names", lambda: iter(people))

    def listed(name: str | None, order: Any, limit: int | None) -> tuple[list[ProcessInfo], int]:
        results = [
            ProcessInfo(1, "init", username="root", cmdline="/sbin/init"),
            ProcessInfo(2, "sh", username="adalbert", cmdline="sh -c 'run as adalbert for m.kowalski'"),
        ]
        result = (name or "").casefold()
        results = [item for item in results if result in item.name or result in (item.cmdline or "")]
        return results[:limit], len(results)

    monkeypatch.setattr(processes, "list_processes", listed)


@pytest.fixture(params=LEVELS)
def shown(request: pytest.FixtureRequest, folder: Path) -> Iterator[Shown]:
    result = Shown(folder, request.param)
    yield result
    result.service._close()


async def ask(client: Client, shown: Shown, tool: str, **arguments: Any) -> Any:
    result = await client.call_tool(tool, arguments, raise_on_error=False)
    response = (
        result.structured if result.structured is not None else [getattr(item, "text", "") for item in result.content]
    )
    shown.check(response, f"{tool} {arguments}")
    return response


WORDS = st.sampled_from(["", "user=", "for ", "is ", ".txt", "sh", "x", "invalid user "])
PLACES = st.sampled_from(
    ["", "/", "/home/", "/home/{}/", "/home/{}/{}.txt", "/n/{}", "/home/{}/long.txt", "/{}.5", "/.."]
)


@st.composite
def calls(draw: Any) -> tuple[str, dict[str, Any]]:
    """A call; `{}` in an argument becomes one of the tokens that were shown."""
    tool = draw(
        st.sampled_from(
            [
                "fs_stat",
                "fs_list",
                "fs_read",
                "fs_checksum",
                "fs_search",
                "eventlog_query",
                "eventlog_stats",
                "reg_list",
                "reg_read",
                "reg_write",
                "process_list",
                "eventlog_list_logs",
            ]
        )
    )
    place = "ROOT" + draw(PLACES)
    text = draw(WORDS) + draw(st.sampled_from(["", "{}"]))
    key = "HKEY_CURRENT_USER\\Software\\" + draw(st.sampled_from(["{}", "a", "{}\\{}"]))
    arguments: dict[str, dict[str, Any]] = {
        "fs_stat": {"path": place},
        "fs_list": {"path": place},
        "fs_checksum": {"path": place},
        "fs_read": {"path": place, "offset": draw(st.integers(0, 400)), "length": draw(st.integers(1, 12))},
        "fs_search": draw(
            st.sampled_from(
                [
                    {"contains": text or "a"},
                    {"contains": f"/{text}.?/"},
                    {"searchText": text or "t"},
                    {"fileName": f"{text}*"},
                    {"fileName": "[!a]*"},
                    {"path": place},
                ]
            )
        ),
        "eventlog_query": {"logName": "auth", "messageContains": text or None, "limit": draw(st.integers(1, 4))},
        "eventlog_stats": {"logName": draw(st.sampled_from(["auth", "{}"]))},
        "reg_list": {"path": key},
        "reg_read": {"path": key, "name": "{}"},
        "reg_write": {"path": key, "name": "{}", "value": "{}", "dry_run": draw(st.booleans())},
        "process_list": {"name": text},
        "eventlog_list_logs": {},
    }
    return tool, arguments[tool]


def filled(shown: Shown, arguments: dict[str, Any], draw: Any) -> dict[str, Any]:
    def one(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        value = value.replace("ROOT", str(shown.folder / "data"))
        while "{}" in value:
            value = value.replace("{}", draw(shown.arguments()), 1)
        return value

    return {name: one(value) for name, value in arguments.items()}


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(sequence=st.lists(calls(), min_size=1, max_size=12), seed=st.integers(0, 2**32))
def test_no_answer_has_a_name_that_is_hidden(shown: Shown, sequence: list[Any], seed: int) -> None:
    # Tokens are other ones each time, so which is given back is not for hypothesis to choose.
    picks = random.Random(seed)
    shown.tokens.clear()

    async def run() -> None:
        async with Client(shown.server) as client:
            # So that there are tokens to give back.
            await ask(client, shown, "eventlog_query", logName="auth")
            await ask(client, shown, "fs_search")
            for tool, arguments in sequence:
                await ask(client, shown, tool, **filled(shown, arguments, picks.choice))

    asyncio.run(run())


async def tokens_of(client: Client, shown: Shown) -> tuple[str, str]:
    """Those of somebody with an account here, and of an address."""
    page = await ask(client, shown, "eventlog_query", logName="auth", messageContains="publickey")
    user = re.search(r"for (user-\w+)", page["entries"][0]["message"])
    page = await ask(client, shown, "eventlog_query", logName="auth", messageContains="invalid user")
    address = re.search(r"from (address-\w+)", page["entries"][0]["message"])
    assert user and address
    return user[1], address[1]


async def test_rejection_repeats_the_requested_path(shown: Shown) -> None:
    async with Client(shown.server) as client:
        user, address = await tokens_of(client, shown)
        for tool in ("fs_stat", "fs_list", "fs_read", "fs_checksum"):
            for path in (f"/n/{user}", f"/n/{address}.5"):
                [said] = await ask(client, shown, tool, path=path)
                assert repr(path) in said
        [said] = await ask(client, shown, "reg_list", path=f"HKCU\\{user}")
        assert user in said
        change = await ask(client, shown, "reg_write", path=f"HKCU\\{user}", name=user, value="x", dry_run=True)
        assert change["path"] == f"HKEY_CURRENT_USER\\{user}"


async def test_name_is_found_by_token_but_not_by_prefix(shown: Shown) -> None:
    home = str(shown.folder / "data")
    async with Client(shown.server) as client:
        user, _ = await tokens_of(client, shown)

        async def entries(text: str) -> int:
            return int((await ask(client, shown, "eventlog_query", logName="auth", messageContains=text))["totalCount"])

        async def files(**wanted: str) -> list[str]:
            page = await ask(client, shown, "fs_search", path=home, **wanted)
            return [row["name"] for row in page["files"]]

        assert await entries(f"for {user} from") == 1
        # Neither the letters of the name nor those of its token.
        for text in ("for m", "m.k", "kowalski", user[:9], f"or {user[:9]}"):
            assert await entries(text) == 0
        assert await files(searchText=user) == [user, f"{user}.txt"]
        assert await files(fileName=f"{user}.t?t") == [f"{user}.txt"]
        for text in ("kowal", "m.", user[:8]):
            assert await files(searchText=text) == []
            assert await files(fileName=f"{text}*") == []
        # What is no part of a name is found as ever, and nothing is told apart by the first letter of one.
        assert await files(fileName="[!m]*.txt") == await files(fileName="*.txt")
        assert await files(contains="nobody") == ["plain.txt"]
        assert f"{user}.txt" in await files(contains=f"for {user}")
        for pattern in ("kowal", "/for m/", "/for [l-n][.]/", "/he is ad/"):
            assert await files(contains=pattern) == []
        assert f"{user}.txt" in await files(contains="/for [^m]/")
        listed = await ask(client, shown, "process_list", name="adal")
        assert listed["processes"] == []


async def test_file_is_read_by_whole_lines(shown: Shown) -> None:
    async with Client(shown.server) as client:
        user, _ = await tokens_of(client, shown)
        path = f"{shown.folder}/data/home/{user}/{user}.txt"
        whole = (await ask(client, shown, "fs_read", path=path))["content"]
        size = len(f"user=adalbert\nhe is adalbert\n{LOG}".encode())
        result, offset = "", 0
        while offset is not None:
            part = await ask(client, shown, "fs_read", path=path, offset=offset, length=3)
            assert part["offset"] == offset
            result, offset = result + part["content"], part["nextOffset"]
        assert result == whole
        # From the middle of a line on, it is that line.
        for offset in range(0, size, 3):
            part = await ask(client, shown, "fs_read", path=path, offset=offset, length=3)
            assert part["offset"] <= offset < part["offset"] + part["length"]
            assert part["content"] in whole


async def test_line_without_end_is_cut_in_the_same_places(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_ranges, "MAX_LINE_BYTES", 64)
    path = shown.folder / "data" / "endless.txt"
    path.write_text("word m.kowalski; " * 40, encoding="utf-8")
    async with Client(shown.server) as client:
        whole = (await ask(client, shown, "fs_read", path=str(path)))["content"]
        for offset in range(0, 17 * 40, 5):
            part = await ask(client, shown, "fs_read", path=str(path), offset=offset, length=2)
            assert part["length"] <= 128
            assert part["content"] in whole
    path.unlink()


async def test_page_with_more_names_than_can_be_hidden_is_rejected(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("portico_services.system.anonymizer.MAX_NAMES_PER_RESULT", 5)
    async with Client(shown.server) as client:
        [said] = await ask(client, shown, "eventlog_query", logName="auth")
        assert "Request less" in said
