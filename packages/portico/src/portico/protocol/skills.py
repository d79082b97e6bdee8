"""The skills extension (SEP-2640, a draft): skills/list, skills/get and resources/directory/read."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from portico.protocol.content import CacheableResult
from portico.protocol.meta import Params
from portico.protocol.methods import Method, add_method, uri_in
from portico.protocol.resources import Resource
from portico.protocol.tools import ListParams
from portico.protocol.versions import V2026_07_28

EXTENSION = "io.modelcontextprotocol/skills"

# The limits up to which every host must take a skill (Limits).
MOST_FILES = 512
MOST_BYTES = 16 * 1024 * 1024


class SkillFile(Struct, frozen=True):
    """One file: `digest` is `sha256:` and 64 hexadecimal digits over its bytes, `size` their number."""

    uri: str
    digest: str
    size: int


class Skill(Struct, frozen=True):
    """An entry: what is written at the head of the SKILL.md at `uri`, and every file of the skill.

    A skill that is made up as it is read has no digests and says "dynamic" instead.
    """

    uri: str
    frontmatter: dict[str, Any]
    resources: list[SkillFile] | Literal["dynamic"]


class ListSkillsResult(CacheableResult, kw_only=True):
    skills: list[Skill]
    next_cursor: str | UnsetType | None = UNSET


class GetSkillParams(Params, gc=False):
    uri: str


class GetSkillResult(CacheableResult, kw_only=True):
    skill: Skill


class ReadDirectoryParams(Params, gc=False):
    uri: str
    cursor: str | None = None


class ReadDirectoryResult(CacheableResult, kw_only=True):
    resources: list[Resource]
    next_cursor: str | UnsetType | None = UNSET


# No `named`: the draft does not put these into the header Mcp-Name, and 2026-07-28 lists the methods that have it.
_SINCE = _UNTIL = V2026_07_28
add_method(Method("skills/list", "to server", _SINCE, _UNTIL, ListParams, ListSkillsResult))
add_method(Method("skills/get", "to server", _SINCE, _UNTIL, GetSkillParams, GetSkillResult, uris=uri_in))
add_method(
    Method(
        "resources/directory/read",
        "to server",
        _SINCE,
        _UNTIL,
        ReadDirectoryParams,
        ReadDirectoryResult,
        uris=uri_in,
    )
)
