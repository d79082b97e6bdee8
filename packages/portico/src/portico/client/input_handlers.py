"""What a server may ask of us, and who answers: the same handlers on every revision.

This is the only place where what we have declared is held against what is asked. A question that breaks the rules never
reaches a handler, and an answer that does not fit its question never reaches the server.
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

from portico.jsonschema.elicitation_forms import as_form, misfit
from portico.jsonschema.reader import defaults_of
from portico.protocol.client_features import (
    CreateMessageParams,
    CreateMessageResult,
    ElicitParams,
    ElicitResult,
    ListRootsResult,
    Root,
)
from portico.protocol.content import TextContent
from portico.protocol.errors import InvalidParams, MethodNotFound, MissingCapability, UsageError
from portico.protocol.meta import ClientCapabilities
from portico.protocol.methods import METHODS
from portico.protocol.versions import MODERN, Revision
from portico.rpc.client_requests import require

SamplingHandler = Callable[[CreateMessageParams], CreateMessageResult | str | Awaitable[CreateMessageResult | str]]
ElicitationHandler = Callable[
    [ElicitParams], ElicitResult | dict[str, Any] | Awaitable[ElicitResult | dict[str, Any] | None] | None
]
Roots = Sequence[str | os.PathLike[str] | Root]
ElicitationMode = Literal["form", "url"]

MODES: tuple[ElicitationMode, ...] = ("form", "url")
FORMS: tuple[ElicitationMode, ...] = ("form",)
_ACTIONS = ("accept", "decline", "cancel")
# RFC 8089, in the characters of RFC 3986.
_FILE_URI = re.compile(r"file://[^/?#\s]*/(?:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*")
# A letter and a colon are a drive of Windows.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


class UnfitAnswer(UsageError):
    """The answer of a handler that is none to what was asked."""


class _Ourselves(Struct, frozen=True):
    """We, as one who is asked."""

    capabilities: ClientCapabilities
    revision: Revision | None


class Inputs:
    """Answers questions with the handlers that a client was given."""

    def __init__(
        self,
        sampling: SamplingHandler | None = None,
        elicitation: ElicitationHandler | None = None,
        roots: Roots | None = None,
        *,
        modes: Collection[ElicitationMode] = FORMS,
        sampling_tools: bool = False,
    ) -> None:
        if not modes or not set(modes) <= set(MODES):
            raise UsageError(f"elicitation_modes are some of {', '.join(MODES)}, not {modes!r}")
        self.roots = roots
        self._handlers = {"sampling/createMessage": sampling, "elicitation/create": elicitation}
        # Only what has a handler is declared.
        self.capabilities = ClientCapabilities(
            sampling=None if sampling is None else {"tools": {}} if sampling_tools else {},
            elicitation=None if elicitation is None else {mode: {} for mode in MODES if mode in modes},
            roots=None if roots is None else {},
        )

    @property
    def roots(self) -> list[Root] | None:
        return self._roots

    @roots.setter
    def roots(self, given: Roots | None) -> None:
        self._roots = None if given is None else [_root(one) for one in given]

    def can_answer(self, method: str, revision: Revision) -> bool:
        has_handler = self._roots is not None if method == "roots/list" else self._handlers.get(method) is not None
        # 2026-07-28 puts questions into results, and has no requests for them.
        return has_handler and (revision >= MODERN or METHODS[method].known_to(revision))

    async def answer(self, method: str, params: Raw, revision: Revision) -> Any:
        """The answer of the handler. Raises MethodNotFound and InvalidParams for what is not to be asked of us, and
        UnfitAnswer where the handler's answer does not fit."""
        if not self.can_answer(method, revision):
            raise MethodNotFound(f"Method not found: {method}")
        asked = METHODS[method].decode(params)
        # The rules are those that a server of ours keeps to when it asks.
        try:
            require(_Ourselves(self.capabilities, revision), method, params or Raw(b"{}"))
        except (MissingCapability, UsageError, RecursionError) as failure:
            raise InvalidParams(f"Invalid params for {method}: {str(failure)[:300]}") from None
        if method == "roots/list":
            return ListRootsResult(self._roots or [])
        said = await _settled(self._handlers[method](asked))  # type: ignore[misc]
        return _sampled(said) if method == "sampling/createMessage" else _elicited(said, asked)


def _sampled(said: CreateMessageResult | str) -> CreateMessageResult:
    if isinstance(said, CreateMessageResult):
        return said
    if not isinstance(said, str):
        raise UsageError(f"the sampling handler gave a {type(said).__name__}, not a text or a CreateMessageResult")
    return CreateMessageResult(role="assistant", content=TextContent(text=said), model="handler")


def _elicited(said: ElicitResult | dict[str, Any] | None, asked: ElicitParams) -> ElicitResult:
    """The user's answer. A handler may give the fields alone (accepted), or None (declined)."""
    if said is None:
        return ElicitResult("decline")
    is_page = asked.mode == "url"
    if is_page and not isinstance(said, ElicitResult):
        # To have filled in a form is not to have agreed to a page.
        raise UnfitAnswer("a page is agreed to with ElicitResult('accept'); the elicitation handler gave fields")
    if not isinstance(said, ElicitResult | Mapping):
        raise UnfitAnswer(f"the elicitation handler gave a {type(said).__name__}, not the fields or an ElicitResult")
    answer = said if isinstance(said, ElicitResult) else ElicitResult("accept", dict(said))
    if answer.action not in _ACTIONS:
        raise UnfitAnswer(f"the elicitation handler gave {answer.action!r}; there are {', '.join(_ACTIONS)}")
    if answer.action != "accept" or is_page:
        return ElicitResult(answer.action)  # content is for accepted forms (2025-11-25, client/elicitation)
    form = as_form(asked.requested_schema, "the form")
    content = {**defaults_of(form), **(answer.content or {})}
    wrong = misfit(form, content)
    if wrong is not None:
        raise UnfitAnswer(
            f"the elicitation handler's answer does not fit the form: {wrong[:100]!r} is not as asked for"
        )
    return ElicitResult("accept", content)


def _root(given: str | os.PathLike[str] | Root) -> Root:
    """client/roots: a `file://` URI. A path is made one."""
    if isinstance(given, Root):
        return replace(given, uri=_file_uri(given.uri))
    return Root(_file_uri(os.fspath(given)))


def _file_uri(place: str) -> str:
    if _FILE_URI.fullmatch(place):
        return place
    if not place or _SCHEME.match(place):
        raise UsageError(f"a root is a folder: a path or a file:// URI, not {place!r}")
    return Path(place).absolute().as_uri()


async def _settled(value: Any) -> Any:
    return await value if isawaitable(value) else value
