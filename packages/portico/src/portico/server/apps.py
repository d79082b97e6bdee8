"""MCP Apps (`io.modelcontextprotocol/ui`, 2026-01-26): pages that a host displays in a sandboxed frame next to a
result.

A page is a resource with a `ui://` URI. A tool refers to it in `_meta.ui`, together with the tool's visibility: to the
model, the page, or both. A host without the extension shows the tool's content like that of any other tool.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import CoroutineType
from typing import Any

import msgspec
from msgspec import Raw, Struct

from portico._options import validate_fields
from portico.caching import LruCache
from portico.protocol import jsonrpc
from portico.protocol.apps import APP_MIME_TYPE, APPS_EXTENSION, CSP_ORIGIN_PATTERN, UI_SCHEME, supports_apps
from portico.protocol.content import TextResourceContents
from portico.protocol.errors import UsageError
from portico.protocol.jsonrpc import array_decoder, object_decoder
from portico.rpc.call import Call
from portico.server.components.resources import Resource
from portico.server.registry.service import MethodHandler, Service

_VIEWERS = ("model", "app")
_CSP = {
    "connect_domains": "connectDomains",
    "resource_domains": "resourceDomains",
    "frame_domains": "frameDomains",
    "base_uri_domains": "baseUriDomains",
}
_PERMISSIONS = {
    "camera": "camera",
    "microphone": "microphone",
    "geolocation": "geolocation",
    "clipboard_write": "clipboardWrite",
    "clipboardWrite": "clipboardWrite",
}
MAX_PAGE_BYTES = 4 * 1024 * 1024
MAX_CACHED_LISTS = 64


class AppPage(Struct, frozen=True):
    """A page for `@server.tool(ui=AppPage("chart.html", …))`, with the permissions it requests from the host.

    * **page** – path of an HTML file, which is read again for each request, or the HTML itself.
    * **uri** – URI of the page, such as `ui://shop/cart`; by default derived from the tool's name.
    * **connect_domains**, **resource_domains**, **frame_domains**, **base_uri_domains** – origins that the page may
      fetch from, load scripts, styles and images from, embed as frames, and use as its base URI. Others are blocked.
    * **permissions** – any of "camera", "microphone", "geolocation", "clipboard_write".
    * **domain** – a dedicated origin, in the format that the host requires.
    * **prefers_border** – whether the host should draw a border; None leaves it to the host.
    * **title**, **description** – display metadata for users.
    """

    page: str | os.PathLike[str]
    uri: str | None = None
    connect_domains: Sequence[str] = ()
    resource_domains: Sequence[str] = ()
    frame_domains: Sequence[str] = ()
    base_uri_domains: Sequence[str] = ()
    permissions: Sequence[str] = ()
    domain: str | None = None
    prefers_border: bool | None = None
    title: str | None = None
    description: str | None = None

    def __post_init__(self) -> None:
        validate_fields(self)
        for name in _CSP:
            for origin in getattr(self, name):
                if not re.fullmatch(CSP_ORIGIN_PATTERN, origin):
                    raise UsageError(
                        f"invalid origin {origin!r} in {name} of an app page: expected an origin such as "
                        "https://cdn.example.com"
                    )
        for permission in self.permissions:
            if permission not in _PERMISSIONS:
                raise UsageError(
                    f"unknown app page permission {permission!r} (expected one of {', '.join(sorted(_PERMISSIONS))})"
                )

    @property
    def ui_meta(self) -> dict[str, Any]:
        """Return the page's `_meta.ui`."""
        csp = {wire: list(getattr(self, name)) for name, wire in _CSP.items() if getattr(self, name)}
        meta: dict[str, Any] = {
            "csp": csp,
            "permissions": {_PERMISSIONS[permission]: {} for permission in self.permissions},
            "domain": self.domain,
            "prefersBorder": self.prefers_border,
        }
        return {name: value for name, value in meta.items() if value not in ({}, None)}

    def resource(self, uri: str) -> Resource:
        """Return the page as a resource. Hosts find its permissions in the contents and in the resource list."""
        wishes, page = self.ui_meta, self.page
        meta = {"ui": wishes} if wishes else None
        inline = isinstance(page, str) and page.lstrip()[:1] == "<"
        if not inline and not Path(page).is_file():
            raise UsageError(f"app page not found: {os.fspath(page)} (expected the path of an HTML file, or HTML)")

        def read() -> TextResourceContents:
            text = str(page) if inline else _read(Path(page))
            return TextResourceContents(uri=uri, mime_type=APP_MIME_TYPE, text=text, meta=meta)

        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", uri.removeprefix(UI_SCHEME)).strip("-") or "page"
        title, about = self.title, self.description
        return Resource(read, uri, name=name, title=title, description=about, mime_type=APP_MIME_TYPE, meta=meta)


def _read(path: Path) -> str:
    with path.open("rb") as file:
        data = file.read(MAX_PAGE_BYTES + 1)
    if len(data) > MAX_PAGE_BYTES:
        raise ValueError(f"{path.name} is longer than {MAX_PAGE_BYTES} bytes")
    return data.decode()


def resolve_app_page(name: str, ui: Any, visibility: Collection[str] | None) -> tuple[dict[str, Any], Resource | None]:
    """Return the `_meta.ui` of a tool, and the page resource to register unless `ui` is the URI of an existing one."""
    meta: dict[str, Any] = {}
    resource = None
    if isinstance(ui, Mapping):
        ui_options = {"resourceUri": ui.get("resourceUri", ui.get("resource_uri")), "visibility": ui.get("visibility")}
        ui, visibility = ui_options["resourceUri"], visibility if visibility is not None else ui_options["visibility"]
    if isinstance(ui, str) and ui.startswith(UI_SCHEME):
        meta["resourceUri"] = ui
    elif ui is not None:
        page = ui if isinstance(ui, AppPage) else AppPage(ui)
        uri = page.uri or f"{UI_SCHEME}{name}/page.html"
        if not uri.startswith(UI_SCHEME):
            raise UsageError(f"app page URI must start with {UI_SCHEME}, got {uri!r}")
        meta["resourceUri"] = uri
        resource = page.resource(uri)
    if visibility is not None:
        viewers = [viewer for viewer in _VIEWERS if viewer in visibility]
        if isinstance(visibility, str) or not viewers or set(visibility) - set(_VIEWERS):
            raise UsageError(f"visibility of the tool {name!r} must be ['model'], ['app'] or both")
        meta["visibility"] = viewers
    return meta, resource


class AppsExtension(Service):
    """Service that declares the extension, and filters lists for clients without it.

    Tools that are only for pages are left out, because such clients would show them to their models. They can still be
    called: visibility is not access control.
    """

    name = "pages"
    internal = True

    def __init__(self) -> None:
        super().__init__()
        # Filtered lists by the identity of the unfiltered one: a list is the same object until it changes.
        self._list_cache: LruCache[int, tuple[Any, Any]] = LruCache(MAX_CACHED_LISTS)

    def extensions(self) -> dict[str, dict[str, Any]]:
        return {APPS_EXTENSION: {}}

    def wrap_method(self, method: str, handler: MethodHandler) -> MethodHandler:
        if method != "tools/list":
            return handler

        def filter_list(call: Call) -> Any:
            result = handler(call)
            if supports_apps(call.capabilities):
                return result
            return self._filter_awaited(result) if type(result) is CoroutineType else self._filter_list(result)

        return filter_list

    async def _filter_awaited(self, result: Any) -> Any:
        return self._filter_list(await result)

    def _filter_list(self, result: Any) -> Any:
        cached = self._list_cache.get(id(result))
        if cached is None or cached[0] is not result:
            cached = self._list_cache[id(result)] = (result, filter_model_visible(result))
        return cached[1]


class ForwardedAppsExtension(AppsExtension):
    """Filter lists that contain pages of upstreams, which declare the extension themselves."""

    name = "passed_pages"

    def extensions(self) -> dict[str, dict[str, Any]]:
        return {}


class _PageMeta(Struct):
    visibility: tuple[str, ...] = ("model",)


class _ToolMeta(Struct):
    ui: _PageMeta | None = None


class _MetaOfTool(Struct):
    meta: _ToolMeta | None = msgspec.field(default=None, name="_meta")


_seen = msgspec.json.Decoder(_MetaOfTool)


def filter_model_visible(result: Any) -> Any:
    """Return a tool list without the tools that are not for models.

    A list without such tools is returned unchanged, byte for byte.
    """
    # Search the bytes first: decoding every list would cost more than the few lists with app tools justify.
    if type(result) is not Raw or b'"visibility"' not in bytes(result):
        return result
    page = object_decoder.decode(result)
    if "tools" not in page:
        return result
    tools = array_decoder.decode(page["tools"])
    remaining = [tool for tool in tools if _is_for_models(tool)]
    return result if len(remaining) == len(tools) else Raw(jsonrpc.encode({**page, "tools": remaining}))


def _is_for_models(tool: Raw) -> bool:
    if b'"visibility"' not in bytes(tool):
        return True
    try:
        meta = _seen.decode(tool).meta
    except msgspec.DecodeError:
        return True
    return meta is None or meta.ui is None or "model" in meta.ui.visibility
