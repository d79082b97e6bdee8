"""Manually issued tokens for programs without a login; the file stores only their hashes.

    [[token]]
    id = "ci"
    hash = "sha256:…"
    scopes = ["notes:read"]
    expires = 2027-01-31

The file is reloaded when it changes: removing a row invalidates the token and closes its streams within a second. A
token has 256 random bits, so a plain hash protects it and lookups leak nothing.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import time
from collections.abc import Callable
from datetime import UTC, date, datetime, time as time_of_day
from pathlib import Path
from typing import Any

from msgspec import Struct

from portico.auth.principal import Principal
from portico.auth.verifiers.base import InvalidToken, RequestCredentials, VerifiedToken
from portico.protocol.errors import UsageError
from portico.settings_file import convert, locate_errors, read_tables

log = logging.getLogger("portico.auth")

# The prefix lets secret scanners recognize a token.
PREFIX = "ptk_"
ISSUER = "tokens"
RELOAD_INTERVAL_SECONDS = 1.0
_HASH = re.compile(r"sha256:[0-9a-f]{64}")


class TokenEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """One token by its hash. Without scopes it has none; `all = true` removes every restriction."""

    # Id of the principal that the token identifies.
    id: str
    # Hash of the token, `sha256:` and 64 hexadecimal digits, as `portico tokens add` writes it.
    hash: str
    # Scopes of the token.
    scopes: tuple[str, ...] = ()
    # Groups of the principal.
    groups: tuple[str, ...] = ()
    # Whether the token has no restriction by scope.
    all: bool = False
    # TOML date or date-time after which the token is invalid; a date includes the whole day. None: never.
    expires: Any = None

    @property
    def expiry_timestamp(self) -> float | None:
        """Return the expiry as Unix time, or None."""
        if self.expires is None:
            return None
        if isinstance(self.expires, datetime):
            moment: datetime = self.expires if self.expires.tzinfo else self.expires.replace(tzinfo=UTC)
        else:
            # A date includes the whole day.
            moment = datetime.combine(self.expires, time_of_day.max, UTC)
        return moment.timestamp()


class TokenFile(Struct, frozen=True, forbid_unknown_fields=True):
    """Contents of a token file."""

    # Tokens by their hash.
    token: tuple[TokenEntry, ...] = ()


def generate_token() -> str:
    """Return a new random token."""
    return PREFIX + secrets.token_urlsafe(32)


def hash_token(token: str) -> str:
    """Return the hash of a token in the format of the file."""
    return f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"


def load_token_file(path: str | Path) -> list[TokenEntry]:
    """Load the rows of a file. Raises UsageError if it is invalid."""
    tables = read_tables(path)
    with locate_errors(path):
        rows = convert(tables, TokenFile).token
    for row in rows:
        if row.expires is not None and not isinstance(row.expires, date):
            raise UsageError(f"{path}: expires of the token {row.id[:100]!r} must be a date, got {row.expires!r}")
        if not row.id or not _HASH.fullmatch(row.hash):
            raise UsageError(f"{path}: the token {row.id[:100]!r} needs an id and a hash such as sha256:…")
    return list(rows)


class TokenFileVerifier:
    """Verifier for the bearer tokens of a file."""

    # The result does not depend on the client's address.
    depends_on_address = False

    def __init__(self, path: str | Path, clock: Callable[[], float] = time.time) -> None:
        self._path = Path(path)
        self._clock = clock
        self._last_check = float("-inf")
        self._stamp: Any = None
        self._tokens: dict[str, VerifiedToken] = {}
        # Called with the ids whose tokens were removed or changed.
        self.on_removed: Callable[[frozenset[str]], None] | None = None
        self._read()

    def try_verify(self, credentials: RequestCredentials) -> VerifiedToken | None:
        if credentials.scheme != "bearer" or not credentials.token.startswith(PREFIX):
            return None
        self.reload_if_changed()
        result = self._tokens.get(hash_token(credentials.token))
        if result is None or (result.expires_at is not None and self._clock() >= result.expires_at):
            raise InvalidToken("the token is not in the token file or has expired")
        return result

    async def __call__(self, credentials: RequestCredentials) -> VerifiedToken | None:
        return self.try_verify(credentials)

    def is_revoked(self, principal: Any) -> bool:
        """Return whether the principal's token is no longer in the file."""
        if getattr(principal, "issuer", None) != ISSUER:
            return False
        self.reload_if_changed()
        return principal.id not in self._ids

    def reload_if_changed(self) -> None:
        """Reload the file if it has changed. An invalid file leaves the tokens unchanged."""
        now = time.monotonic()
        if now - self._last_check < RELOAD_INTERVAL_SECONDS:
            return
        self._last_check = now
        if self._stamp != self._file_stamp():
            try:
                self._read()
            except UsageError as mistake:
                log.error("%s; the previous tokens stay in use", mistake)

    def _file_stamp(self) -> Any:
        try:
            result = os.stat(self._path)
        except OSError:
            return None
        # The inode too: an editor that replaces the file may leave size and a coarse time unchanged.
        return result.st_mtime_ns, result.st_size, result.st_ino

    def _read(self) -> None:
        # Taken before reading: a change during the read gives another stamp and one more reload, never a lost one.
        stamp = self._file_stamp()
        before, self._tokens = self._tokens, {row.hash: _to_verified_token(row) for row in load_token_file(self._path)}
        self._stamp = stamp
        self._ids = frozenset(value.principal.id for value in self._tokens.values())
        removed = frozenset(value.principal.id for hash, value in before.items() if self._tokens.get(hash) != value)
        if removed and self.on_removed is not None:
            self.on_removed(removed)


def _to_verified_token(row: TokenEntry) -> VerifiedToken:
    scopes = None if row.all else frozenset(row.scopes)
    principal = Principal(row.id, scopes, frozenset(row.groups), client_id=row.id, issuer=ISSUER)
    return VerifiedToken(principal, row.expiry_timestamp, cacheable=False)
