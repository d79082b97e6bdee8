"""The settings of a shape; `shapes.py` is what they do, and is loaded where there are some."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from portico.extend import ArgumentErrors


class ServiceShape(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one service, `[shapes.NAME]` in a portico.toml. As they stand here they change nothing."""

    # The tools that are there: a list of names, or a table of names and what each is called instead.
    tools: list[str] | dict[str, str] | None = None
    # What is said of a tool, by our name for it, instead of what its author says.
    descriptions: dict[str, str] = field(default_factory=dict)
    # What the schemes of its URIs are called instead.
    schemes: dict[str, str] = field(default_factory=dict)
    # Wrong arguments, whatever the server does with them: an error of the protocol, or a result.
    argument_errors: ArgumentErrors | None = None
    # Refuse arguments that only fit after a repair, whatever the server does with them.
    strict_arguments: bool = False
    # Whether a result says `isError: false`.
    is_error: Literal["always", "failures"] = "always"
    # Before every failure's text.
    error_prefix: str = ""
    # What has a short form is said in it.
    brief_errors: bool = False
    # success, status, data, error and explanation beside the content, where there is no structured content.
    envelope: bool = False
    # With it an error in an envelope has an `errorCode` that begins so: `MCP-ToolExecutionError`.
    error_code_prefix: str = ""
    # Tools are listed by their dotted names.
    dotted: bool = False
    # Every call leaves a line in the log.
    log_calls: bool = False
    # Calls a second of each tool that may reach outside, and how many at once; no limit if it is not said.
    rate: Annotated[float, Meta(gt=0)] | None = None
    burst: Annotated[int, Meta(ge=1)] = 10
    # `type: "text"` in the contents of resources, on the same revisions.
    typed_contents: bool = False
    # Schemas that say number for integer, and do not say that null is the same as nothing.
    plain_schemas: bool = False

    def uri(self, uri: str) -> str:
        scheme, mark, rest = uri.partition("://")
        return f"{self.schemes.get(scheme, scheme)}{mark}{rest}" if mark else uri

    def known_as(self, schemes: Mapping[str, str]) -> dict[str, str]:
        """The schemes that are understood and not listed: those of before, and what they stood for."""
        moved = {name: self.schemes.get(listed, listed) for name, listed in schemes.items()} | self.schemes
        return {name: listed for name, listed in moved.items() if name != listed}
