"""Catalogs: the components of one kind in order, and their lists as encoded pages."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from msgspec import UNSET, Raw

from portico.protocol import jsonrpc, translation
from portico.protocol.content import CacheableResult, strip_result_type
from portico.protocol.errors import InvalidParams, UsageError
from portico.protocol.versions import FIRST_MODERN_VERSION, ProtocolVersion

if TYPE_CHECKING:
    from portico.server.policy.interfaces import Kind

# Most servers fit on one page, and many clients never request a second one.
PAGE_SIZE = 1000

# The kind of component in each list.
KIND_BY_METHOD: dict[str, Kind] = {
    "tools/list": "tool",
    "prompts/list": "prompt",
    "resources/list": "resource",
    "resources/templates/list": "template",
}

# 96 bits: a cursor grants nothing, so a forged one only has to be improbable.
_MAC = 12
# Far more than a cursor of ours has; limits the work for a hostile one.
MAX_CURSOR_CHARS = 1024


class ListableComponent(Protocol):
    """A component that can be listed: a tool, a resource, a template, a prompt."""

    @property
    def definition(self) -> Any: ...


C = TypeVar("C", bound=ListableComponent)


class Catalog(Generic[C]):
    """Components by key, in order of registration. Pages are encoded once per protocol version and cached until a
    change.
    """

    def __init__(
        self,
        kind: str,
        method: str,
        result: Callable[..., CacheableResult],
        member: str,
        *,
        page_size: int = PAGE_SIZE,
        cache_hints: dict[str, Any],
        cursors: ListCursorCodec,
        on_change: Callable[[], None],
    ) -> None:
        self.kind = kind
        self.method = method
        self.page_size = page_size
        self._result = result
        self._member = member
        self.cache_hints = cache_hints
        self._cursors = cursors
        self._on_change = on_change
        self._components: dict[str, C] = {}
        self._definitions: Sequence[Any] | None = None
        # The list that the cached pages belong to.
        self._paged: Sequence[Any] = ()
        self._pages: dict[tuple[ProtocolVersion, int], Raw] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._components

    def __iter__(self) -> Iterator[C]:
        return iter(self._components.values())

    def __len__(self) -> int:
        return len(self._components)

    def get(self, key: str) -> C | None:
        return self._components.get(key)

    def without_auth_checks(self, keys: Iterable[str]) -> list[str]:
        """Return the keys that may be suggested in errors: those without an auth check that could hide them."""
        return [key for key in keys if getattr(self.get(key), "auth", None) is None]

    def add(self, key: str, component: C) -> None:
        """Add a component. Raises UsageError if the key is taken."""
        if key in self._components:
            raise UsageError(f"{self.kind} {key!r} is already registered; remove it first")
        self._components[key] = component
        self.invalidate()

    def remove(self, key: str, component: C) -> bool:
        """Remove a component, and return whether it was registered under this key."""
        if self._components.get(key) is not component:
            return False
        del self._components[key]
        self.invalidate()
        return True

    @staticmethod
    def name_of(definition: Any) -> str:
        """Return the name or URI by which clients address a definition."""
        for member in ("uri", "uri_template", "name"):
            if hasattr(definition, member):
                return str(getattr(definition, member))
        raise TypeError(f"{definition!r} has no name")

    def invalidate(self) -> None:
        """Discard the cached list, and notify subscribers."""
        self._definitions = None
        self._on_change()

    @property
    def definitions(self) -> Sequence[Any]:
        """Return the listed definitions: the same object until something changes."""
        if self._definitions is None:
            self._definitions = tuple(component.definition for component in self._components.values())
        return self._definitions

    def page(self, revision: ProtocolVersion, cursor: str | None, entries: Sequence[Any] | None = None) -> Raw:
        """Return one encoded page of the list, or of `entries` if more than our own components are listed.

        Pages are cached while the same object is listed.
        """
        entries = self.definitions if entries is None else entries
        # By identity: `definitions` returns the same tuple until the catalog changes.
        if entries is not self._paged:
            self._paged, self._pages = entries, {}
        start = 0 if cursor is None else self.page_start(cursor, len(entries))
        page = self._pages.get((revision, start))
        if page is None:
            page = self._pages[revision, start] = self.encode(entries, revision, start)
        return page

    def encode_page(self, entries: Sequence[Any], revision: ProtocolVersion, cursor: str | None) -> Raw:
        """Return one page of a list without caching it."""
        return self.encode(entries, revision, 0 if cursor is None else self.page_start(cursor, len(entries)))

    def page_start(self, cursor: str, length: int) -> int:
        """Return the start of a page. If the list has become shorter, the page is empty, which is not an error."""
        return min(int(self._cursors.read(self._cursor_scope, cursor)), length)

    def issue_cursor(self, end: int) -> str:
        """Return the cursor for the entries after position `end`."""
        return self._cursors.issue(self._cursor_scope, str(end))

    @property
    def _cursor_scope(self) -> str:
        # Includes the page size: every start that a cursor can name is cached, so foreign starts must be rejected.
        return f"{self.method} by {self.page_size}"

    def encode(self, definitions: Sequence[Any], revision: ProtocolVersion, start: int) -> Raw:
        end = start + self.page_size
        result = self._result(
            **{self._member: list(definitions[start:end])},
            next_cursor=self.issue_cursor(end) if end < len(definitions) else UNSET,
            **self.cache_hints,
        )
        if revision >= FIRST_MODERN_VERSION:
            return Raw(jsonrpc.encode(translation.modernize_list(result)))
        result = translation.translate_result(result, revision)
        # The handshake versions report the server's info once, in the result of `initialize`.
        result.meta = UNSET
        return Raw(strip_result_type(jsonrpc.encode(result)))


class ListCursorCodec:
    """Issues and verifies the cursors of all lists of a server.

    A cursor belongs to one list; cursors of other lists and forged ones are rejected. Cursors are stateless, so they
    are valid in every process that has the key.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def issue(self, list_key: str, position: str) -> str:
        """Return the cursor for a position. `list_key` identifies the list and everything that its order depends on."""
        body = position.encode()
        return urlsafe_b64encode(self._mac(list_key, body) + body).decode()

    def read(self, list_key: str, cursor: str) -> str:
        """Return the position. Raises the same InvalidParams for every kind of invalid cursor."""
        try:
            position = urlsafe_b64decode(cursor[:MAX_CURSOR_CHARS].encode("ascii"))[_MAC:].decode()
        except ValueError:
            position = ""
        # base64 decoding ignores characters outside the alphabet, so compare with the exact text that we would issue.
        if not position or not _is_same_item(self.issue(list_key, position), cursor):
            raise InvalidParams(f"Invalid cursor: {cursor[:100]!r}")
        return position

    def _mac(self, listed: str, body: bytes) -> bytes:
        # Imported on demand: most servers have no list that needs a second page.
        import hmac

        # The length of the list key separates it from the position, so that no other pair has the
        # same text.
        return hmac.digest(self._key, b"cursor %d %s %s" % (len(listed), listed.encode(), body), "sha256")[:_MAC]


def _is_same_item(item: str, other: str) -> bool:
    import hmac

    return hmac.compare_digest(item.encode(), other.encode(errors="replace"))
