"""An upstream that is no MCP server: an API with an OpenAPI document, whose operations are its tools."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from portico._options import check_options
from portico.protocol.errors import UsageError
from portico.rpc.call import Call
from portico.server.providers.openapi.base_url import base_of
from portico.server.providers.openapi.credentials import SecuritySchemes
from portico.server.providers.openapi.document import read_document
from portico.server.providers.openapi.operations import OperationFilter
from portico.server.providers.openapi.tools import Api, add_operations
from portico.server.providers.openapi.transports import HttpApiSender, RequestCarrier
from portico.server.server import Server
from portico.transports.targets import Here
from portico_gateway.credentials.upstream_auth import OutgoingAuth

# Senders with credentials, one for those who may share it.
MOST_SENDERS = 1000
_MOST_LOADED = 64


class ApiTable(OperationFilter, total=False):
    """`openapi = { path = "crm.yaml", tags = ["invoices"] }`, where more is to be said than the path."""

    path: str
    variables: Mapping[str, str]
    private: bool
    outputs: bool
    longest: int


class _ApiPlace(TypedDict, total=False):
    openapi: str | Mapping[str, Any]
    url: str
    headers: Mapping[str, str]
    type: str
    disabled: bool


class ApiTarget(Here, frozen=True):
    """A server of this process that stands for an API."""

    url: str
    api: Api


# What was read is not read again for another reason: the connections of its tools go on.
_loaded: OrderedDict[str, ApiTarget] = OrderedDict()


def api_target(what: str, place: Mapping[str, Any], timeout: Any, folder: Path) -> ApiTarget:
    """The target of an upstream with `openapi`. The path is relative to the folder of the file."""
    check_options(what, place, _ApiPlace)
    said = place["openapi"]
    table: dict[str, Any] = {"path": said} if isinstance(said, str) else dict(said)
    check_options(f"{what}.openapi", table, ApiTable)
    if "path" not in table:
        raise UsageError(f"{what}.openapi needs the path of the document")
    path = folder / table.pop("path")
    options: dict[str, Any] = {**table, "url": place.get("url"), "headers": dict(place.get("headers", {}))}
    if isinstance(timeout, int | float):
        options["timeout"] = timeout
    key = json.dumps([str(path.absolute()), _changed(path), options], sort_keys=True, default=str)
    if key not in _loaded:
        try:
            _loaded[key] = _made(path, options)
        except UsageError as mistake:
            raise UsageError(f"{what}: {path.name}: {mistake}") from None
        while len(_loaded) > _MOST_LOADED:
            _loaded.popitem(last=False)
    return _loaded[key]


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError as failure:
        raise UsageError(f"{path.name} cannot be read: {failure.strerror}") from None


def _made(path: Path, options: dict[str, Any]) -> ApiTarget:
    document = read_document(path)
    server = Server(document.info.title or "api", version=document.info.version)
    api = add_operations(server, document, options)  # type: ignore[arg-type]
    return ApiTarget(server, options["url"] or base_of(document.servers, options.get("variables", {})), api)


def show_to(target: ApiTarget, said: Mapping[str, Any], outgoing: OutgoingAuth | None) -> OutgoingAuth | None:
    """Send the requests to an API with a credential; gives what is left to do for each call.

    A configured value without a header goes where the document's security schemes want it.
    """
    api = target.api
    value = said.get("value", "")
    if said.get("kind") == "static" and "header" not in said and " " not in value:
        api.schemes = SecuritySchemes(api.document, value)
        return None
    if outgoing is not None and isinstance(api.sender, HttpApiSender):
        api.sender.carrier = _Carriers(outgoing)
    return outgoing


class _Carriers:
    """The sender for a call: the same for all that may share it, and for no other."""

    def __init__(self, auth: OutgoingAuth) -> None:
        self._auth = auth
        self._senders: OrderedDict[str | None, Any] = OrderedDict()

    def __call__(self, call: Call) -> RequestCarrier:
        key = self._auth.share(call)
        if key not in self._senders:
            self._senders[key] = self._auth.sender(call)
            while len(self._senders) > MOST_SENDERS:
                self._senders.popitem(last=False)
        self._senders.move_to_end(key)
        found: RequestCarrier = self._senders[key]
        return found
