"""Client-side handlers for server-to-client requests: sampling, elicitation and roots, for every protocol version.

This module is the only place that compares requests with the declared capabilities. An invalid request never reaches a
handler, and an invalid handler result never reaches the server.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from inspect import isawaitable
from pathlib import Path
from typing import Any, Literal

from msgspec import Raw, Struct
from msgspec.structs import replace

from portico.jsonschema.elicitation_forms import find_invalid_field, to_form_schema
from portico.jsonschema.reader import get_form_defaults
from portico.protocol.client_features import (
    CreateMessageParams,
    CreateMessageResult,
    ElicitParams,
    ElicitResult,
    ListRootsResult,
    Root,
)
from portico.protocol.content import TextContent
from portico.protocol.errors import InvalidParams, MethodNotFound, MissingClientCapability, UsageError
from portico.protocol.meta import ClientCapabilities
from portico.protocol.methods import METHODS
from portico.protocol.versions import FIRST_MODERN_VERSION, ProtocolVersion
from portico.rpc.client_requests import validate_client_request

SamplingHandler = Callable[[CreateMessageParams], CreateMessageResult | str | Awaitable[CreateMessageResult | str]]
ElicitationHandler = Callable[
    [ElicitParams], ElicitResult | dict[str, Any] | Awaitable[ElicitResult | dict[str, Any] | None] | None
]
Roots = Sequence[str | os.PathLike[str] | Root]
ElicitationMode = Literal["form", "url"]

ELICITATION_MODES: tuple[ElicitationMode, ...] = ("form", "url")
# URL mode is opt-in: a client that declares it must let the user inspect the URL before it is opened.
FORM_ONLY: tuple[ElicitationMode, ...] = ("form",)
_ACTIONS = ("accept", "decline", "cancel")
# RFC 8089, restricted to the characters of RFC 3986.
_FILE_URI = re.compile(r"file://[^/?#\s]*/(?:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*")
# At least two characters: a single letter before the colon is a Windows drive.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


class InvalidHandlerResult(UsageError):
    """A handler returned a result that does not fit the request."""


class _ClientInfo(Struct, frozen=True):
    """The client's own capabilities, as the peer that `validate_client_request` checks."""

    capabilities: ClientCapabilities
    protocol_version: ProtocolVersion | None


class InputHandlers:
    """The sampling and elicitation handlers and the roots of a client."""

    def __init__(
        self,
        sampling_handler: SamplingHandler | None = None,
        elicitation_handler: ElicitationHandler | None = None,
        roots: Roots | None = None,
        *,
        elicitation_modes: Collection[ElicitationMode] = FORM_ONLY,
        sampling_tools: bool = False,
    ) -> None:
        if not elicitation_modes or not set(elicitation_modes) <= set(ELICITATION_MODES):
            raise UsageError(
                f"elicitation_modes must be a non-empty subset of {', '.join(ELICITATION_MODES)}, got "
                f"{elicitation_modes!r}"
            )
        self.roots = roots
        self._handlers = {"sampling/createMessage": sampling_handler, "elicitation/create": elicitation_handler}
        # Only features with a handler are declared as capabilities.
        self.capabilities = ClientCapabilities(
            sampling=None if sampling_handler is None else {"tools": {}} if sampling_tools else {},
            elicitation=None
            if elicitation_handler is None
            else {mode: {} for mode in ELICITATION_MODES if mode in elicitation_modes},
            # An empty list still declares the capability: it means that no directory is shared, not that the
            # client cannot say.
            roots=None if roots is None else {},
        )

    @property
    def roots(self) -> list[Root] | None:
        return self._roots

    @roots.setter
    def roots(self, values: Roots | None) -> None:
        self._roots = None if values is None else [_root(item) for item in values]

    def can_handle(self, method: str, revision: ProtocolVersion) -> bool:
        """Return whether there is a handler for this method in this protocol version."""
        has_handler = self._roots is not None if method == "roots/list" else self._handlers.get(method) is not None
        # 2026-07-28 embeds input requests in results and has no separate requests for them.
        return has_handler and (revision >= FIRST_MODERN_VERSION or METHODS[method].supports(revision))

    async def handle(self, method: str, params: Raw, revision: ProtocolVersion) -> Any:
        """Validate a request, call its handler and return the result.

        Raises MethodNotFound or InvalidParams for requests that the client does not support, and InvalidHandlerResult
        if the handler's result does not fit.
        """
        if not self.can_handle(method, revision):
            raise MethodNotFound.of(method)
        request_params = METHODS[method].decode(params)
        # The same validation that a Portico server applies before it sends a request.
        try:
            validate_client_request(_ClientInfo(self.capabilities, revision), method, params or Raw(b"{}"))
        except (MissingClientCapability, UsageError, RecursionError) as failure:
            raise InvalidParams(f"Invalid params for {method}: {str(failure)[:300]}") from None
        if method == "roots/list":
            return ListRootsResult(self._roots or [])
        handler_result = await _await_result(self._handlers[method](request_params))  # type: ignore[misc]
        return (
            _to_sampling_result(handler_result)
            if method == "sampling/createMessage"
            else _to_elicit_result(handler_result, request_params)
        )


def _to_sampling_result(result: CreateMessageResult | str) -> CreateMessageResult:
    if isinstance(result, CreateMessageResult):
        return result
    if not isinstance(result, str):
        raise UsageError(
            f"the sampling handler must return a str or a CreateMessageResult, got {type(result).__name__}"
        )
    return CreateMessageResult(role="assistant", content=TextContent(text=result), model="handler")


def _to_elicit_result(result: ElicitResult | dict[str, Any] | None, params: ElicitParams) -> ElicitResult:
    """Convert a handler's return value. A handler may return the fields alone (accepted) or None (declined)."""
    if result is None:
        return ElicitResult("decline")
    is_page = params.mode == "url"
    if is_page and not isinstance(result, ElicitResult):
        # Returned form fields are no consent to open a URL.
        raise InvalidHandlerResult(
            "the elicitation handler must answer a URL elicitation with ElicitResult('accept'), got form fields"
        )
    if not isinstance(result, ElicitResult | Mapping):
        raise InvalidHandlerResult(
            f"the elicitation handler must return the form fields or an ElicitResult, got {type(result).__name__}"
        )
    answer = result if isinstance(result, ElicitResult) else ElicitResult("accept", dict(result))
    if answer.action not in _ACTIONS:
        raise InvalidHandlerResult(
            f"the elicitation handler returned the action {answer.action!r} (expected one of {', '.join(_ACTIONS)})"
        )
    if answer.action != "accept" or is_page:
        return ElicitResult(answer.action)  # only accepted forms have content (2025-11-25, client/elicitation)
    form = to_form_schema(params.requested_schema, "the form")
    # Users who leave a field alone accept its default, as they see it in a form.
    content = {**get_form_defaults(form), **(answer.content or {})}
    wrong = find_invalid_field(form, content)
    if wrong is not None:
        raise InvalidHandlerResult(
            f"the elicitation handler's result does not match the form: invalid value for {wrong[:100]!r}"
        )
    return ElicitResult("accept", content)


def _root(root: str | os.PathLike[str] | Root) -> Root:
    """Return a Root with a `file://` URI (client/roots). A path is converted."""
    if isinstance(root, Root):
        return replace(root, uri=_file_uri(root.uri))
    return Root(_file_uri(os.fspath(root)))


def _file_uri(path: str) -> str:
    if _FILE_URI.fullmatch(path):
        return path
    if not path or _SCHEME.match(path):
        raise UsageError(f"a root must be a path or a file:// URI, got {path!r}")
    return Path(path).absolute().as_uri()


async def _await_result(value: Any) -> Any:
    return await value if isawaitable(value) else value
