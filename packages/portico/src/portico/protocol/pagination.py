"""Lists page by page: where one ends that does not say so itself."""

from __future__ import annotations

from typing import Any

MOST_PAGES = 1000
MOST_ENTRIES = 100_000


class Paging:
    """The way through one list. Each page says how to go on, and the way ends whatever the pages say."""

    __slots__ = ("_entries", "_seen", "endless")

    def __init__(self) -> None:
        # Of the cursors only what tells them apart: one may be as long as a message.
        self._seen: set[int] = set()
        self._entries = 0
        # Whether it was ended here: a cursor came again, or there were too many pages or entries.
        self.endless = False

    def after(self, cursor: Any, entries: int) -> str | None:
        """The cursor to go on with after a page of so many entries; None at the end."""
        if not isinstance(cursor, str):
            return None
        self._entries += entries
        known = hash(cursor)
        if known in self._seen or len(self._seen) >= MOST_PAGES - 1 or self._entries >= MOST_ENTRIES:
            self.endless = True
            return None
        self._seen.add(known)
        return cursor
