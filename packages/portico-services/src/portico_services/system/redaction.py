"""Anonymized queries: tokens in the arguments are resolved, and names in the result are replaced by tokens."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any, TypeVar, overload

import msgspec

from portico_services.system.anonymizer import Anonymizer, NameIndex, NameKind, encode_tokens
from portico_services.system.errors import SystemToolError
from portico_services.system.files.content_search import RedactedLineSearch
from portico_services.system.files.walk import FileCriteria, FileEntry, relax_glob
from portico_services.system.logs.entries import LogEntry, LogQuery
from portico_services.system.text import escape_controls, escape_controls_deep, escape_controls_multiline

T = TypeVar("T")


class RedactedQuery:
    """Query with anonymized result. A name that was requested by its token appears as that token in results and errors.

    The matches of a filter reveal what it matched. A filter may therefore refer to a name only by its token, and is
    applied to the anonymized text; searching for the resolved names only preselects candidates.
    """

    def __init__(self, privacy: Anonymizer) -> None:
        self._privacy = privacy
        self._names: list[tuple[NameKind, str]] = []

    def __enter__(self) -> RedactedQuery:
        return self

    def __exit__(self, kind: type[BaseException] | None, raised: BaseException | None, _: TracebackType | None) -> None:
        if isinstance(raised, SystemToolError) and self.is_active:
            # An error message quotes paths and names of the machine; without this a failing call would reveal what a
            # successful one hides.
            raised.redact(self._restore_requested_tokens)

    @property
    def is_active(self) -> bool:
        """Return whether anonymization is enabled."""
        return self._privacy.level != "off"

    @overload
    def resolve_tokens(self, text: str) -> str: ...
    @overload
    def resolve_tokens(self, text: str | None) -> str | None: ...
    def resolve_tokens(self, text: str | None) -> str | None:
        """Return an argument with its tokens replaced by the names they stand for."""
        if text is None:
            return None
        text, names = self._privacy.resolve_token(text)
        # Remembered for the result: a name that the caller does not know must reappear as the token it was requested
        # by.
        self._names += names
        return text

    def redact_result(
        self, result: T, related: Iterable[Any] = (), around: str = "", known_names: Iterable[tuple[NameKind, str]] = ()
    ) -> T:
        """Return an anonymized result. Names are also collected from the fields of `besides`, the text `around` and
        `known_names`.
        """
        if not self.is_active:
            return result
        names = [*self._names, *known_names]
        # On the plain JSON value, so that no field of any result type can be forgotten.
        hidden = self._privacy.anonymize(msgspec.to_builtins(result), map(escape_controls_deep, related), names, around)
        return msgspec.convert(hidden, type(result))

    def name_index(self) -> NameIndex:
        return NameIndex(self._privacy, self._names)

    def _restore_requested_tokens(self, text: str) -> str:
        for kind, name in self._names:
            # Messages quote names with repr(), which may escape characters.
            for spelling in {name, repr(name)[1:-1]}:
                text = text.replace(spelling, self._privacy.token(kind, name))
        return str(self._privacy.anonymize(text, known_names=self._names))


class RedactedEntryFilter:
    """Filter for log entries that match a query in their anonymized form."""

    def __init__(self, redacted: RedactedQuery, query: LogQuery) -> None:
        self._redacted = redacted
        self._contains = None if query.contains is None else encode_tokens(query.contains).casefold()
        self._source = LogQuery(source=None if query.source is None else encode_tokens(query.source))
        # Counts are cached per query; tokens of different names must not share a count.
        self.key: object = [query.contains, query.source]

    def __call__(self, entry: LogEntry) -> bool:
        # Without a text filter the entry needs no second look: anonymizing each entry costs far more than reading it.
        if self._contains is None and self._source.source is None:
            return True
        name_index = self._redacted.name_index()
        name_index.collect(escape_controls_deep(dict(entry.fields)), texts=False, is_open=True)
        name_index.collect(
            {"message": escape_controls_multiline(entry.message), "computer": escape_controls(entry.computer)}
        )
        sources = (
            encode_tokens(name_index.anonymize_text(escape_controls(source))) for source in (entry.source, *entry.also)
        )
        return (self._source.source is None or any(map(self._source.matches_source, sources))) and (
            self._contains is None
            or self._contains
            in encode_tokens(name_index.anonymize_text(escape_controls_multiline(entry.message))).casefold()
        )


class RedactedFileView:
    """Filter for files that match the criteria in their anonymized form."""

    def __init__(self, redacted: RedactedQuery, criteria: FileCriteria, within: str | None) -> None:
        self._redacted = redacted
        self._criteria = msgspec.structs.replace(
            criteria,
            text=None if criteria.text is None else encode_tokens(criteria.text),
            names=tuple(map(encode_tokens, criteria.names)),
            type=None if criteria.type is None else encode_tokens(criteria.type),
        )
        self.search = (
            None if within is None else RedactedLineSearch(within, redacted.resolve_tokens(within), redacted.name_index)
        )

    def matches(self, entry: FileEntry, top: str) -> bool:
        name_index = self._redacted.name_index()
        name_index.collect(entry.path)
        name = encode_tokens(name_index.anonymize_text(escape_controls(entry.name)))
        relative = encode_tokens(name_index.anonymize_text(escape_controls(entry.path[len(top) :].lstrip("/\\"))))
        # Size and time are no names, so the search on the real file has already decided about them.
        return self._criteria.matches_type(entry.type, name) and self._criteria.matches_name(name, relative)


def relaxed_criteria(redacted: RedactedQuery, criteria: FileCriteria) -> FileCriteria:
    """Return criteria with resolved tokens. They match too much: the filter on the anonymized form decides."""
    if not redacted.is_active:
        return criteria
    return msgspec.structs.replace(
        criteria,
        text=redacted.resolve_tokens(criteria.text),
        names=tuple(relax_glob(name, redacted.resolve_tokens) for name in criteria.names),
        type=redacted.resolve_tokens(criteria.type),
    )
