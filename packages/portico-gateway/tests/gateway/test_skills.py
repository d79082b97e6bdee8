"""Skills of upstreams through a gateway: listed, found and read."""

from __future__ import annotations

from pathlib import Path

import pytest

from portico import Client, Server
from portico.client.skills import get_skill, list_skills, read_skill, read_skill_file
from portico.protocol.errors import InvalidParams, ResourceNotFound, UsageError
from portico.server.skills.service import Skills
from portico_gateway import Gateway


def serving(tmp_path: Path, name: str, skills: dict[str, str]) -> Server:
    folder = tmp_path / name
    for skill, text in skills.items():
        (folder / skill / "references").mkdir(parents=True)
        (folder / skill / "SKILL.md").write_text(f"---\nname: {skill}\ndescription: About {skill}.\n---\n{text}\n")
        (folder / skill / "references" / "MORE.md").write_text(f"more of {text}")
    server = Server(name)
    server.add(Skills(folder))
    return server


async def test_skills_of_several_upstreams(tmp_path: Path) -> None:
    result = serving(tmp_path, "one", {"pdf": "of one", "forms": "forms"})
    two = serving(tmp_path, "two", {"pdf": "of two", "maps": "maps"})
    async with Client(Gateway({"one": result, "two": two})) as client:
        skills = {skill.frontmatter["name"]: skill for skill in await list_skills(client)}
        assert set(skills) == {"pdf", "forms", "maps"}
        assert "of one" in await read_skill(client, skills["pdf"]), "the first one has an address that two want"
        assert await read_skill_file(client, skills["maps"], "references/MORE.md") == "more of maps"
        assert (await get_skill(client, skills["maps"].uri)).frontmatter == skills["maps"].frontmatter
        response = await client.request("resources/directory/read", {"uri": "skill://maps/references"})
        assert b"MORE.md" in bytes(response)
        with pytest.raises(InvalidParams):
            await get_skill(client, "skill://none/SKILL.md")
        with pytest.raises(ResourceNotFound):
            await client.read_resource("skill://maps/references/NONE.md")


async def test_skills_of_the_gateway_itself_come_first(tmp_path: Path) -> None:
    gateway = Gateway({"two": serving(tmp_path, "two", {"pdf": "of two", "maps": "maps"})})
    (tmp_path / "own" / "pdf").mkdir(parents=True)
    (tmp_path / "own" / "pdf" / "SKILL.md").write_text("---\nname: pdf\ndescription: Own.\n---\nown\n")
    gateway.add(Skills(tmp_path / "own"))
    async with Client(gateway) as client:
        skills = {skill.frontmatter["name"]: skill for skill in await list_skills(client)}
        assert skills["pdf"].frontmatter["description"] == "Own."
        assert "maps" in await read_skill(client, skills["maps"])


async def test_skills_are_not_declared_without_skills() -> None:
    async with Client(Gateway({"one": Server("one")})) as client:
        with pytest.raises(UsageError, match="does not serve skills"):
            await list_skills(client)


async def test_directory_omits_components_excluded_by_a_view(tmp_path: Path) -> None:
    result = serving(tmp_path, "one", {"maps": "maps"})
    (tmp_path / "one" / "maps" / "references" / "SECRET.md").write_text("secret")
    gateway = Gateway({"one": result})
    gateway.add_view("readers", exclude=["one.skill://maps/references/SECRET*"])
    async with Client(gateway) as client:
        response = await client.request("resources/directory/read", {"uri": "skill://maps/references"})
        assert b"SECRET" in bytes(response)
    async with Client(gateway.views["readers"]) as client:
        response = await client.request("resources/directory/read", {"uri": "skill://maps/references"})
        assert b"MORE.md" in bytes(response)
        assert b"SECRET" not in bytes(response)
