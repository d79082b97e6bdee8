"""Skills as a client meets them: listed with what they promise, read when they are needed, and checked against it.

    skills = await list_skills(client)                                    # fetches no file
    text = await read_skill(client, skills[0])                            # its SKILL.md
    form = await read_skill_file(client, skills[0], "references/FORMS.md")

Whatever is read is what was listed, or SkillMismatch is raised. That proves that a server is of one mind, not that it
means well: what a skill says is a stranger's advice, whichever way it came (SEP-2640, Digests Are Not a Trust Anchor).
"""

from __future__ import annotations

import re
from base64 import b64decode
from hashlib import sha256
from reprlib import Repr
from typing import Any
from urllib.parse import quote, unquote

from msgspec import UNSET

from portico import frontmatter
from portico.client.client import Client
from portico.protocol.capabilities import declares
from portico.protocol.content import Contents
from portico.protocol.errors import ProtocolError, UsageError
from portico.protocol.skills import EXTENSION, MOST_BYTES, MOST_FILES, GetSkillResult, Skill, SkillFile

MANIFEST = "/SKILL.md"

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_SHORTENED = Repr()
_SHORTENED.maxstring = 300
_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class SkillMismatch(ProtocolError):
    """A skill is not what was listed: changed since, garbled, or forged. Nothing of it may be used.

    If it has merely changed, `get_skill` gives the entry as it is now; what a user approved before was another skill.
    """

    def __init__(self, uri: str, reason: str) -> None:
        super().__init__(f"{_brief(uri)}: {reason}")
        self.uri = uri


async def list_skills(client: Client, *, fresh: bool = False) -> list[Skill]:
    """Every skill that the server lists: it may list a part of them, or none. `fresh`: not from what was kept."""
    _declared(client)
    return await client._lists.all("skills/list", "skills", fresh=fresh)


async def get_skill(client: Client, uri: str) -> Skill:
    """One skill as it is now, by the URI of its SKILL.md, also if it is not listed."""
    _declared(client)
    said: GetSkillResult = await client._requests.result("skills/get", {"uri": uri})
    if said.skill.uri != uri:
        raise SkillMismatch(uri, f"the server answers with the skill {_brief(said.skill.uri)}")
    return said.skill


async def read_skill(client: Client, skill: Skill, *, unverified: bool = False) -> str:
    """The SKILL.md, after its size, its digest and its frontmatter were found to be those listed.

    `unverified`: also of a skill that is made up as it is read, which has only its frontmatter to be checked by.
    """
    check_entry(skill)
    data, _ = await _read(client, skill, skill.uri, unverified=unverified)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise SkillMismatch(skill.uri, "the file is not text") from None
    _check_frontmatter(skill, text)
    return text


async def read_skill_file(client: Client, skill: Skill, path: str, *, unverified: bool = False) -> str | bytes:
    """Another file of the skill, by its URI or by its path from the SKILL.md, as the instructions name it.

    A file that is not listed is not read. Gives text where the server sends text, and bytes elsewhere.
    """
    check_entry(skill)
    uri = path if _ABSOLUTE.match(path) else _located(skill, path.removeprefix("./"))
    data, is_text = await _read(client, skill, uri, unverified=unverified)
    return data.decode() if is_text else data


def check_entry(skill: Skill) -> None:
    """Whether an entry makes sense at all: SkillMismatch says why it does not. Nothing is read for it."""
    root = _root(skill)
    name = skill.frontmatter.get("name")
    if root == skill.uri or not isinstance(name, str) or unquote(root.rpartition("/")[2]) != name:
        raise SkillMismatch(skill.uri, f"a skill is at its name and {MANIFEST}, and its name is {_brief(name)}")
    if isinstance(skill.resources, str):
        return
    listed = {file.uri for file in skill.resources}
    if skill.uri not in listed or len(listed) != len(skill.resources):
        raise SkillMismatch(skill.uri, "its SKILL.md has to be among its files, and each of them once")
    for file in skill.resources:
        if not _is_below(file.uri, root) or not _DIGEST.fullmatch(file.digest) or file.size < 0:
            raise SkillMismatch(skill.uri, f"the entry of its file {_brief(file.uri)} makes no sense")
    size = sum(file.size for file in skill.resources)
    if len(listed) > MOST_FILES or size > MOST_BYTES:
        most = f"{MOST_FILES:,} and {MOST_BYTES:,}"
        raise SkillMismatch(skill.uri, f"it is too large: {len(listed):,} files, {size:,} bytes; the limits are {most}")


def _declared(client: Client) -> None:
    """Clients ask for skills only where they are declared (SEP-2640, Capability Negotiation)."""
    if not declares(client.server_capabilities, ("extensions", EXTENSION)):
        raise UsageError(f"the server serves no skills: it does not declare the extension {EXTENSION}")


def _root(skill: Skill) -> str:
    return skill.uri.removesuffix(MANIFEST)


def _located(skill: Skill, path: str) -> str:
    """The URI of a file. Instructions name files as a disk does; how much of that a URI has to escape is the server's
    choice, and is seen in the list."""
    root = _root(skill)
    for file in () if isinstance(skill.resources, str) else skill.resources:
        inside = file.uri.removeprefix(f"{root}/")
        if path in (inside, unquote(inside)):
            return file.uri
    return f"{root}/{quote(path)}"


def _is_below(uri: str, root: str) -> bool:
    steps = unquote(uri).split("/")
    return uri.startswith(f"{root}/") and ".." not in steps and "." not in steps


async def _read(client: Client, skill: Skill, uri: str, *, unverified: bool) -> tuple[bytes, bool]:
    """The bytes of a file, and whether they came as text."""
    if isinstance(skill.resources, str):
        return await _read_dynamic(client, skill, uri, unverified=unverified)
    listed = next((file for file in skill.resources if file.uri == uri), None)
    if listed is None:
        raise SkillMismatch(skill.uri, f"{_brief(uri)} is not listed as a file of this skill")
    # What was kept may be older than the entry; what the server gives now may not.
    for fresh in (False, True):
        data, is_text = await _fetch(client, uri, fresh=fresh)
        problem = _problem(data, listed)
        if problem is None:
            return data, is_text
    raise SkillMismatch(uri, f"it is not what was listed: {problem}")


async def _read_dynamic(client: Client, skill: Skill, uri: str, *, unverified: bool) -> tuple[bytes, bool]:
    if not unverified:
        raise SkillMismatch(
            skill.uri,
            "it is made up as it is read, so nothing tells whether it is what its author wrote. To take it as it is, "
            "say `unverified=True`.",
        )
    if not _is_below(uri, _root(skill)):
        raise SkillMismatch(skill.uri, f"{_brief(uri)} is no file of this skill")
    data, is_text = await _fetch(client, uri, fresh=True)
    if len(data) > MOST_BYTES:
        raise SkillMismatch(uri, f"it is too large: {len(data):,} bytes; the limit is {MOST_BYTES:,}")
    return data, is_text


async def _fetch(client: Client, uri: str, *, fresh: bool) -> tuple[bytes, bool]:
    said = await client._requests.cached("resources/read", {"uri": uri}, fresh=fresh)
    found: list[Contents] = [one for one in said.contents if one.uri == uri]
    if len(found) != 1:
        raise SkillMismatch(uri, f"the server gave {len(said.contents)} contents, and {len(found)} of this file")
    if found[0].text is not UNSET:
        return found[0].text.encode(), True
    try:
        return b64decode("" if found[0].blob is UNSET else found[0].blob, validate=True), False
    except ValueError:
        raise SkillMismatch(uri, "the server gave bytes that are not in base64") from None


def _problem(data: bytes, listed: SkillFile) -> str | None:
    if len(data) != listed.size:
        return f"it has {len(data):,} bytes instead of {listed.size:,}"
    digest = f"sha256:{sha256(data).hexdigest()}"
    return None if digest == listed.digest else f"its digest is {digest} instead of {listed.digest}"


def _check_frontmatter(skill: Skill, text: str) -> None:
    """Field by field, so that what a user saw in the list is what a model gets (SEP-2640, Frontmatter Verification)."""
    try:
        # It stands at the head of the file; the rest need not be looked through for its end.
        found = frontmatter.parse(text[: 2 * frontmatter.LONGEST])
    except UsageError as reason:
        raise SkillMismatch(skill.uri, f"its frontmatter cannot be compared with what was listed: {reason}") from None
    listed = skill.frontmatter
    for field in {**listed, **found}:
        if field not in found or field not in listed or not _same(found[field], listed[field]):
            there = _brief(found[field]) if field in found else "nothing"
            here = _brief(listed[field]) if field in listed else "nothing"
            raise SkillMismatch(
                skill.uri, f"it is not what was listed: {_brief(field)} is {there} in the file, and {here} in the list"
            )


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON has it: 1 and 1.0 are one number, and true is none."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _brief(said: Any) -> str:
    """A server's text, shortened and made printable, to be quoted in a message of ours."""
    return _SHORTENED.repr(said)
