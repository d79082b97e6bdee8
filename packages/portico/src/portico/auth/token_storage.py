"""Persistent storage for client registrations and tokens, keyed by issuer.

A backend stores bytes under keys, so a new one needs only two methods. A key consists of the kind of record, the issuer
and the resource; nothing can be read without naming its issuer.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import Struct

from portico.auth.client_registration import ClientRegistration
from portico.auth.errors import credentials_mismatch
from portico.auth.tokens import Token
from portico.protocol.errors import UsageError

if sys.platform != "win32":
    import fcntl

StorageKey = tuple[str, ...]
S = TypeVar("S", bound=Struct)


class StorageBackend(Protocol):
    """Storage backend. The values are JSON and contain secrets."""

    def read(self, key: StorageKey) -> bytes | None: ...

    def write(self, key: StorageKey, value: bytes | None) -> None:
        """Store a value; None deletes it."""


class TokenStorage:
    """Client registrations and tokens of one user."""

    def __init__(self, store: StorageBackend | None = None) -> None:
        self._store = MemoryStorage() if store is None else store

    def registration(self, issuer: str) -> ClientRegistration | None:
        """Return the stored client registration of an issuer, or None."""
        result = self._read(("registration", issuer), ClientRegistration)
        return result if result is not None and result.issuer == issuer else None

    def store_registration(self, issuer: str, registration: ClientRegistration | None) -> None:
        """Store the client registration of an issuer; None deletes it."""
        self._write(("registration", issuer), registration)

    def token(self, issuer: str, resource: str) -> Token | None:
        """Return the stored token of an issuer for a resource, or None."""
        result = self._read(("token", issuer, resource), Token)
        return result if result is not None and (result.issuer, result.resource) == (issuer, resource) else None

    def store_token(self, server: str, token: Token) -> None:
        """Store a token, and record that this server URL was last used with it."""
        self._write(("token", token.issuer, token.resource), token)
        self._write(("server", server), _LastUsed(token.issuer, token.resource))

    def delete_token(self, token: Token) -> None:
        """Delete a stored token."""
        self._write(("token", token.issuer, token.resource), None)

    def last_token(self, server: str) -> Token | None:
        """Return the token that a server was last used with, or None."""
        place = self._read(("server", server), _LastUsed)
        return None if place is None else self.token(place.issuer, place.resource)

    def bind_issuer(self, server: str, client: str, issuer: str) -> None:
        """Bind configured credentials to the issuer of their first use; later issuers raise credentials_mismatch."""
        key = ("client", server, client)
        bound = self._read(key, _LastUsed)
        if bound is None:
            self._write(key, _LastUsed(issuer))
        elif bound.issuer != issuer:
            raise credentials_mismatch(client or "that was configured", bound.issuer, issuer)

    def _read(self, key: StorageKey, kind: type[S]) -> S | None:
        data = self._store.read(key)
        if data is None:
            return None
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.DecodeError:
            return None  # written by another version or edited manually: treated as missing

    def _write(self, key: StorageKey, value: Struct | None) -> None:
        self._store.write(key, None if value is None else msgspec.json.encode(value))


class _LastUsed(Struct, frozen=True):
    issuer: str
    resource: str = ""


class MemoryStorage:
    """In-memory storage for the lifetime of the process."""

    def __init__(self) -> None:
        self._values: dict[StorageKey, bytes] = {}

    def read(self, key: StorageKey) -> bytes | None:
        return self._values.get(key)

    def write(self, key: StorageKey, value: bytes | None) -> None:
        if value is None:
            self._values.pop(key, None)
        else:
            self._values[key] = value


class FileStorage:
    """JSON file with mode 0600.

    Every change writes a new file with that mode and renames it over the old one, so the file is never readable by
    others and never half written.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    def read(self, key: StorageKey) -> bytes | None:
        result: Any = self._load()
        for step in key:
            result = result.get(step) if isinstance(result, dict) else None
        return None if result is None else msgspec.json.encode(result)

    def write(self, key: StorageKey, value: bytes | None) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._hold_lock():
            data = self._load()
            node = data
            # A value under a shorter key, from another version or an edit, is replaced by a table.
            for step in key[:-1]:
                if not isinstance(node.get(step), dict):
                    node[step] = {}
                node = node[step]
            if value is None:
                node.pop(key[-1], None)
            else:
                node[key[-1]] = msgspec.json.decode(value)
            self._save(data)

    def _load(self) -> dict[str, Any]:
        try:
            result = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except ValueError:
            raise UsageError(f"{self._path} is not valid JSON; move it away to start again") from None
        return result if isinstance(result, dict) else {}

    def _save(self, data: dict[str, Any]) -> None:
        # mkstemp creates the file with mode 0600 regardless of the umask.
        descriptor, name = tempfile.mkstemp(prefix=f".{self._path.name}.", dir=self._path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(data)))
                file.flush()
                # Without fsync a power failure could leave an empty file behind the new name, and the user logged
                # out.
                os.fsync(file.fileno())
            os.replace(name, self._path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise

    @contextlib.contextmanager
    def _hold_lock(self) -> Iterator[None]:
        """Hold a lock file, so that concurrent writers do not lose each other's changes."""
        if sys.platform == "win32":  # no flock: the last writer wins
            yield
            return
        # A separate file: the data file is replaced by every write, and a lock on the old inode protects nothing.
        lock = os.open(self._path.with_name(f"{self._path.name}.lock"), os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


class KeyringStorage:
    """System keyring, through the package `keyring`. It may prompt the user and block."""

    def __init__(self, service: str = "portico") -> None:
        try:
            self._keyring: Any = importlib.import_module("keyring")
        except ImportError:
            raise UsageError("the system keyring needs a package: pip install keyring") from None
        self._service = service

    def read(self, key: StorageKey) -> bytes | None:
        result = self._keyring.get_password(self._service, json.dumps(key))
        return None if result is None else str(result).encode()

    def write(self, key: StorageKey, value: bytes | None) -> None:
        name = json.dumps(key)
        if value is not None:
            self._keyring.set_password(self._service, name, value.decode())
        elif self._keyring.get_password(self._service, name) is not None:
            self._keyring.delete_password(self._service, name)
