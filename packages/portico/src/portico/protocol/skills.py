"""The skills extension (SEP-2640, draft): skills/list, skills/get and resources/directory/read."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from portico.protocol.content import CacheableResult
from portico.protocol.meta import RequestParams
from portico.protocol.methods import Method, register_method, uri_in
from portico.protocol.resources import Resource
from portico.protocol.tools import ListParams
from portico.protocol.versions import V2026_07_28

SKILLS_EXTENSION = "io.modelcontextprotocol/skills"

# Every host must accept skills up to these limits (Limits).
MAX_SKILL_FILES = 512
MAX_SKILL_BYTES = 16 * 1024 * 1024


class SkillFile(Struct, frozen=True):
    """One file. `digest` is `sha256:` and 64 hexadecimal digits over its bytes, `size` their number."""

    uri: str
    digest: str
    size: int


class Skill(Struct, frozen=True):
    """One skill: the frontmatter of the SKILL.md at `uri`, and its files.

    A skill that is generated on demand has no digests; its `resources` is "dynamic".
    """

    uri: str
    frontmatter: dict[str, Any]
    resources: list[SkillFile] | Literal["dynamic"]


class ListSkillsResult(CacheableResult, kw_only=True):
    skills: list[Skill]
    next_cursor: str | UnsetType | None = UNSET


class GetSkillParams(RequestParams, gc=False):
    uri: str


class GetSkillResult(CacheableResult, kw_only=True):
    skill: Skill


class ReadDirectoryParams(RequestParams, gc=False):
    uri: str
    cursor: str | None = None


class ReadDirectoryResult(CacheableResult, kw_only=True):
    resources: list[Resource]
    next_cursor: str | UnsetType | None = UNSET


# No `name_param`: the draft does not use the header Mcp-Name, and 2026-07-28 lists the methods that have it.
_SINCE = _UNTIL = V2026_07_28
register_method(Method("skills/list", "to server", _SINCE, _UNTIL, ListParams, ListSkillsResult))
register_method(Method("skills/get", "to server", _SINCE, _UNTIL, GetSkillParams, GetSkillResult, uris=uri_in))
register_method(
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
