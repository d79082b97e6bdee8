"""Skills (SEP-2640): a directory of instructions as resources, without access outside of it."""

from __future__ import annotations

import json
import logging
import os
import sys
from base64 import b64decode
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from portico import Client, ProtocolError, Server, Skills, UsageError, safe_open
from portico.protocol.versions import HANDSHAKE_VERSIONS, SUPPORTED_PROTOCOL_VERSIONS
from portico.server.skills.directory import SkillDirectory

PNG = b"\x89PNG\r\n\x1a\n\x00\xff"
links = pytest.mark.skipif(sys.platform == "win32", reason="links need rights that not everybody has there")


def write(folder: Path, path: str, content: str | bytes) -> Path:
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def skill(folder: Path, path: str, more: str = "", body: str = "# Do it\n") -> Path:
    name = path.rpartition("/")[2]
    return write(folder, f"{path}/SKILL.md", f"---\nname: {name}\ndescription: How to {name}\n{more}---\n\n{body}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "skills"
    skill(root, "pdf-forms", more='license: MIT\nmetadata:\n  version: "2.1"\n  tags: [pdf, forms]\n')
    write(root, "pdf-forms/references/FORMS.md", "# Förms\n")
    write(root, "pdf-forms/references/deep/more.md", "# More\n")
    write(root, "pdf-forms/scripts/fill.py", "print('filled')\n")
    write(root, "pdf-forms/assets/logo.png", PNG)
    write(root, "pdf-forms/LICENSE", "Do what you like.\n")
    skill(root, "acme/billing/refunds")
    write(root, "README.md", "no part of any skill\n")
    write(root, "acme/notes.md", "no part of any skill\n")
    write(tmp_path, "secret.txt", "secret\n")
    return root


def serving(folder: Path, **options: Any) -> Server:
    server = Server("s")
    server.add(Skills(folder, **options))
    return server


async def ask(client: Client, method: str, **params: Any) -> Any:
    return json.loads(bytes(await client.request(method, params)))


async def refusal(client: Client, method: str, **params: Any) -> ProtocolError:
    with pytest.raises(ProtocolError) as refused:
        await client.request(method, params)
    assert refused.value.code == -32602
    return refused.value


# The extension


async def test_extension_and_its_setting_are_declared(folder: Path) -> None:
    async with Client(serving(folder)) as client:
        assert client.server_capabilities.extensions == {"io.modelcontextprotocol/skills": {"directoryRead": True}}
        assert client.server_capabilities.resources is not None


async def test_skills_methods_require_the_service(folder: Path) -> None:
    server = serving(folder)
    server.remove("skills")
    async with Client(server) as client:
        assert client.server_capabilities.extensions is None
        for method in ("skills/list", "skills/get", "resources/directory/read"):
            with pytest.raises(ProtocolError) as refused:
                await client.request(method, {"uri": "skill://pdf-forms"})
            assert refused.value.code == -32601
        assert await client.list_resources() == []


@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS)
async def test_handshake_revisions_have_the_files_but_not_the_methods(folder: Path, revision: str) -> None:
    async with Client(serving(folder), protocol_version=revision) as client:
        with pytest.raises(ProtocolError) as refused:
            await client.request("skills/list", {})
        assert refused.value.code in (-32601, -32602)
        assert [resource.name for resource in await client.list_resources()] == ["refunds", "pdf-forms"]
        assert (await client.read_resource("skill://pdf-forms/LICENSE"))[0].text == "Do what you like.\n"


# skills/list and skills/get


async def test_entry_has_the_frontmatter_as_it_is_and_every_file(folder: Path) -> None:
    async with Client(serving(folder)) as client:
        response = await ask(client, "skills/list")
        assert response["resultType"] == "complete"
        assert (response["ttlMs"], response["cacheScope"]) == (0, "private")
        assert "nextCursor" not in response
        first, second = response["skills"]
        assert first["uri"] == "skill://acme/billing/refunds/SKILL.md"
        assert [file["uri"] for file in first["resources"]] == [first["uri"]]
        assert second["uri"] == "skill://pdf-forms/SKILL.md"
        assert second["frontmatter"] == {
            "name": "pdf-forms",
            "description": "How to pdf-forms",
            "license": "MIT",
            "metadata": {"version": "2.1", "tags": ["pdf", "forms"]},
        }
        assert [file["uri"] for file in second["resources"]] == [
            f"skill://pdf-forms/{path}"
            for path in (
                "LICENSE",
                "SKILL.md",
                "assets/logo.png",
                "references/FORMS.md",
                "references/deep/more.md",
                "scripts/fill.py",
            )
        ]
        for entry in response["skills"]:
            got = await ask(client, "skills/get", uri=entry["uri"])
            assert got["skill"] == entry
            assert (got["ttlMs"], got["cacheScope"]) == (0, "private")
            assert "nextCursor" not in got


async def test_skill_files_match_the_listed_size_and_digest(folder: Path) -> None:
    async with Client(serving(folder)) as client:
        for entry in (await ask(client, "skills/list"))["skills"]:
            for file in entry["resources"]:
                (contents,) = await client.read_resource(file["uri"])
                data = contents.text.encode() if isinstance(contents.text, str) else b64decode(str(contents.blob))
                assert contents.uri == file["uri"]
                assert len(data) == file["size"]
                assert f"sha256:{sha256(data).hexdigest()}" == file["digest"]


async def test_list_comes_in_pages(folder: Path) -> None:
    for number in range(5):
        skill(folder, f"many/skill-{number}")
    async with Client(serving(folder, page_size=3, cache_ttl_ms=5000, cache_scope="public")) as client:
        result, params = [], {}
        for size in (3, 3, 1):
            page = await ask(client, "skills/list", **params)
            assert (len(page["skills"]), page["ttlMs"], page["cacheScope"]) == (size, 5000, "public")
            result += [entry["uri"] for entry in page["skills"]]
            params = {"cursor": page.get("nextCursor")}
        assert params == {"cursor": None}
        assert len(set(result)) == 7
        await refusal(client, "skills/list", cursor="not one of ours")


@pytest.mark.parametrize(
    "uri",
    [
        "skill://nothing/SKILL.md",
        "skill://pdf-forms",
        "skill://pdf-forms/",
        "skill://pdf-forms/LICENSE",
        "skill://SKILL.md",
        "skill:///SKILL.md",
        "https://pdf-forms/SKILL.md",
        "pdf-forms/SKILL.md",
        "",
    ],
)
async def test_unknown_skill_is_invalid_params(folder: Path, uri: str) -> None:
    async with Client(serving(folder)) as client:
        refused = await refusal(client, "skills/get", uri=uri)
        assert refused.data == {"uri": uri}


async def test_nested_skill_is_listed_and_belongs_to_its_parent(folder: Path) -> None:
    skill(folder, "pdf-forms/parts/stamps")
    async with Client(serving(folder)) as client:
        entries = {entry["uri"]: entry for entry in (await ask(client, "skills/list"))["skills"]}
        inner = entries["skill://pdf-forms/parts/stamps/SKILL.md"]
        (file,) = inner["resources"]
        assert file in entries["skill://pdf-forms/SKILL.md"]["resources"]


# Resources


async def test_list_of_resources_has_each_skill_by_its_frontmatter(folder: Path) -> None:
    async with Client(serving(folder)) as client:
        listed = [
            (resource.uri, resource.name, resource.description, resource.mime_type)
            for resource in await client.list_resources()
        ]
        assert listed == [
            ("skill://acme/billing/refunds/SKILL.md", "refunds", "How to refunds", "text/markdown"),
            ("skill://pdf-forms/SKILL.md", "pdf-forms", "How to pdf-forms", "text/markdown"),
        ]


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
@pytest.mark.parametrize(
    ("path", "mime_type", "content"),
    [
        ("references/FORMS.md", "text/markdown", "# Förms\n"),
        ("scripts/fill.py", "text/x-python", "print('filled')\n"),
        ("LICENSE", "text/plain", "Do what you like.\n"),
        ("assets/logo.png", "image/png", PNG),
    ],
)
async def test_every_file_can_be_read(
    folder: Path, revision: str, path: str, mime_type: str, content: str | bytes
) -> None:
    async with Client(serving(folder), protocol_version=revision) as client:
        (contents,) = await client.read_resource(f"skill://pdf-forms/{path}")
        assert contents.mime_type == mime_type
        assert (contents.text if isinstance(content, str) else b64decode(str(contents.blob))) == content


async def test_names_are_written_as_uris_want_them(folder: Path) -> None:
    write(folder, "pdf-forms/a b/ü#1?{x}%2F@:.md", "odd\n")
    uri = "skill://pdf-forms/a%20b/%C3%BC%231%3F%7Bx%7D%252F%40%3A.md"
    async with Client(serving(folder)) as client:
        files = (await ask(client, "skills/get", uri="skill://pdf-forms/SKILL.md"))["skill"]["resources"]
        assert uri in [file["uri"] for file in files]
        assert (await client.read_resource(uri))[0].text == "odd\n"
        response = await ask(client, "resources/directory/read", uri="skill://pdf-forms/a%20b")
        assert [resource["uri"] for resource in response["resources"]] == [uri]


# resources/directory/read


async def test_directory_lists_its_children_and_not_deeper(folder: Path) -> None:
    (folder / "pdf-forms" / "empty").mkdir()
    async with Client(serving(folder)) as client:
        response = await ask(client, "resources/directory/read", uri="skill://pdf-forms")
        assert (response["ttlMs"], response["cacheScope"]) == (0, "private")
        children = {resource["uri"].removeprefix("skill://pdf-forms/"): resource for resource in response["resources"]}
        assert list(children) == ["LICENSE", "SKILL.md", "assets", "empty", "references", "scripts"]
        assert children["assets"] == {
            "uri": "skill://pdf-forms/assets",
            "name": "assets",
            "mimeType": "inode/directory",
        }
        assert children["SKILL.md"]["name"] == "pdf-forms"
        assert children["SKILL.md"]["description"] == "How to pdf-forms"
        assert children["LICENSE"] == {"uri": "skill://pdf-forms/LICENSE", "name": "LICENSE", "size": 18}
        response = await ask(client, "resources/directory/read", uri="skill://pdf-forms/references")
        assert [(resource["name"], resource["mimeType"]) for resource in response["resources"]] == [
            ("FORMS.md", "text/markdown"),
            ("deep", "inode/directory"),
        ]
        assert (await ask(client, "resources/directory/read", uri="skill://pdf-forms/empty"))["resources"] == []


async def test_directory_comes_in_pages(folder: Path) -> None:
    async with Client(serving(folder, page_size=3)) as client:
        page = await ask(client, "resources/directory/read", uri="skill://pdf-forms")
        rest = await ask(client, "resources/directory/read", uri="skill://pdf-forms", cursor=page["nextCursor"])
        assert "nextCursor" not in rest
        names = [item["name"] for item in page["resources"] + rest["resources"]]
        assert names == ["LICENSE", "pdf-forms", "assets", "references", "scripts"]


@pytest.mark.parametrize(
    "uri",
    [
        "skill://pdf-forms/SKILL.md",
        "skill://pdf-forms/nothing",
        "skill://pdf-forms/",
        "skill://nothing",
        "skill://acme",
        "skill://",
        "file:///etc",
    ],
)
async def test_directory_read_of_a_non_directory_is_invalid_params(folder: Path, uri: str) -> None:
    async with Client(serving(folder)) as client:
        assert (await refusal(client, "resources/directory/read", uri=uri)).data == {"uri": uri}


# Nothing outside

OUTSIDE = [
    "skill://README.md",
    "skill://acme/notes.md",
    "skill://../secret.txt",
    "skill://pdf-forms/../README.md",
    "skill://pdf-forms/../../secret.txt",
    "skill://pdf-forms/..%2F..%2Fsecret.txt",
    "skill://pdf-forms/%2e%2e/%2e%2e/secret.txt",
    "skill://pdf-forms/%2E%2E%2F%2E%2E%2Fsecret.txt",
    "skill://pdf-forms/..%5C..%5Csecret.txt",
    "skill://pdf-forms/%252e%252e/%252e%252e/secret.txt",
    "skill://pdf-forms/./LICENSE",
    "skill://pdf-forms//LICENSE",
    "skill://pdf-forms/LICENSE/",
    "skill://pdf-forms/LICENSE%00",
    "skill://pdf-forms/LICENSE%00.md",
    "skill://pdf-forms/LICENSE\u0000",
    "skill://pdf-forms/LICENSE?x=1",
    "skill://pdf-forms/LICENSE#x",
    "skill://pdf-forms/%4CICENSE",
    "skill://pdf%2Dforms/LICENSE",
    "skill://pdf-forms%2FLICENSE",
    "skill://pdf-forms/%FF",
    "skill://pdf-forms/" + "x" * 5000,
    "skill:///etc/passwd",
    "skill://%2Fetc%2Fpasswd",
    "skill://pdf-forms//etc/passwd",
    "skill://pdf-forms/references",
    "skill://",
]


@pytest.mark.requirement("resources.inside")
@pytest.mark.parametrize("uri", OUTSIDE)
async def test_nothing_outside_of_a_skill_can_be_read(folder: Path, uri: str) -> None:
    async with Client(serving(folder)) as client:
        refused = await refusal(client, "resources/read", uri=uri)
        # Control characters and escapes that are not UTF-8 are refused before the lookup.
        assert refused.data == {"uri": uri} or "Invalid params" in refused.message
        if uri != "skill://pdf-forms/references":
            await refusal(client, "resources/directory/read", uri=uri)
        await refusal(client, "skills/get", uri=f"{uri}/SKILL.md")


@pytest.mark.requirement("resources.inside")
@links
async def test_link_that_leaves_the_folder_is_not_served(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    skill(outside, "stolen")
    (folder / "pdf-forms" / "secret.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "pdf-forms" / "outside").symlink_to(outside)
    (folder / "stolen").symlink_to(outside / "stolen")
    (folder / "stolen-too").mkdir()
    (folder / "stolen-too" / "SKILL.md").symlink_to(outside / "stolen" / "SKILL.md")
    (folder / "pdf-forms" / "nowhere").symlink_to(tmp_path / "nothing")
    (folder / "pdf-forms" / "round").symlink_to(folder / "pdf-forms" / "round")
    (folder / "pdf-forms" / "up").symlink_to(folder)
    async with Client(serving(folder)) as client:
        entries = (await ask(client, "skills/list"))["skills"]
        assert [entry["frontmatter"]["name"] for entry in entries] == ["refunds", "pdf-forms"]
        assert len(entries[1]["resources"]) == 6
        children = (await ask(client, "resources/directory/read", uri="skill://pdf-forms"))["resources"]
        assert [item["name"] for item in children] == ["LICENSE", "pdf-forms", "assets", "references", "scripts"]
        for path in (
            "pdf-forms/secret.txt",
            "pdf-forms/outside/stolen/SKILL.md",
            "stolen/SKILL.md",
            "stolen-too/SKILL.md",
            "pdf-forms/nowhere",
            "pdf-forms/round",
            "pdf-forms/up/pdf-forms/LICENSE",
        ):
            await refusal(client, "resources/read", uri=f"skill://{path}")
            await refusal(client, "skills/get", uri=f"skill://{path}")
        for path in ("pdf-forms/outside", "stolen", "pdf-forms/up", "pdf-forms/up/pdf-forms"):
            await refusal(client, "resources/directory/read", uri=f"skill://{path}")


@links
async def test_link_to_a_file_inside_the_folder_is_a_file(folder: Path) -> None:
    (folder / "acme/billing/refunds/LICENSE").symlink_to(folder / "pdf-forms" / "LICENSE")
    write(folder, ".git/config", "secret\n")
    (folder / "acme/billing/refunds/config").symlink_to(folder / ".git" / "config")
    async with Client(serving(folder)) as client:
        entry = (await ask(client, "skills/get", uri="skill://acme/billing/refunds/SKILL.md"))["skill"]
        assert [file["uri"].rpartition("/")[2] for file in entry["resources"]] == ["LICENSE", "SKILL.md"]
        (contents,) = await client.read_resource("skill://acme/billing/refunds/LICENSE")
        assert contents.text == "Do what you like.\n"
        await refusal(client, "resources/read", uri="skill://acme/billing/refunds/config")


@links
@pytest.mark.parametrize("way", ["by the kernel", "by steps"])
async def test_directory_swapped_for_a_symlink_is_not_followed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Whoever may write in the folder can put a link where a directory was, between our look and our opening."""
    if way == "by steps":
        monkeypatch.setattr(safe_open, "_OPENAT2_AVAILABLE", False)
    elif not safe_open._has_openat2():
        pytest.skip("this kernel has no openat2")
    outside = tmp_path / "outside"
    write(outside, "FORMS.md", "stolen\n")
    write(outside, "stolen.md", "stolen\n")
    place, aside = folder / "pdf-forms" / "references", folder / "pdf-forms" / "aside"
    served = serving(folder)
    result = SkillDirectory._resolve_path

    def exchanged(self: SkillDirectory, path: str) -> Path:
        known = result(self, path)
        place.rename(aside)
        place.symlink_to(outside)
        return known

    async with Client(served) as client:
        for method, uri in (
            ("resources/read", "skill://pdf-forms/references/FORMS.md"),
            ("resources/directory/read", "skill://pdf-forms/references"),
        ):
            with monkeypatch.context() as patched:
                patched.setattr(SkillDirectory, "_resolve_path", exchanged)
                try:
                    assert "stolen" not in str(await ask(client, method, uri=uri))
                except ProtocolError:
                    pass
            place.unlink()
            aside.rename(place)
        # And after `_file`, which comes later still.
        resolved = SkillDirectory._file

        def later(self: SkillDirectory, one: Path) -> Path | None:
            known = resolved(self, one)
            if one.name == "FORMS.md" and not aside.exists():
                place.rename(aside)
                place.symlink_to(outside)
            return known

        monkeypatch.setattr(SkillDirectory, "_file", later)
        await refusal(client, "resources/read", uri="skill://pdf-forms/references/FORMS.md")


async def test_dot_files_are_no_part_of_a_skill(folder: Path) -> None:
    write(folder, "pdf-forms/.env", "secret\n")
    write(folder, "pdf-forms/.git/config", "secret\n")
    write(folder, "pdf-forms/scripts/__pycache__/fill.pyc", b"\0")
    skill(folder, ".drafts/half-done")
    async with Client(serving(folder)) as client:
        entries = (await ask(client, "skills/list"))["skills"]
        assert [len(entry["resources"]) for entry in entries] == [1, 6]
        for path in ("pdf-forms/.env", "pdf-forms/.git/config", "pdf-forms/%2Eenv", ".drafts/half-done/SKILL.md"):
            await refusal(client, "resources/read", uri=f"skill://{path}")


@links
async def test_pipe_is_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "pdf-forms" / "pipe")
    async with Client(serving(folder)) as client:
        assert len((await ask(client, "skills/list"))["skills"][1]["resources"]) == 6
        await refusal(client, "resources/read", uri="skill://pdf-forms/pipe")


# What cannot be served


@pytest.mark.parametrize(
    ("path", "content", "said"),
    [
        ("x", "# No frontmatter\n", "line 1: expected frontmatter"),
        ("x", "---\nname: x\n---\n", "description must be a non-empty string"),
        ("x", "---\nname: x\ndescription: ''\n---\n", "description must be a non-empty string"),
        ("X", "---\ndescription: d\n---\n", "name must be"),
        ("x", "---\nname: 5\ndescription: d\n---\n", "name must be"),
        ("x", "---\nname: y\ndescription: d\n---\n", "name must be the same as that of the directory, 'x'; got 'y'"),
        ("x", "---\nname: x\ndescription: use: it\n---\n", "line 3: a text with a colon"),
        ("x", b"---\nname: x\ndescription: \xff\n---\n", "must be UTF-8"),
        ("X", "---\nname: X\ndescription: d\n---\n", "name must be"),
        ("-x", '---\nname: "-x"\ndescription: d\n---\n', "name must be"),
        ("x-", "---\nname: x-\ndescription: d\n---\n", "name must be"),
        ("x--y", "---\nname: x--y\ndescription: d\n---\n", "name must be"),
        ("a_b", "---\nname: a_b\ndescription: d\n---\n", "name must be"),
        ("a" * 65, f"---\nname: {'a' * 65}\ndescription: d\n---\n", "name must be"),
    ],
)
def test_invalid_skills_raise_usage_error(folder: Path, path: str, content: str | bytes, said: str) -> None:
    file = write(folder, f"acme/{path}/SKILL.md", content)
    with pytest.raises(UsageError, match=said) as refused:
        Skills(folder)
    assert str(refused.value).startswith(f"{file.resolve()}: ")


@pytest.mark.parametrize("name", ["a", "a" * 64, "7", "a-b-c", "x2"])
def test_names_that_are_allowed(tmp_path: Path, name: str) -> None:
    write(tmp_path, f"{name}/SKILL.md", f'---\nname: "{name}"\ndescription: d\n---\n')
    Skills(tmp_path)


def test_skill_beyond_the_limits_is_rejected_at_once(folder: Path) -> None:
    for number in range(506):
        write(folder, f"pdf-forms/many/{number}.txt", "")
    Skills(folder)
    one_more = write(folder, "pdf-forms/many/more.txt", "")
    with pytest.raises(UsageError, match="pdf-forms: a skill must have at most 512 files"):
        Skills(folder)
    one_more.unlink()
    with (folder / "pdf-forms/many/0.txt").open("wb") as file:
        file.truncate(16 * 1024 * 1024)
    with pytest.raises(UsageError, match=r"pdf-forms: a skill must have at most [0-9,]+ bytes, got 16,777,\d+"):
        Skills(folder)


def test_invalid_skill_folders_raise_usage_error(folder: Path) -> None:
    with pytest.raises(UsageError, match="folder not found"):
        Skills(folder / "nothing")
    with pytest.raises(UsageError, match="not a folder"):
        Skills(folder / "README.md")
    with pytest.raises(UsageError, match="is a skill itself"):
        Skills(folder / "pdf-forms")


async def test_folder_without_skills_is_an_empty_list(tmp_path: Path) -> None:
    async with Client(serving(tmp_path)) as client:
        assert (await ask(client, "skills/list"))["skills"] == []


def test_one_server_has_one_folder_of_skills(folder: Path) -> None:
    server = serving(folder)
    with pytest.raises(UsageError, match="service 'skills' is already registered"):
        server.add(Skills(folder))


# Changes on disk


async def test_changed_file_has_a_fresh_digest(folder: Path) -> None:
    async with Client(serving(folder)) as client:

        async def digests() -> dict[str, str]:
            got = await ask(client, "skills/get", uri="skill://pdf-forms/SKILL.md")
            return {
                file["uri"].removeprefix("skill://pdf-forms/"): file["digest"] for file in got["skill"]["resources"]
            }

        before = await digests()
        changed = write(folder, "pdf-forms/LICENSE", "Do what you must, then.\n")
        write(folder, "pdf-forms/added.md", "# Added\n")
        (folder / "pdf-forms/scripts/fill.py").unlink()
        after = await digests()
        assert before["LICENSE"] != after["LICENSE"]
        assert after["LICENSE"] == f"sha256:{sha256(changed.read_bytes()).hexdigest()}"
        assert before.keys() ^ after.keys() == {"added.md", "scripts/fill.py"}
        assert (await client.read_resource("skill://pdf-forms/LICENSE"))[0].text == "Do what you must, then.\n"
        assert (await client.read_resource("skill://pdf-forms/added.md"))[0].text == "# Added\n"
        await refusal(client, "resources/read", uri="skill://pdf-forms/scripts/fill.py")


async def test_changed_frontmatter_and_a_skill_more_are_seen(folder: Path) -> None:
    async with Client(serving(folder)) as client:
        skill(folder, "acme/billing/refunds", more="license: MIT\n")
        skill(folder, "acme/billing/bills")
        entries = (await ask(client, "skills/list"))["skills"]
        assert [entry["frontmatter"]["name"] for entry in entries] == ["bills", "refunds", "pdf-forms"]
        assert entries[1]["frontmatter"]["license"] == "MIT"
        assert (await client.read_resource("skill://acme/billing/bills/SKILL.md"))[0].mime_type == "text/markdown"


async def test_skill_that_breaks_is_left_out_and_the_log_says_why_once(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Client(serving(folder)) as client:
        write(folder, "pdf-forms/SKILL.md", "---\nname: [\n---\n")
        with caplog.at_level(logging.WARNING, "portico"):
            for _ in range(2):
                entries = (await ask(client, "skills/list"))["skills"]
                assert [entry["frontmatter"]["name"] for entry in entries] == ["refunds"]
        (record,) = caplog.records
        assert "pdf-forms" in record.getMessage()
        await refusal(client, "skills/get", uri="skill://pdf-forms/SKILL.md")
        children = (await ask(client, "resources/directory/read", uri="skill://pdf-forms"))["resources"]
        assert "SKILL.md" in [item["name"] for item in children]


async def test_removed_skill_is_not_found(folder: Path) -> None:
    async with Client(serving(folder)) as client:
        (folder / "acme/billing/refunds/SKILL.md").unlink()
        assert len((await ask(client, "skills/list"))["skills"]) == 1
        await refusal(client, "skills/get", uri="skill://acme/billing/refunds/SKILL.md")
        await refusal(client, "resources/read", uri="skill://acme/billing/refunds/SKILL.md")
        await refusal(client, "resources/directory/read", uri="skill://acme/billing/refunds")
