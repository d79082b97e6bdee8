"""Client-side skills: list them, read them on demand, and verify them against the list.

    skills = await list_skills(client)                                    # fetches no file
    text = await read_skill(client, skills[0])                            # its SKILL.md
    form = await read_skill_file(client, skills[0], "references/FORMS.md")

Content that differs from the list raises SkillVerificationError. Verification shows that a server is consistent, not
that it is trustworthy: treat a skill as third-party advice (SEP-2640, Digests Are Not a Trust Anchor).
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
from portico.protocol.capabilities import has_capability
from portico.protocol.content import ResourceContents
from portico.protocol.errors import ProtocolError, UsageError
from portico.protocol.skills import MAX_SKILL_BYTES, MAX_SKILL_FILES, SKILLS_EXTENSION, GetSkillResult, Skill, SkillFile

__all__ = ["SkillVerificationError", "get_skill", "list_skills", "read_skill", "read_skill_file"]

MANIFEST_PATH = "/SKILL.md"

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_SHORTENED = Repr()
_SHORTENED.maxstring = 300
_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class SkillVerificationError(ProtocolError):
    """A skill differs from its list entry: changed, corrupted or forged. Do not use any of it.

    If it has merely changed, `get_skill` returns the current entry; a user's earlier approval does not cover it.
    """

    def __init__(self, uri: str, reason: str) -> None:
        super().__init__(f"{_shorten(uri)}: {reason}")
        self.uri = uri


async def list_skills(client: Client, *, refresh: bool = False) -> list[Skill]:
    """Return the skills that the server lists, which may be a part of them or none. `refresh`: bypass the cache."""
    _require_extension(client)
    return await client._lists.fetch_all("skills/list", "skills", refresh=refresh)


async def get_skill(client: Client, uri: str) -> Skill:
    """Return the current entry of a skill by the URI of its SKILL.md, even if it is not listed."""
    _require_extension(client)
    result: GetSkillResult = await client._requests.send_and_decode("skills/get", {"uri": uri})
    if result.skill.uri != uri:
        raise SkillVerificationError(uri, f"the server returned the skill {_shorten(result.skill.uri)} instead")
    return result.skill


async def read_skill(client: Client, skill: Skill, *, allow_unverified: bool = False) -> str:
    """Return the SKILL.md after verifying its size, digest and frontmatter against the list.

    `allow_unverified`: also read a dynamic skill, of which only the frontmatter can be verified.
    """
    validate_skill(skill)
    data, _ = await _read(client, skill, skill.uri, unverified=allow_unverified)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise SkillVerificationError(skill.uri, "the file is not valid UTF-8 text") from None
    _check_frontmatter(skill, text)
    return text


async def read_skill_file(client: Client, skill: Skill, path: str, *, allow_unverified: bool = False) -> str | bytes:
    """Return another file of the skill, by its URI or by its path relative to the SKILL.md, as instructions name it.

    Returns str if the server sends text, otherwise bytes. Raises `SkillVerificationError` for a file that is not
    listed.

    `allow_unverified`: also read a file of a dynamic skill, which has no digests.
    """
    validate_skill(skill)
    uri = path if _ABSOLUTE.match(path) else _resolve_uri(skill, path.removeprefix("./"))
    data, is_text = await _read(client, skill, uri, unverified=allow_unverified)
    return data.decode() if is_text else data


def validate_skill(skill: Skill) -> None:
    """Raise SkillVerificationError if a list entry is inconsistent. Reads nothing from the server."""
    root = _root(skill)
    name = skill.frontmatter.get("name")
    # A skill whose location and name differ could pass for another one in a list sorted by name.
    if root == skill.uri or not isinstance(name, str) or unquote(root.rpartition("/")[2]) != name:
        raise SkillVerificationError(
            skill.uri, f"the URI must end with the skill's name and {MANIFEST_PATH}; the name is {_shorten(name)}"
        )
    if isinstance(skill.resources, str):
        return
    listed = {file.uri for file in skill.resources}
    if skill.uri not in listed or len(listed) != len(skill.resources):
        raise SkillVerificationError(skill.uri, "its SKILL.md must be among its files, and no file may be listed twice")
    for file in skill.resources:
        if not _is_below(file.uri, root) or not _DIGEST.fullmatch(file.digest) or file.size < 0:
            raise SkillVerificationError(skill.uri, f"invalid entry for the file {_shorten(file.uri)}")
    size = sum(file.size for file in skill.resources)
    if len(listed) > MAX_SKILL_FILES or size > MAX_SKILL_BYTES:
        limits = f"{MAX_SKILL_FILES:,} and {MAX_SKILL_BYTES:,}"
        raise SkillVerificationError(
            skill.uri, f"the skill is too large: {len(listed):,} files and {size:,} bytes (maximum {limits})"
        )


def _require_extension(client: Client) -> None:
    """Raise UsageError unless the server declares the skills extension (SEP-2640, Capability Negotiation)."""
    if not has_capability(client.server_capabilities, ("extensions", SKILLS_EXTENSION)):
        raise UsageError(f"the server does not serve skills: it does not declare the extension {SKILLS_EXTENSION}")


def _root(skill: Skill) -> str:
    return skill.uri.removesuffix(MANIFEST_PATH)


def _resolve_uri(skill: Skill, path: str) -> str:
    """Return the URI of a file.

    Instructions use file system paths. How much of a path a URI escapes is the server's choice, so compare both forms
    with the list.
    """
    root = _root(skill)
    for file in () if isinstance(skill.resources, str) else skill.resources:
        inside = file.uri.removeprefix(f"{root}/")
        if path in (inside, unquote(inside)):
            return file.uri
    return f"{root}/{quote(path)}"


def _is_below(uri: str, root: str) -> bool:
    # Decoded first, since `%2e%2e` is a parent directory for a server that maps URIs to files.
    steps = unquote(uri).split("/")
    return uri.startswith(f"{root}/") and ".." not in steps and "." not in steps


async def _read(client: Client, skill: Skill, uri: str, *, unverified: bool) -> tuple[bytes, bool]:
    """Return the bytes of a file, and whether they were sent as text."""
    if isinstance(skill.resources, str):
        return await _read_dynamic(client, skill, uri, unverified=unverified)
    listed = next((file for file in skill.resources if file.uri == uri), None)
    if listed is None:
        raise SkillVerificationError(skill.uri, f"{_shorten(uri)} is not listed as a file of this skill")
    # The cached file may be older than the list entry; a fresh one may not.
    for fresh in (False, True):
        data, is_text = await _fetch(client, uri, fresh=fresh)
        problem = _problem(data, listed)
        if problem is None:
            return data, is_text
    raise SkillVerificationError(uri, f"the content differs from the list: {problem}")


async def _read_dynamic(client: Client, skill: Skill, uri: str, *, unverified: bool) -> tuple[bytes, bool]:
    if not unverified:
        raise SkillVerificationError(
            skill.uri,
            "the skill is dynamic, so its content cannot be verified. To use it anyway, pass `allow_unverified=True`.",
        )
    if not _is_below(uri, _root(skill)):
        raise SkillVerificationError(skill.uri, f"{_shorten(uri)} is not a file of this skill")
    data, is_text = await _fetch(client, uri, fresh=True)
    if len(data) > MAX_SKILL_BYTES:
        raise SkillVerificationError(uri, f"the file is too large: {len(data):,} bytes (maximum {MAX_SKILL_BYTES:,})")
    return data, is_text


async def _fetch(client: Client, uri: str, *, fresh: bool) -> tuple[bytes, bool]:
    response = await client._requests.send_cached("resources/read", {"uri": uri}, refresh=fresh)
    contents: list[ResourceContents] = [content for content in response.contents if content.uri == uri]
    # With several contents it would be unclear which of them was verified.
    if len(contents) != 1:
        raise SkillVerificationError(
            uri,
            (
                f"the server returned {len(response.contents)} contents, of which {len(contents)} have this URI "
                "(expected 1)"
            ),
        )
    if contents[0].text is not UNSET:
        return contents[0].text.encode(), True
    try:
        return b64decode("" if contents[0].blob is UNSET else contents[0].blob, validate=True), False
    except ValueError:
        raise SkillVerificationError(uri, "the server returned invalid base64") from None


def _problem(data: bytes, listed: SkillFile) -> str | None:
    # The size is compared first, because it is cheap; the digest alone would be sufficient.
    if len(data) != listed.size:
        return f"it has {len(data):,} bytes, expected {listed.size:,}"
    digest = f"sha256:{sha256(data).hexdigest()}"
    return None if digest == listed.digest else f"its digest is {digest}, expected {listed.digest}"


def _check_frontmatter(skill: Skill, text: str) -> None:
    """Compare the frontmatter field by field, so that a model gets what the user saw in the list (SEP-2640, Frontmatter
    Verification).
    """
    try:
        # Frontmatter is at the start of the file, so the rest need not be searched for its end.
        result = frontmatter.parse_frontmatter(text[: 2 * frontmatter.MAX_FRONTMATTER_CHARS])
    except UsageError as reason:
        raise SkillVerificationError(skill.uri, f"its frontmatter cannot be compared with the list: {reason}") from None
    listed = skill.frontmatter
    for field in {**listed, **result}:
        if field not in result or field not in listed or not _is_json_equal(result[field], listed[field]):
            actual = _shorten(result[field]) if field in result else "nothing"
            expected = _shorten(listed[field]) if field in listed else "nothing"
            raise SkillVerificationError(
                skill.uri,
                (
                    f"the content differs from the list: {_shorten(field)} is {actual} in the file, "
                    f"but {expected} in the list"
                ),
            )


def _is_json_equal(item: Any, other: Any) -> bool:
    """Return whether two JSON values are equal: 1 equals 1.0, but not true."""
    if isinstance(item, dict) and isinstance(other, dict):
        return item.keys() == other.keys() and all(_is_json_equal(value, other[key]) for key, value in item.items())
    if isinstance(item, list) and isinstance(other, list):
        return len(item) == len(other) and all(map(_is_json_equal, item, other))
    return isinstance(item, bool) == isinstance(other, bool) and bool(item == other)


def _shorten(value: Any) -> str:
    """Return a server's text, shortened and printable, for use in an error message."""
    return _SHORTENED.repr(value)
