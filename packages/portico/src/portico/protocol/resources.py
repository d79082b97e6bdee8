"""resources/list, resources/templates/list, resources/read, and the subscriptions of the handshake revisions."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType, field

from portico.protocol.content import Annotations, CacheableResult, Contents
from portico.protocol.jsonrpc import NOTHING
from portico.protocol.meta import Icon, Name, Params


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


class ReadResourceParams(Params, rename="camel", gc=False):
    uri: Name
    input_responses: Raw = NOTHING
    request_state: str | UnsetType = UNSET


class ReadResourceResult(CacheableResult, kw_only=True):
    contents: list[Any]


class ReceivedContents(CacheableResult, kw_only=True):
    """resources/read as a client meets it."""

    contents: list[Contents]


class SubscribeParams(Params, gc=False):
    uri: Name
