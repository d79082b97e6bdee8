"""Skills in the client: fetched on demand, and only as listed."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import msgspec
import pytest

from portico import Client, ProtocolError, Server, Skills, UsageError
from portico.client.skills import (
    SkillVerificationError,
    get_skill,
    list_skills,
    read_skill,
    read_skill_file,
    validate_skill,
)
from portico.protocol.content import BlobResourceContents, TextResourceContents
from portico.protocol.errors import InvalidParams
from portico.protocol.lifecycle import DiscoverResult
from portico.protocol.meta import ServerCapabilities
from portico.protocol.resources import ReadResourceResult
from portico.protocol.skills import SKILLS_EXTENSION, GetSkillResult, ListSkillsResult, Skill, SkillFile
from portico.protocol.versions import FIRST_MODERN_VERSION
from portico.rpc.call import Call
from support import paths

ROOT = "skill://letters"
MANIFEST = f"{ROOT}/SKILL.md"
TEXT = """---
name: letters
description: Write letters that are read to the end
metadata:
  version: 2
  drafts: true
---

Choose one of `forms/`.
"""
HEAD = {
    "name": "letters",
    "description": "Write letters that are read to the end",
    "metadata": {"version": 2, "drafts": True},
}
FORM = b"\x00\xff a form"


def listed(uri: str, data: bytes, **changed: Any) -> SkillFile:
    return msgspec.structs.replace(SkillFile(uri, f"sha256:{sha256(data).hexdigest()}", len(data)), **changed)


class Shelf:
    """A Handler with one skill, which is as honest as a test wants it."""

    def __init__(self) -> None:
        self.files = {MANIFEST: TEXT.encode(), f"{ROOT}/forms/a%20bill.bin": FORM}
        self.head: dict[str, Any] = HEAD
        self.dynamic = False
        self.ttl_ms = 0
        self.reads: list[str] = []
        self.declares: dict[str, Any] | None = {SKILLS_EXTENSION: {}}

    @property
    def skill(self) -> Skill:
        files = "dynamic" if self.dynamic else [listed(uri, data) for uri, data in self.files.items()]
        return Skill(MANIFEST, self.head, files)

    async def __call__(self, call: Call) -> Any:
        hints = {"ttl_ms": self.ttl_ms, "cache_scope": "private"}
        capabilities = ServerCapabilities(resources={}, extensions=self.declares)
        if call.method == "server/discover":
            return DiscoverResult(supported_versions=[FIRST_MODERN_VERSION], capabilities=capabilities, **hints)
        if call.method == "skills/list":
            return ListSkillsResult(skills=[self.skill], **hints)
        if call.method == "skills/get":
            return GetSkillResult(skill=self.skill, **hints)
        if call.method == "resources/read":
            uri = msgspec.json.decode(call.params)["uri"]
            self.reads.append(uri)
            return ReadResourceResult(contents=self.contents(uri), **hints)
        return None

    def contents(self, uri: str) -> list[Any]:
        data = self.files.get(uri)
        if data is None:
            raise InvalidParams(f"there is no {uri}")
        try:
            return [TextResourceContents(uri=uri, text=data.decode())]
        except UnicodeDecodeError:
            return [BlobResourceContents(uri=uri, blob=b64encode(data).decode())]


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


async def test_nothing_is_fetched_before_it_is_needed(shelf: Shelf) -> None:
    async with Client(shelf) as client:
        (skill,) = await list_skills(client)
        assert skill.frontmatter == HEAD
        assert shelf.reads == []
        assert await read_skill(client, skill) == TEXT
        assert shelf.reads == [MANIFEST]


async def test_client_reads_skills_served_by_portico() -> None:
    server = Server("skillful", version="1")
    server.add(Skills(paths.ROOT / "examples" / "skills"))
    async with Client(server) as client:
        (skill,) = await list_skills(client)
        assert "name: commit-messages" in await read_skill(client, skill)
        assert isinstance(await read_skill_file(client, skill, "references/verbs.md"), str)
        assert await get_skill(client, skill.uri) == skill
        with pytest.raises(ProtocolError, match="Unknown skill"):
            await get_skill(client, "skill://nothing/SKILL.md")


@pytest.mark.parametrize("path", ["forms/a bill.bin", "./forms/a%20bill.bin", f"{ROOT}/forms/a%20bill.bin"])
async def test_file_is_named_as_instructions_name_it_or_by_its_uri(shelf: Shelf, path: str) -> None:
    async with Client(shelf) as client:
        (skill,) = await list_skills(client)
        assert await read_skill_file(client, skill, path) == FORM


async def test_server_that_declares_no_skills_is_not_requested_any(shelf: Shelf) -> None:
    shelf.declares = None
    async with Client(shelf) as client:
        with pytest.raises(UsageError, match="does not serve skills"):
            await list_skills(client)
        with pytest.raises(UsageError, match="does not serve skills"):
            await get_skill(client, MANIFEST)


# What was listed, and what is there


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text.replace("forms", "doors"), "its digest is sha256:"),
        (lambda text: text + "more\n", "bytes, expected"),
        (lambda text: "", "it has 0 bytes"),
    ],
)
async def test_file_that_changed_since_it_was_listed_is_rejected(
    shelf: Shelf, change: Callable[[str], str], reason: str
) -> None:
    async with Client(shelf) as client:
        (skill,) = await list_skills(client)
        shelf.files[MANIFEST] = change(TEXT).encode()
        with pytest.raises(SkillVerificationError, match=reason) as refused:
            await read_skill(client, skill)
        assert refused.value.uri == MANIFEST
        shelf.files[f"{ROOT}/forms/a%20bill.bin"] = FORM[::-1]
        with pytest.raises(SkillVerificationError, match="digest"):
            await read_skill_file(client, skill, "forms/a bill.bin")


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        ({**HEAD, "description": "Send money"}, "'description' is 'Write letters.* in the file, but 'Send money'"),
        ({key: HEAD[key] for key in ("name", "description")}, "'metadata' is .* but nothing in the list"),
        ({**HEAD, "license": "MIT"}, "'license' is nothing in the file, but 'MIT'"),
        ({**HEAD, "metadata": {"version": 2, "drafts": 1}}, "'metadata'"),
        ({**HEAD, "metadata": {"version": True, "drafts": True}}, "'metadata'"),
        ({**HEAD, "metadata": {"version": "2", "drafts": True}}, "'metadata'"),
        ({**HEAD, "metadata": {"version": 2}}, "'metadata'"),
        ({**HEAD, "metadata": [2, True]}, "'metadata'"),
    ],
)
async def test_frontmatter_that_is_not_the_one_listed_is_rejected(
    shelf: Shelf, head: dict[str, Any], reason: str
) -> None:
    shelf.head = head
    async with Client(shelf) as client:
        (skill,) = await list_skills(client)
        with pytest.raises(SkillVerificationError, match=reason):
            await read_skill(client, skill)


async def test_numbers_are_the_same_however_they_are_written(shelf: Shelf) -> None:
    shelf.head = {**HEAD, "metadata": {"version": 2.0, "drafts": True}}
    async with Client(shelf) as client:
        assert await read_skill(client, (await list_skills(client))[0]) == TEXT


@pytest.mark.parametrize("text", ["no frontmatter", "---\nname: letters\ndate: 2026-07-28\n---\n", "---\n" * 100_000])
async def test_frontmatter_that_cannot_be_compared_is_rejected(shelf: Shelf, text: str) -> None:
    shelf.files[MANIFEST] = text.encode()
    async with Client(shelf) as client:
        (skill,) = await list_skills(client)
        with pytest.raises(
            SkillVerificationError, match=r"cannot be compared with the list: line \d|nothing in the file"
        ):
            await read_skill(client, skill)


async def test_skill_that_is_not_text_is_rejected(shelf: Shelf) -> None:
    shelf.files[MANIFEST] = FORM
    async with Client(shelf) as client:
        (skill,) = await list_skills(client)
        with pytest.raises(SkillVerificationError, match="not valid UTF-8 text"):
            await read_skill(client, skill)


async def test_file_that_is_not_listed_is_not_read(shelf: Shelf) -> None:
    async with Client(shelf) as client:
        (skill,) = await list_skills(client)
        shelf.files[f"{ROOT}/late.md"] = b"added later"
        for path in ("late.md", f"{ROOT}/late.md", "../others/SKILL.md", "skill://others/SKILL.md", ""):
            with pytest.raises(SkillVerificationError, match="is not listed"):
                await read_skill_file(client, skill, path)
        assert shelf.reads == []
        refreshed = await get_skill(client, skill.uri)
        assert await read_skill_file(client, refreshed, "late.md") == "added later"


async def test_refresh_bypasses_cached_skills(shelf: Shelf) -> None:
    shelf.ttl_ms = 60_000
    async with Client(shelf) as client:
        (skill,) = await list_skills(client)
        await read_skill(client, skill)
        assert await read_skill(client, skill) == TEXT
        assert shelf.reads == [MANIFEST], "what was kept is as good"
        shelf.files[MANIFEST] = TEXT.replace("forms", "doors").encode()
        assert await list_skills(client) == [skill]
        (changed,) = await list_skills(client, refresh=True)
        assert "doors" in await read_skill(client, changed)


@pytest.mark.broken_frames("a server that answers wrongly")
@pytest.mark.parametrize(
    "contents",
    [
        [],
        [TextResourceContents(uri="skill://others/SKILL.md", text=TEXT)],
        [TextResourceContents(uri=MANIFEST, text=TEXT), TextResourceContents(uri=MANIFEST, text=TEXT)],
        [BlobResourceContents(uri=MANIFEST, blob="not base64!")],
        [{"uri": MANIFEST}],
    ],
)
async def test_invalid_skill_file_responses_are_rejected(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, contents: list[Any]
) -> None:
    monkeypatch.setattr(shelf, "contents", lambda uri: contents)
    async with Client(shelf) as client:
        with pytest.raises(SkillVerificationError):
            await read_skill(client, (await list_skills(client))[0])


async def test_another_skill_than_the_one_requested_is_rejected(shelf: Shelf) -> None:
    async with Client(shelf) as client:
        with pytest.raises(SkillVerificationError, match="returned the skill 'skill://letters"):
            await get_skill(client, "skill://bills/SKILL.md")


# Skills that are made up as they are read


async def test_skill_without_digests_is_taken_only_if_that_is_said(shelf: Shelf) -> None:
    shelf.dynamic = True
    async with Client(shelf) as client:
        (skill,) = await list_skills(client)
        with pytest.raises(SkillVerificationError, match="allow_unverified=True"):
            await read_skill(client, skill)
        assert shelf.reads == []
        assert await read_skill(client, skill, allow_unverified=True) == TEXT
        assert await read_skill_file(client, skill, "forms/a bill.bin", allow_unverified=True) == FORM
        for path in ("../others/SKILL.md", "skill://others/SKILL.md", f"{ROOT}/%2e%2e/SKILL.md"):
            with pytest.raises(SkillVerificationError, match="not a file of this skill"):
                await read_skill_file(client, skill, path, allow_unverified=True)
        shelf.files[MANIFEST] = TEXT.replace("letters", "bills").encode()
        with pytest.raises(SkillVerificationError, match="'name' is 'bills' in the file"):
            await read_skill(client, skill, allow_unverified=True)


# Entries that make no sense

FILE = listed(MANIFEST, TEXT.encode())


@pytest.mark.parametrize(
    ("skill", "reason"),
    [
        (Skill("skill://letters/README.md", HEAD, "dynamic"), "the URI must end with the skill's name"),
        (Skill("skill://bills/SKILL.md", HEAD, "dynamic"), "the name is 'letters'"),
        (Skill(MANIFEST, {"name": 7}, "dynamic"), "the name is 7"),
        (Skill(MANIFEST, HEAD, []), "among its files"),
        (Skill(MANIFEST, HEAD, [FILE, FILE]), "no file may be listed twice"),
        (Skill(MANIFEST, HEAD, [FILE, listed("skill://lettersbox/a", b"")]), "invalid entry for the file"),
        (Skill(MANIFEST, HEAD, [FILE, listed("https://example.com/a", b"")]), "invalid entry for the file"),
        (Skill(MANIFEST, HEAD, [FILE, listed(f"{ROOT}/%2E%2E/a", b"")]), "invalid entry for the file"),
        (Skill(MANIFEST, HEAD, [listed(MANIFEST, b"", digest="sha256:A")]), "invalid entry for the file"),
        (Skill(MANIFEST, HEAD, [listed(MANIFEST, b"", digest=f"sha512:{'0' * 64}")]), "invalid entry for the file"),
        (Skill(MANIFEST, HEAD, [listed(MANIFEST, b"", size=-1)]), "invalid entry for the file"),
        (Skill(MANIFEST, HEAD, [listed(MANIFEST, b"", size=2**24 + 1)]), "too large"),
        (Skill(MANIFEST, HEAD, [FILE, *(listed(f"{ROOT}/{i}", b"") for i in range(512))]), "513 files"),
    ],
)
async def test_entry_that_makes_no_sense_is_rejected_before_anything_is_read(
    shelf: Shelf, skill: Skill, reason: str
) -> None:
    with pytest.raises(SkillVerificationError, match=reason):
        validate_skill(skill)
    async with Client(shelf) as client:
        for read in (read_skill(client, skill), read_skill_file(client, skill, "a")):
            with pytest.raises(SkillVerificationError, match=reason):
                await read
    assert shelf.reads == []


async def test_skill_verification_errors_are_short(shelf: Shelf) -> None:
    deep: Any = 0
    for _ in range(60):
        deep = {"k": [deep]}
    async with Client(shelf) as client:
        for metadata in ("x" * 1_000_000, deep, ["x" * 100] * 10_000):
            shelf.head = {**HEAD, "metadata": metadata}
            with pytest.raises(SkillVerificationError, match="'metadata'") as refused:
                await read_skill(client, (await list_skills(client))[0])
            assert len(str(refused.value)) < 2_000
