"""One question to the machine: what the tokens in it mean, and its answer with tokens for names."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any, TypeVar, overload

import msgspec

from portico_services.system.anonymizer import Anonymizer, Kind, Learned, opaque
from portico_services.system.errors import MachineError
from portico_services.system.files.content_search import ShownLineSearch
from portico_services.system.files.walk import FileCriteria, FileEntry, loosened
from portico_services.system.logs.entries import LogEntry, Query
from portico_services.system.text import plain, plain_all, plain_text

T = TypeVar("T")


class HidingQuery:
    """A name that was asked for by its token is that token in the answer, and in the text of a refusal.

    What a filter finds tells what it has found. So it may look for a name only by the token, and finds what is in a
    text as it would be shown: what is asked of the machine by the names themselves only makes a choice beforehand.
    """

    def __init__(self, privacy: Anonymizer) -> None:
        self._privacy = privacy
        self._names: list[tuple[Kind, str]] = []

    def __enter__(self) -> HidingQuery:
        return self

    def __exit__(self, kind: type[BaseException] | None, raised: BaseException | None, _: TracebackType | None) -> None:
        if isinstance(raised, MachineError) and self.hides:
            raised.redact(self._as_asked)

    @property
    def hides(self) -> bool:
        """Whether names are hidden at all."""
        return self._privacy.level != "off"

    @overload
    def meant(self, text: str) -> str: ...
    @overload
    def meant(self, text: str | None) -> str | None: ...
    def meant(self, text: str | None) -> str | None:
        """What an argument means in which a token may stand for a name."""
        if text is None:
            return None
        text, names = self._privacy.meaning(text)
        self._names += names
        return text

    def said(
        self, result: T, besides: Iterable[Any] = (), around: str = "", known: Iterable[tuple[Kind, str]] = ()
    ) -> T:
        """Return a result as it may be shown. Names are also learned from the fields of `besides` and the text
        `around`; those in `known` are given."""
        if not self.hides:
            return result
        names = [*self._names, *known]
        hidden = self._privacy.hide(msgspec.to_builtins(result), map(plain_all, besides), names, around)
        return msgspec.convert(hidden, type(result))

    def learned(self) -> Learned:
        return Learned(self._privacy, self._names)

    def _as_asked(self, text: str) -> str:
        for kind, name in self._names:
            for spelling in {name, repr(name)[1:-1]}:
                text = text.replace(spelling, self._privacy.token(kind, name))
        return str(self._privacy.hide(text, known=self._names))


class EntryFilter:
    """Which entries of a log fit a query as they would be shown."""

    def __init__(self, question: HidingQuery, asked: Query) -> None:
        self._question = question
        self._contains = None if asked.contains is None else opaque(asked.contains).casefold()
        self._source = Query(source=None if asked.source is None else opaque(asked.source))
        self.key: object = [asked.contains, asked.source]

    def __call__(self, entry: LogEntry) -> bool:
        if self._contains is None and self._source.source is None:
            return True
        learned = self._question.learned()
        learned.study(plain_all(dict(entry.fields)), texts=False, is_open=True)
        learned.study({"message": plain_text(entry.message), "computer": plain(entry.computer)})
        sources = (opaque(learned.masked(plain(source))) for source in (entry.source, *entry.also))
        return (self._source.source is None or any(map(self._source.names, sources))) and (
            self._contains is None or self._contains in opaque(learned.masked(plain_text(entry.message))).casefold()
        )


class FileView:
    """Which files fit the criteria as they would be shown."""

    def __init__(self, question: HidingQuery, asked: FileCriteria, within: str | None) -> None:
        self._question = question
        self._criteria = msgspec.structs.replace(
            asked,
            text=None if asked.text is None else opaque(asked.text),
            names=tuple(map(opaque, asked.names)),
            type=None if asked.type is None else opaque(asked.type),
        )
        self.search = None if within is None else ShownLineSearch(within, question.meant(within), question.learned)

    def fits(self, entry: FileEntry, top: str) -> bool:
        learned = self._question.learned()
        learned.study(entry.path)
        name = opaque(learned.masked(plain(entry.name)))
        relative = opaque(learned.masked(plain(entry.path[len(top) :].lstrip("/\\"))))
        return self._criteria.by_type(entry.type, name) and self._criteria.by_name(name, relative)


def candidates(question: HidingQuery, asked: FileCriteria) -> FileCriteria:
    """Criteria for the names that tokens stand for. They let more pass: a filter of what is shown decides."""
    if not question.hides:
        return asked
    return msgspec.structs.replace(
        asked,
        text=question.meant(asked.text),
        names=tuple(loosened(name, question.meant) for name in asked.names),
        type=question.meant(asked.type),
    )
