"""Resources: a function behind a URI or a URI template."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from portico._lazy import LazyModule
from portico._options import check_options
from portico.protocol.apps import PAGE_TYPE, SCHEME
from portico.protocol.client_features import InputRequiredResult
from portico.protocol.content import Annotations, BlobContents, Contents, TextContents
from portico.protocol.errors import InvalidParams, ResourceNotFound, ToolError, UsageError
from portico.protocol.resources import ReadResourceParams, ReadResourceResult
from portico.protocol.resources import Resource as Definition
from portico.protocol.resources import ResourceTemplate as TemplateDefinition
from portico.rpc.call import Call
from portico.server.components.interop import ours
from portico.server.components.results import MEDIA, contents_of, to_json
from portico.server.components.runner import Body
from portico.server.components.runtime import Runtime
from portico.server.components.signature import ArgumentError
from portico.server.components.validation import (
    checked_annotations,
    checked_icons,
    checked_uri,
    described_meta,
    given_name,
)

if TYPE_CHECKING:
    from portico.protocol import uri_template
    from portico.protocol.uri_template import Template
    from portico.server.components import auth_checks
else:
    auth_checks = LazyModule("portico.server.components.auth_checks")
    uri_template = LazyModule("portico.protocol.uri_template")

_CONTENTS = (TextContents, BlobContents, Contents)


class ResourceSecurity(msgspec.Struct, frozen=True, kw_only=True):
    """Which values of a URI's variables never reach the function: those that would lead out of a folder.

    A guard against mistakes. Code that makes a path of a value has still to check that it stays inside its folder.
    """

    reject_path_traversal: bool = True
    reject_absolute_paths: bool = True
    reject_null_bytes: bool = True
    exempt_params: Collection[str] = frozenset()

    def refuses(self, values: Mapping[str, Any]) -> bool:
        return any(self._refuses(value) for name, value in values.items() if name not in self.exempt_params)

    def _refuses(self, value: Any) -> bool:
        if isinstance(value, Mapping):
            return any(self._refuses(one) for pair in value.items() for one in pair)
        if not isinstance(value, str):
            return any(self._refuses(one) for one in value)
        path = value.replace("\\", "/")
        return (
            (self.reject_null_bytes and "\0" in value)
            or (self.reject_absolute_paths and (path.startswith("/") or (path[1:2] == ":" and path[:1].isalpha())))
            or (self.reject_path_traversal and _leaves(path))
        )


def _leaves(path: str) -> bool:
    """Whether a relative path leads out of where it begins."""
    depth = 0
    for part in path.split("/"):
        depth += -1 if part == ".." else part not in ("", ".")
        if depth < 0:
            return True
    return False


class ResourceOptions(TypedDict, total=False):
    """The keywords of `@server.resource`, which says what each of them means."""

    name: str | None
    title: str | None
    description: str | None
    version: str | None
    mime_type: str | None
    size: int | None
    annotations: Annotations | Mapping[str, Any] | None
    icons: Sequence[Any] | None
    tags: Collection[str]
    meta: Mapping[str, Any] | None
    inline: bool
    security: ResourceSecurity | None
    auth: Any


class Resource:
    """One resource, or with variables in its URI a family: a function, and the options of `@server.resource`."""

    # The service that it came with; empty for one of the server's own.
    owner = ""

    def __init__(self, fn: Callable[..., Any], uri: str, **options: Unpack[ResourceOptions]) -> None:
        check_options("a resource", options, ResourceOptions)
        self.fn = fn
        self.uri = checked_uri(uri)
        # A page of an app has no other type, and hosts read its wishes in what they read.
        is_page = uri.startswith(SCHEME)
        self.mime_type = options.get("mime_type") or (PAGE_TYPE if is_page else None)
        self._wishes = (options.get("meta") or {}).get("ui") if is_page else None
        self.version = options.get("version")
        # Which values of its variables are not let through; without a word about it, those that its server says.
        self.security = options.get("security")
        self.says_security = "security" in options
        # Whether a call may be answered: a function, or several.
        self.auth = options.get("auth")
        self.name = given_name(options.get("name"), fn, "a resource")
        self.template: Template | None = None
        if "{" in uri:
            self.template = uri_template.Template(uri)
        self.body = Body(fn, self.name, inline=options.get("inline", False))
        self._check()
        description, size = options.get("description"), options.get("size")
        described: dict[str, Any] = {
            "name": self.name,
            "title": options.get("title"),
            "description": description if description is not None else self.body.signature.summary or None,
            "mime_type": self.mime_type,
            "annotations": checked_annotations(options.get("annotations")),
            "icons": checked_icons(options.get("icons")),
            "meta": described_meta(options) or None,
        }
        self.definition = (
            Definition(uri=uri, size=size, **described)
            if self.template is None
            else TemplateDefinition(uri_template=uri, **described)
        )

    def _check(self) -> None:
        """The variables of the URI and the parameters of the function must be the same words."""
        parameters = set(self.body.signature.input_schema.get("properties", {}))
        variables = set(self.template.names) if self.template is not None else set()
        missing = set(self.body.signature.input_schema.get("required", ())) - variables
        if missing:
            raise UsageError(f"resource {self.uri!r} has no variable for the parameter {sorted(missing)[0]!r}")
        if variables - parameters:
            raise UsageError(f"{self.name}() has no parameter for the variable {sorted(variables - parameters)[0]!r}")

    def require(self, scopes: frozenset[str]) -> None:
        """What its service asks of a principal that has scopes."""
        self.body.service_scopes = scopes

    async def read(self, call: Call, params: ReadResourceParams, runtime: Runtime, values: Mapping[str, Any]) -> Any:
        if self.auth is not None:
            await auth_checks.allow(self.auth, call, self)
        if values and self.security is not None and self.security.refuses(values):
            raise ResourceNotFound(params.uri)
        try:
            value = await self.body.run(call, runtime, params, params.uri, msgspec.json.encode(values))
        except ArgumentError as mistake:
            raise InvalidParams(str(mistake), {"uri": params.uri}) from None
        except FileNotFoundError:
            raise ResourceNotFound(params.uri) from None
        except ToolError as refusal:
            if refusal.kind != "ResourceNotFound":
                raise
            raise ResourceNotFound(params.uri, refusal.described()) from None
        value = ours(value)
        if isinstance(value, InputRequiredResult | ReadResourceResult):
            return value
        if type(value).__name__ == "ResourceResult":
            parts = [one for part in value.contents for one in _part(part, params.uri, self.mime_type)]
            return ReadResourceResult(contents=parts, meta=UNSET if value.meta is None else value.meta)
        contents = to_contents(value, params.uri, self.mime_type)
        if self._wishes is not None:
            contents = [one if one.meta else replace(one, meta={"ui": self._wishes}) for one in contents]
        return ReadResourceResult(contents=contents)


def _part(part: Any, uri: str, mime_type: str | None) -> list[Any]:
    """One of a ResourceResult's, ours or FastMCP's."""
    if type(part).__name__ != "ResourceContent":
        return to_contents(part, uri, mime_type)
    made = to_contents(part.content, uri, part.mime_type or mime_type)
    return [msgspec.structs.replace(one, meta=part.meta) for one in made] if part.meta else made


def to_contents(value: Any, uri: str, mime_type: str | None) -> list[Any]:
    """What a resource's function returned, as contents. 2026-07-28 forbids an empty answer for a missing resource."""
    if value is None:
        raise ResourceNotFound(uri)
    if isinstance(value, list):
        value = [ours(part) for part in value]
    parts = value if isinstance(value, list) and value and all(isinstance(p, _CONTENTS) for p in value) else [value]
    return [_one(part, uri, mime_type) for part in parts]


def _one(value: Any, uri: str, mime_type: str | None) -> Any:
    if isinstance(value, _CONTENTS):
        return value
    if isinstance(value, str):
        return TextContents(uri=uri, mime_type=mime_type or "text/plain", text=value)
    if isinstance(value, bytes | bytearray):
        return contents_of(bytes(value), uri, mime_type or "application/octet-stream")
    if isinstance(value, MEDIA):
        return contents_of(value.data, uri, mime_type or value.mime_type)
    return TextContents(uri=uri, mime_type=mime_type or "application/json", text=to_json(value).decode())
