"""Tokens that were given out by hand, for programs without a login: a file has their hashes, never themselves.

    [[token]]
    id = "ci"
    hash = "sha256:…"
    scopes = ["notes:read"]
    expires = 2027-01-31

The file is read again when it changes, so that taking a row away ends a token within a second, and what is listened to
with it. A token is 256 random
bits, so a plain hash is enough to keep it secret, and looking it up tells nothing.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import time
import tomllib
from collections.abc import Callable
from datetime import UTC, date, datetime
from datetime import time as time_of_day
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from portico.auth.principal import Principal
from portico.auth.verifiers.base import RequestCredentials, TokenInvalid, Verified
from portico.protocol.errors import UsageError

log = logging.getLogger("portico.auth")

# By this a scanner of secrets knows one, and so do we.
PREFIX = "ptk_"
ISSUER = "tokens"
LOOK_SECONDS = 1.0
_HASH = re.compile(r"sha256:[0-9a-f]{64}")


class TokenRow(Struct, frozen=True, forbid_unknown_fields=True):
    """One token, by its hash. Without scopes it may do what needs none; `all = true` is for everything."""

    id: str
    hash: str
    scopes: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    all: bool = False
    # A date or a moment.
    expires: Any = None

    @property
    def ends(self) -> float | None:
        if self.expires is None:
            return None
        if isinstance(self.expires, datetime):
            moment: datetime = self.expires if self.expires.tzinfo else self.expires.replace(tzinfo=UTC)
        else:
            # A day is meant whole.
            moment = datetime.combine(self.expires, time_of_day.max, UTC)
        return moment.timestamp()


class TokenRows(Struct, frozen=True, forbid_unknown_fields=True):
    """A whole file."""

    token: tuple[TokenRow, ...] = ()


def new_token() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def hashed(token: str) -> str:
    return f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"


def read_rows(path: str | Path) -> list[TokenRow]:
    """The rows of a file. Raises UsageError with what is wrong in it."""
    try:
        said: Any = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        rows = msgspec.convert(said, TokenRows).token
    except OSError as failure:
        raise UsageError(f"the tokens in {path} cannot be read: {failure.strerror}") from None
    except (ValueError, RecursionError) as failure:
        raise UsageError(f"the tokens in {path} cannot be read: {failure}") from None
    for row in rows:
        if row.expires is not None and not isinstance(row.expires, date):
            raise UsageError(f"{path}: the token {row.id[:100]!r} ends at {row.expires!r}, which is no date")
        if not row.id or not _HASH.fullmatch(row.hash):
            raise UsageError(f"{path}: the token {row.id[:100]!r} needs an id, and a hash such as sha256:…")
    return list(rows)


class TokenFileVerifier:
    """Bearer tokens of a file."""

    # Nothing but what it is shown decides: not from where.
    by_address = False

    def __init__(self, path: str | Path, clock: Callable[[], float] = time.time) -> None:
        self._path = Path(path)
        self._clock = clock
        self._looked = float("-inf")
        self._stamp: Any = None
        self._known: dict[str, Verified] = {}
        # Told the ids of those whose tokens are gone, or good for something else.
        self.on_removed: Callable[[frozenset[str]], None] | None = None
        self._read()

    def at_once(self, credentials: RequestCredentials) -> Verified | None:
        if credentials.scheme != "bearer" or not credentials.token.startswith(PREFIX):
            return None
        self.look()
        found = self._known.get(hashed(credentials.token))
        if found is None or (found.expires is not None and self._clock() >= found.expires):
            raise TokenInvalid("it is not in the file of tokens, or has ended")
        return found

    async def __call__(self, credentials: RequestCredentials) -> Verified | None:
        return self.at_once(credentials)

    def is_revoked(self, principal: Any) -> bool:
        if getattr(principal, "issuer", None) != ISSUER:
            return False
        self.look()
        return principal.id not in self._ids

    def look(self) -> None:
        """Read it again if it has changed. A file with a mistake in it leaves things as they were."""
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        if self._stamp != self._now_stamp():
            try:
                self._read()
            except UsageError as mistake:
                log.error("%s; the tokens are as they were", mistake)

    def _now_stamp(self) -> Any:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> None:
        stamp = self._now_stamp()
        before, self._known = self._known, {row.hash: _verified(row) for row in read_rows(self._path)}
        self._stamp = stamp
        self._ids = frozenset(one.principal.id for one in self._known.values())
        removed = frozenset(one.principal.id for hash, one in before.items() if self._known.get(hash) != one)
        if removed and self.on_removed is not None:
            self.on_removed(removed)


def _verified(row: TokenRow) -> Verified:
    scopes = None if row.all else frozenset(row.scopes)
    principal = Principal(row.id, scopes, frozenset(row.groups), client_id=row.id, issuer=ISSUER)
    return Verified(principal, row.ends, keep=False)
