"""What a server offers, in order, and its lists as bytes."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from msgspec import UNSET, Raw

from portico.legacy import translate
from portico.wire import jsonrpc
from portico.wire.content import CacheableResult, strip_result_type
from portico.wire.errors import InvalidParams, UsageError
from portico.wire.revisions import MODERN, Revision

PAGE_SIZE = 1000


class Listed(Protocol):
    """Something that stands in a list: a tool, a resource, a template, a prompt."""

    @property
    def definition(self) -> Any: ...


C = TypeVar("C", bound=Listed)


class Catalog(Generic[C]):
    """Offers by key, in the order they were added. Each page is encoded once for a revision and kept until a change."""

    def __init__(
        self,
        kind: str,
        result: Callable[..., CacheableResult],
        member: str,
        *,
        page_size: int = PAGE_SIZE,
        hints: dict[str, Any],
        on_change: Callable[[], None],
    ) -> None:
        self.kind = kind
        self.page_size = page_size
        self._result = result
        self._member = member
        self._hints = hints
        self._on_change = on_change
        self._components: dict[str, C] = {}
        self._pages: dict[tuple[Revision, int], Raw] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._components

    def __iter__(self) -> Iterator[C]:
        return iter(self._components.values())

    def __len__(self) -> int:
        return len(self._components)

    def get(self, key: str) -> C | None:
        return self._components.get(key)

    def add(self, key: str, component: C) -> None:
        if key in self._components:
            raise UsageError(f"there is already a {self.kind} {key!r}; remove it first")
        self._components[key] = component
        self.changed()

    def remove(self, key: str, component: C) -> bool:
        """Whether it was there to be removed."""
        if self._components.get(key) is not component:
            return False
        del self._components[key]
        self.changed()
        return True

    @staticmethod
    def name_of(definition: Any) -> str:
        """What a client calls it by."""
        for member in ("uri", "uri_template", "name"):
            if hasattr(definition, member):
                return str(getattr(definition, member))
        raise TypeError(f"{definition!r} has no name")

    def changed(self) -> None:
        self._pages.clear()
        self._on_change()

    def page(self, revision: Revision, cursor: str | None) -> Raw:
        """One page of the list, already encoded."""
        start = min(position(cursor, self.page_size), len(self._components))
        page = self._pages.get((revision, start))
        if page is None:
            definitions = [component.definition for component in self._components.values()]
            page = self._pages[revision, start] = self.encode(definitions, revision, start)
        return page

    def encode(self, definitions: Sequence[Any], revision: Revision, start: int) -> Raw:
        end = start + self.page_size
        result = self._result(
            **{self._member: list(definitions[start:end])},
            next_cursor=cursor_at(end) if end < len(definitions) else UNSET,
            **self._hints,
        )
        if revision >= MODERN:
            return Raw(jsonrpc.encode(translate.modern(result)))
        result = translate.result(result, revision)
        result.meta = UNSET
        return Raw(strip_result_type(jsonrpc.encode(result)))


def cursor_at(position: int) -> str:
    return urlsafe_b64encode(b"after %d" % position).decode()


def position(cursor: str | None, page_size: int) -> int:
    """Where a cursor points. Only what we issued is one: the end of some page, written as we write it.

    The list may have become shorter since. Then there is nothing after the cursor, which is no mistake.
    """
    if not cursor:
        return 0
    try:
        number = urlsafe_b64decode(cursor.encode("ascii")).removeprefix(b"after ")
        start = int(number) if number.isdigit() and len(number) < 10 else -1
    except ValueError:
        start = -1
    if start < 0 or start % page_size or cursor_at(start) != cursor:
        raise InvalidParams(f"Invalid cursor: {cursor[:100]!r}")
    return start
