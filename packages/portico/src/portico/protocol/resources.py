"""resources/list, resources/templates/list, resources/read, and the subscriptions of the handshake versions."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType, field

from portico.protocol.content import Annotations, CacheableResult, ResourceContents
from portico.protocol.jsonrpc import EMPTY_RAW
from portico.protocol.meta import BoundedName, Icon, RequestParams


class Resource(Struct, omit_defaults=True, rename="camel", kw_only=True):
    uri: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    annotations: Annotations | None = None
    size: int | None = None
    icons: list[Icon] | None = None
    meta: dict[str, Any] | None = field(default=None, name="_meta")


class ResourceTemplate(Struct, omit_defaults=True, rename="camel", kw_only=True):
    uri_template: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    annotations: Annotations | None = None
    icons: list[Icon] | None = None
    meta: dict[str, Any] | None = field(default=None, name="_meta")


class ListResourcesResult(CacheableResult, kw_only=True):
    resources: list[Resource]
    next_cursor: str | UnsetType | None = UNSET


class ListResourceTemplatesResult(CacheableResult, kw_only=True):
    resource_templates: list[ResourceTemplate]
    next_cursor: str | UnsetType | None = UNSET


class ReadResourceParams(RequestParams, rename="camel", gc=False):
    uri: BoundedName
    input_responses: Raw = EMPTY_RAW
    request_state: str | UnsetType = UNSET


class ReadResourceResult(CacheableResult, kw_only=True):
    contents: list[Any]


class ReceivedResourceResult(CacheableResult, kw_only=True):
    """Result of resources/read as received by a client."""

    contents: list[ResourceContents]


class SubscribeParams(RequestParams, gc=False):
    uri: BoundedName
