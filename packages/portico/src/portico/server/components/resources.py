"""Resources: functions behind a URI or a URI template."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from portico._lazy import LazyModule
from portico._options import validate_options
from portico.protocol.apps import APP_MIME_TYPE, UI_SCHEME
from portico.protocol.client_features import InputRequiredResult
from portico.protocol.content import Annotations, BlobResourceContents, ResourceContents, TextResourceContents
from portico.protocol.errors import InvalidParams, ResourceNotFound, ToolError, UsageError
from portico.protocol.resources import (
    ReadResourceParams,
    ReadResourceResult,
    Resource as Definition,
    ResourceTemplate as TemplateDefinition,
)
from portico.rpc.call import Call
from portico.server.components.interop import to_native
from portico.server.components.results import MEDIA_TYPES, to_json, to_resource_contents
from portico.server.components.runner import FunctionRunner
from portico.server.components.runtime import Runtime
from portico.server.components.signature import ArgumentError
from portico.server.components.validation import (
    build_meta,
    parse_annotations,
    parse_icons,
    resolve_name,
    validate_uri,
)

if TYPE_CHECKING:
    from portico.protocol import uri_template
    from portico.protocol.uri_template import UriTemplate
    from portico.server.components import auth_checks
else:
    auth_checks = LazyModule("portico.server.components.auth_checks")
    uri_template = LazyModule("portico.protocol.uri_template")

_CONTENTS = (TextResourceContents, BlobResourceContents, ResourceContents)


class ResourceSecurity(msgspec.Struct, frozen=True, kw_only=True):
    """Policy for the values of URI variables; by default rejects values that would escape a directory.

    A guard against mistakes. Code that builds a path from a value must still check that it stays inside its directory.
    """

    reject_path_traversal: bool = True
    reject_absolute_paths: bool = True
    reject_null_bytes: bool = True
    exempt_params: Collection[str] = frozenset()

    def rejects(self, values: Mapping[str, Any]) -> bool:
        """Return whether any value must be rejected."""
        return any(self._is_unsafe(value) for name, value in values.items() if name not in self.exempt_params)

    def _is_unsafe(self, value: Any) -> bool:
        if isinstance(value, Mapping):
            return any(self._is_unsafe(item) for pair in value.items() for item in pair)
        # A variable such as {/path*} expands to a list, and {?query*} to a mapping.
        if not isinstance(value, str):
            return any(self._is_unsafe(item) for item in value)
        # Windows accepts backslashes as separators, so they are checked like slashes on every platform.
        path = value.replace("\\", "/")
        return (
            # A NUL ends a path in C: `report.txt\0.png` passes a check of the suffix and opens
            # report.txt.
            (self.reject_null_bytes and "\0" in value)
            or (self.reject_absolute_paths and (path.startswith("/") or (path[1:2] == ":" and path[:1].isalpha())))
            or (self.reject_path_traversal and _escapes_directory(path))
        )


def _escapes_directory(path: str) -> bool:
    """Return whether a relative path leaves the directory where it starts."""
    depth = 0
    for part in path.split("/"):
        # Count instead of searching for `..`: `a/../b` stays inside and is legitimate.
        depth += -1 if part == ".." else part not in ("", ".")
        if depth < 0:
            return True
    return False


class ResourceOptions(TypedDict, total=False):
    """Keywords of `@server.resource`, which documents them."""

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
    run_in_thread: bool
    security: ResourceSecurity | None
    auth: Any


class Resource:
    """A resource or, with variables in its URI, a template: a function with the options of `@server.resource`."""

    # Name of the service that registered it; empty for the server itself.
    owner = ""

    def __init__(self, fn: Callable[..., Any], uri: str, **options: Unpack[ResourceOptions]) -> None:
        validate_options("a resource", options, ResourceOptions)
        self.fn = fn
        self.uri = validate_uri(uri)
        # An app page always has this media type, and hosts read its permissions from the contents.
        is_page = uri.startswith(UI_SCHEME)
        self.mime_type = options.get("mime_type") or (APP_MIME_TYPE if is_page else None)
        self._wishes = (options.get("meta") or {}).get("ui") if is_page else None
        self.version = options.get("version")
        # Policy for URI variables; the server's default applies if the option is absent.
        self.security = options.get("security")
        self.has_own_security = "security" in options
        # Authorization check, or several.
        self.auth = options.get("auth")
        self.name = resolve_name(options.get("name"), fn, "a resource")
        self.template: UriTemplate | None = None
        if "{" in uri:
            self.template = uri_template.UriTemplate(uri)
        self.runner = FunctionRunner(fn, self.name, run_in_thread=options.get("run_in_thread", True))
        self._check()
        description, size = options.get("description"), options.get("size")
        described: dict[str, Any] = {
            "name": self.name,
            "title": options.get("title"),
            "description": description if description is not None else self.runner.signature.summary or None,
            "mime_type": self.mime_type,
            "annotations": parse_annotations(options.get("annotations")),
            "icons": parse_icons(options.get("icons")),
            "meta": build_meta(options) or None,
        }
        self.definition = (
            Definition(uri=uri, size=size, **described)
            if self.template is None
            else TemplateDefinition(uri_template=uri, **described)
        )

    def _check(self) -> None:
        """Raise UsageError unless the URI variables match the parameters of the function."""
        parameters = set(self.runner.signature.input_schema.get("properties", {}))
        variables = set(self.template.variable_names) if self.template is not None else set()
        # Checked at registration: the mistake would otherwise surface as an error of the first
        # client that reads the resource.
        missing = set(self.runner.signature.input_schema.get("required", ())) - variables
        if missing:
            raise UsageError(f"resource {self.uri!r} has no variable for the parameter {sorted(missing)[0]!r}")
        if variables - parameters:
            raise UsageError(f"{self.name}() has no parameter for the variable {sorted(variables - parameters)[0]!r}")

    def require_scopes(self, scopes: frozenset[str]) -> None:
        """Set the scopes that its service requires of a principal with scopes."""
        self.runner.service_scopes = scopes

    async def read(self, call: Call, params: ReadResourceParams, runtime: Runtime, values: Mapping[str, Any]) -> Any:
        """Read the resource. Raises ResourceNotFound, or InvalidParams for invalid variables."""
        if self.auth is not None:
            await auth_checks.authorize(self.auth, call, self)
        # Report rejected values as missing, so that a client cannot probe for files.
        if values and self.security is not None and self.security.rejects(values):
            raise ResourceNotFound(params.uri)
        try:
            value = await self.runner.run(call, runtime, params, params.uri, msgspec.json.encode(values))
        except ArgumentError as mistake:
            raise InvalidParams(str(mistake), {"uri": params.uri}) from None
        # Functions commonly open a file named by the URI. A missing file is a missing resource and
        # not a failure of the server.
        except FileNotFoundError:
            raise ResourceNotFound(params.uri) from None
        except ToolError as refusal:
            if refusal.error_type != "ResourceNotFound":
                raise
            raise ResourceNotFound(params.uri, refusal.to_meta()) from None
        value = to_native(value)
        if isinstance(value, InputRequiredResult | ReadResourceResult):
            return value
        if type(value).__name__ == "ResourceResult":
            parts = [content for part in value.contents for content in _part(part, params.uri, self.mime_type)]
            return ReadResourceResult(contents=parts, meta=UNSET if value.meta is None else value.meta)
        contents = to_contents(value, params.uri, self.mime_type)
        # MCP Apps: hosts read a page's CSP and permissions from the contents. Contents that the
        # function annotated itself are left alone.
        if self._wishes is not None:
            contents = [
                content if content.meta else replace(content, meta={"ui": self._wishes}) for content in contents
            ]
        return ReadResourceResult(contents=contents)


def _part(part: Any, uri: str, mime_type: str | None) -> list[Any]:
    """Return the contents of one part of a ResourceResult, ours or FastMCP's."""
    if type(part).__name__ != "ResourceContent":
        return to_contents(part, uri, mime_type)
    contents = to_contents(part.content, uri, part.mime_type or mime_type)
    return [msgspec.structs.replace(item, meta=part.meta) for item in contents] if part.meta else contents


def to_contents(value: Any, uri: str, mime_type: str | None) -> list[Any]:
    """Return the contents for a function's return value. Raises ResourceNotFound for None.

    2026-07-28 forbids an empty result for a missing resource.
    """
    if value is None:
        raise ResourceNotFound(uri)
    if isinstance(value, list):
        value = [to_native(part) for part in value]
    # A list of contents is several contents. Any other list, also an empty one, is a JSON value.
    parts = value if isinstance(value, list) and value and all(isinstance(p, _CONTENTS) for p in value) else [value]
    return [_to_content(part, uri, mime_type) for part in parts]


def _to_content(value: Any, uri: str, mime_type: str | None) -> Any:
    if isinstance(value, _CONTENTS):
        return value
    if isinstance(value, str):
        return TextResourceContents(uri=uri, mime_type=mime_type or "text/plain", text=value)
    if isinstance(value, bytes | bytearray):
        return to_resource_contents(bytes(value), uri, mime_type or "application/octet-stream")
    if isinstance(value, MEDIA_TYPES):
        return to_resource_contents(value.data, uri, mime_type or value.mime_type)
    return TextResourceContents(uri=uri, mime_type=mime_type or "application/json", text=to_json(value).decode())
