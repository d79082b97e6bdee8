"""What a server offers, in order, and its lists as bytes."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from msgspec import UNSET, Raw

from portico.protocol import jsonrpc, translation
from portico.protocol.content import CacheableResult, strip_result_type
from portico.protocol.errors import InvalidParams, UsageError
from portico.protocol.versions import MODERN, Revision

if TYPE_CHECKING:
    from portico.server.policy.interfaces import Kind

PAGE_SIZE = 1000

# What each list is of.
KINDS: dict[str, Kind] = {
    "tools/list": "tool",
    "prompts/list": "prompt",
    "resources/list": "resource",
    "resources/templates/list": "template",
}

_MAC = 12
LONGEST_CURSOR = 1024


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
        method: str,
        result: Callable[..., CacheableResult],
        member: str,
        *,
        page_size: int = PAGE_SIZE,
        hints: dict[str, Any],
        cursors: ListCursors,
        on_change: Callable[[], None],
    ) -> None:
        self.kind = kind
        self.method = method
        self.page_size = page_size
        self._result = result
        self._member = member
        self.hints = hints
        self._cursors = cursors
        self._on_change = on_change
        self._components: dict[str, C] = {}
        self._definitions: Sequence[Any] | None = None
        # What the kept pages are pages of.
        self._paged: Sequence[Any] = ()
        self._pages: dict[tuple[Revision, int], Raw] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._components

    def __iter__(self) -> Iterator[C]:
        return iter(self._components.values())

    def __len__(self) -> int:
        return len(self._components)

    def get(self, key: str) -> C | None:
        return self._components.get(key)

    def unchecked(self, keys: Iterable[str]) -> list[str]:
        """Those that may be hinted at: no check of who may have them could hide them."""
        return [key for key in keys if getattr(self.get(key), "auth", None) is None]

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
        self._definitions = None
        self._on_change()

    @property
    def definitions(self) -> Sequence[Any]:
        """What is listed: the same object until something changes."""
        if self._definitions is None:
            self._definitions = tuple(component.definition for component in self._components.values())
        return self._definitions

    def page(self, revision: Revision, cursor: str | None, listed: Sequence[Any] | None = None) -> Raw:
        """One page of the list, already encoded; of `listed`, where more is in the list than our own.

        Pages are kept for as long as the same object is listed.
        """
        listed = self.definitions if listed is None else listed
        if listed is not self._paged:
            self._paged, self._pages = listed, {}
        start = 0 if cursor is None else self.start(cursor, len(listed))
        page = self._pages.get((revision, start))
        if page is None:
            page = self._pages[revision, start] = self.encode(listed, revision, start)
        return page

    def once(self, listed: Sequence[Any], revision: Revision, cursor: str | None) -> Raw:
        """One page of a list that is not kept."""
        return self.encode(listed, revision, 0 if cursor is None else self.start(cursor, len(listed)))

    def start(self, cursor: str, length: int) -> int:
        """Where a page begins. The list may have become shorter since: then nothing is left, which is no mistake."""
        return min(int(self._cursors.read(self._listed, cursor)), length)

    def cursor(self, end: int) -> str:
        """Leads on to what comes after so many entries."""
        return self._cursors.issue(self._listed, str(end))

    @property
    def _listed(self) -> str:
        # Pages of another size end elsewhere, and each page that can be asked for is kept.
        return f"{self.method} by {self.page_size}"

    def encode(self, definitions: Sequence[Any], revision: Revision, start: int) -> Raw:
        end = start + self.page_size
        result = self._result(
            **{self._member: list(definitions[start:end])},
            next_cursor=self.cursor(end) if end < len(definitions) else UNSET,
            **self.hints,
        )
        if revision >= MODERN:
            return Raw(jsonrpc.encode(translation.modern(result)))
        result = translation.result(result, revision)
        result.meta = UNSET
        return Raw(strip_result_type(jsonrpc.encode(result)))


class ListCursors:
    """Issues the cursors of every list of a server, and reads them again.

    A cursor belongs to the list that it was issued for; one of another list, or one that was made up, is refused.
    Nothing is kept for it, so that it works in every process that has the key.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def issue(self, listed: str, place: str) -> str:
        """The cursor for a place in a list. `listed` says which list it is, with all that its order depends on."""
        body = place.encode()
        return urlsafe_b64encode(self._mac(listed, body) + body).decode()

    def read(self, listed: str, cursor: str) -> str:
        """The place. Raises InvalidParams, the same for every way in which a cursor can be wrong."""
        try:
            place = urlsafe_b64decode(cursor[:LONGEST_CURSOR].encode("ascii"))[_MAC:].decode()
        except ValueError:
            place = ""
        # Python's decoder skips what is not of the alphabet; only the exact text that we issue will do.
        if not place or not _same(self.issue(listed, place), cursor):
            raise InvalidParams(f"Invalid cursor: {cursor[:100]!r}")
        return place

    def _mac(self, listed: str, body: bytes) -> bytes:
        # Loaded with the first long list, not with every server.
        import hmac

        return hmac.digest(self._key, b"cursor %d %s %s" % (len(listed), listed.encode(), body), "sha256")[:_MAC]


def _same(one: str, other: str) -> bool:
    import hmac

    return hmac.compare_digest(one.encode(), other.encode(errors="replace"))
