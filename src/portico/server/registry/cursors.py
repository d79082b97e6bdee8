"""ListCursors: where a page of a list ended, in a form that only we can make."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode

from portico.wire.errors import InvalidParams

_MAC = 12
LONGEST_CURSOR = 1024


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
