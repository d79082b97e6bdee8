"""MCP Apps (`io.modelcontextprotocol/ui`, 2026-01-26): pages that a host shows in a sandboxed frame beside a result.

A page is a resource with a `ui://` address. A tool names it in its `_meta.ui`, with who may see the tool: the model,
the page, or both. A host without the extension shows the tool's content, as that of any other tool.
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

from portico._options import check_fields
from portico.protocol import jsonrpc
from portico.protocol.apps import EXTENSION, ORIGIN, PAGE_TYPE, SCHEME, shows_pages
from portico.protocol.content import TextContents
from portico.protocol.errors import UsageError
from portico.rpc.call import Call
from portico.server.components.resources import Resource
from portico.server.registry.service import Answer, Service

_VIEWERS = ("model", "app")
_CSP = {
    "connect": "connectDomains",
    "resources": "resourceDomains",
    "frames": "frameDomains",
    "base": "baseUriDomains",
}
_PERMISSIONS = {
    "camera": "camera",
    "microphone": "microphone",
    "geolocation": "geolocation",
    "clipboard_write": "clipboardWrite",
    "clipboardWrite": "clipboardWrite",
}
LONGEST_PAGE = 4 * 1024 * 1024
MOST_KNOWN = 64


class AppPage(Struct, frozen=True):
    """A page for `@server.tool(ui=AppPage("chart.html", …))`, with what it wants of the host.

    * **page** – the path of an HTML file, which is read anew for each host, or the HTML itself.
    * **uri** – where it is, such as `ui://shop/cart`; made from the tool's name otherwise.
    * **connect**, **resources**, **frames**, **base** – the origins that it may fetch from, load scripts, styles and
      pictures from, show frames of, and name as its base. All others are closed to it.
    * **permissions** – of "camera", "microphone", "geolocation", "clipboard_write".
    * **domain** – an origin of its own, in the form that the host wants.
    * **prefers_border** – whether the host is to draw a border; None: as it likes.
    * **title**, **description** – what people are shown of it.
    """

    page: str | os.PathLike[str]
    uri: str | None = None
    connect: Sequence[str] = ()
    resources: Sequence[str] = ()
    frames: Sequence[str] = ()
    base: Sequence[str] = ()
    permissions: Sequence[str] = ()
    domain: str | None = None
    prefers_border: bool | None = None
    title: str | None = None
    description: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        for name in _CSP:
            for origin in getattr(self, name):
                if not re.fullmatch(ORIGIN, origin):
                    raise UsageError(f"{name} of a page has {origin!r}: an origin is such as https://cdn.example.com")
        for one in self.permissions:
            if one not in _PERMISSIONS:
                raise UsageError(f"{one!r} is no permission of a page; there are {', '.join(sorted(_PERMISSIONS))}")

    @property
    def wishes(self) -> dict[str, Any]:
        """Its `_meta.ui`."""
        csp = {wire: list(getattr(self, name)) for name, wire in _CSP.items() if getattr(self, name)}
        said: dict[str, Any] = {
            "csp": csp,
            "permissions": {_PERMISSIONS[one]: {} for one in self.permissions},
            "domain": self.domain,
            "prefersBorder": self.prefers_border,
        }
        return {name: value for name, value in said.items() if value not in ({}, None)}

    def resource(self, uri: str) -> Resource:
        """The page as a resource. Hosts read its wishes in what they read, and in the list."""
        wishes, page = self.wishes, self.page
        meta = {"ui": wishes} if wishes else None
        inline = _is_html(page)
        if not inline and not Path(page).is_file():
            raise UsageError(f"there is no page {os.fspath(page)}: it is the path of an HTML file, or HTML")

        def read() -> TextContents:
            text = str(page) if inline else _read(Path(page))
            return TextContents(uri=uri, mime_type=PAGE_TYPE, text=text, meta=meta)

        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", uri.removeprefix(SCHEME)).strip("-") or "page"
        title, about = self.title, self.description
        return Resource(read, uri, name=name, title=title, description=about, mime_type=PAGE_TYPE, meta=meta)


def _is_html(page: Any) -> bool:
    return isinstance(page, str) and page.lstrip()[:1] == "<"


def _read(path: Path) -> str:
    with path.open("rb") as file:
        data = file.read(LONGEST_PAGE + 1)
    if len(data) > LONGEST_PAGE:
        raise ValueError(f"{path.name} is longer than {LONGEST_PAGE} bytes")
    return data.decode()


def page_of(name: str, ui: Any, visibility: Collection[str] | None) -> tuple[dict[str, Any], Resource | None]:
    """The `_meta.ui` of a tool, and its page, if that is not a resource of its own."""
    said: dict[str, Any] = {}
    resource = None
    if isinstance(ui, Mapping):
        known = {"resourceUri": ui.get("resourceUri", ui.get("resource_uri")), "visibility": ui.get("visibility")}
        ui, visibility = known["resourceUri"], visibility if visibility is not None else known["visibility"]
    if isinstance(ui, str) and ui.startswith(SCHEME):
        said["resourceUri"] = ui
    elif ui is not None:
        page = ui if isinstance(ui, AppPage) else AppPage(ui)
        uri = page.uri or f"{SCHEME}{name}/page.html"
        if not uri.startswith(SCHEME):
            raise UsageError(f"{uri!r} is no address of a page: it begins with {SCHEME}")
        said["resourceUri"] = uri
        resource = page.resource(uri)
    if visibility is not None:
        viewers = [one for one in _VIEWERS if one in visibility]
        if isinstance(visibility, str) or not viewers or set(visibility) - set(_VIEWERS):
            raise UsageError(f"the tool {name!r} is visible to ['model'], ['app'] or both")
        said["visibility"] = viewers
    return said, resource


class AppPages(Service):
    """Declares the extension; and leaves tools that are for pages alone out of the lists of clients without it, which
    would show them to their models. They are answered all the same: it is no matter of access."""

    name = "pages"

    def __init__(self) -> None:
        super().__init__()
        # Pages of lists, and what models are shown of them: a list is the same object until it changes.
        self._known: dict[int, tuple[Any, Any]] = {}

    def extensions(self) -> dict[str, dict[str, Any]]:
        return {EXTENSION: {}}

    def around(self, method: str, answer: Answer) -> Answer:
        if method != "tools/list":
            return answer

        def listed(call: Call) -> Any:
            result = answer(call)
            if shows_pages(call.capabilities):
                return result
            return self._later(result) if type(result) is CoroutineType else self._shown(result)

        return listed

    async def _later(self, result: Any) -> Any:
        return self._shown(await result)

    def _shown(self, result: Any) -> Any:
        known = self._known.get(id(result))
        if known is None or known[0] is not result:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            known = self._known[id(result)] = (result, for_models(result))
        return known[1]


class PassedPages(AppPages):
    """The same for pages of others, which they declare themselves."""

    name = "passed_pages"

    def extensions(self) -> dict[str, dict[str, Any]]:
        return {}


_members = msgspec.json.Decoder(dict[str, Raw])
_tools = msgspec.json.Decoder(list[Raw])


class _PageMeta(Struct):
    visibility: tuple[str, ...] = ("model",)


class _ToolMeta(Struct):
    ui: _PageMeta | None = None


class _MetaOfTool(Struct):
    meta: _ToolMeta | None = msgspec.field(default=None, name="_meta")


_seen = msgspec.json.Decoder(_MetaOfTool)


def for_models(result: Any) -> Any:
    """A list without the tools that are not for models; what has none stays as it is, to the byte."""
    if type(result) is not Raw or b'"visibility"' not in bytes(result):
        return result
    page = _members.decode(result)
    if "tools" not in page:
        return result
    tools = _tools.decode(page["tools"])
    kept = [one for one in tools if _is_for_models(one)]
    return result if len(kept) == len(tools) else Raw(jsonrpc.encode({**page, "tools": kept}))


def _is_for_models(tool: Raw) -> bool:
    if b'"visibility"' not in bytes(tool):
        return True
    try:
        meta = _seen.decode(tool).meta
    except msgspec.DecodeError:
        return True
    return meta is None or meta.ui is None or "model" in meta.ui.visibility
