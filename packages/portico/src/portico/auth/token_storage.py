"""What is remembered between one run and the next: client ids and tokens, each under the issuer that gave it.

A store keeps bytes under keys and knows nothing else, so that writing another one is two methods. The keys begin with
what is kept, then the issuer, then the resource; nothing can be found without saying whose it is.
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

from portico.auth.client_registration import Registration
from portico.auth.errors import CredentialsMismatch
from portico.auth.tokens import Token
from portico.protocol.errors import UsageError

if sys.platform != "win32":
    import fcntl

Key = tuple[str, ...]
S = TypeVar("S", bound=Struct)


class Store(Protocol):
    """Where things are kept. What is written is JSON, and secret."""

    def read(self, key: Key) -> bytes | None: ...

    def write(self, key: Key, value: bytes | None) -> None:
        """Keep a value; None forgets it."""


class Credentials:
    """The client ids and tokens of one user."""

    def __init__(self, store: Store | None = None) -> None:
        self._store = Memory() if store is None else store

    def registration(self, issuer: str) -> Registration | None:
        found = self._read(("registration", issuer), Registration)
        return found if found is not None and found.issuer == issuer else None

    def keep_registration(self, issuer: str, registration: Registration | None) -> None:
        self._write(("registration", issuer), registration)

    def token(self, issuer: str, resource: str) -> Token | None:
        found = self._read(("token", issuer, resource), Token)
        return found if found is not None and (found.issuer, found.resource) == (issuer, resource) else None

    def keep_token(self, server: str, token: Token) -> None:
        """Keep a token, and that this server, by exactly this URL, was last used with it."""
        self._write(("token", token.issuer, token.resource), token)
        self._write(("server", server), _LastUsed(token.issuer, token.resource))

    def forget_token(self, token: Token) -> None:
        self._write(("token", token.issuer, token.resource), None)

    def last_token(self, server: str) -> Token | None:
        """The token that a server was last used with."""
        place = self._read(("server", server), _LastUsed)
        return None if place is None else self.token(place.issuer, place.resource)

    def bind(self, server: str, client: str, issuer: str) -> None:
        """Tie what a user configured to the issuer it is first used with; any other is refused from then on."""
        key = ("client", server, client)
        bound = self._read(key, _LastUsed)
        if bound is None:
            self._write(key, _LastUsed(issuer))
        elif bound.issuer != issuer:
            raise CredentialsMismatch(client or "that was configured", bound.issuer, issuer)

    def _read(self, key: Key, kind: type[S]) -> S | None:
        kept = self._store.read(key)
        if kept is None:
            return None
        try:
            return msgspec.json.decode(kept, type=kind)
        except msgspec.DecodeError:
            return None  # written by another version, or by hand: as good as gone

    def _write(self, key: Key, value: Struct | None) -> None:
        self._store.write(key, None if value is None else msgspec.json.encode(value))


class _LastUsed(Struct, frozen=True):
    issuer: str
    resource: str = ""


class Memory:
    """For as long as the process runs."""

    def __init__(self) -> None:
        self._kept: dict[Key, bytes] = {}

    def read(self, key: Key) -> bytes | None:
        return self._kept.get(key)

    def write(self, key: Key, value: bytes | None) -> None:
        if value is None:
            self._kept.pop(key, None)
        else:
            self._kept[key] = value


class File:
    """A JSON file that only its owner can read.

    It is never there with more rights than that, not for a moment, and never half written: each change is a new file,
    made with its mode, that takes the place of the old one.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    def read(self, key: Key) -> bytes | None:
        found: Any = self._load()
        for step in key:
            found = found.get(step) if isinstance(found, dict) else None
        return None if found is None else msgspec.json.encode(found)

    def write(self, key: Key, value: bytes | None) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._locked():
            kept = self._load()
            inside = kept
            for step in key[:-1]:
                if not isinstance(inside.get(step), dict):
                    inside[step] = {}
                inside = inside[step]
            if value is None:
                inside.pop(key[-1], None)
            else:
                inside[key[-1]] = msgspec.json.decode(value)
            self._save(kept)

    def _load(self) -> dict[str, Any]:
        try:
            found = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except ValueError:
            raise UsageError(f"{self._path} is not JSON; move it away to start afresh") from None
        return found if isinstance(found, dict) else {}

    def _save(self, kept: dict[str, Any]) -> None:
        # mkstemp makes its file with mode 0600, whatever the umask says.
        descriptor, name = tempfile.mkstemp(prefix=f".{self._path.name}.", dir=self._path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(kept)))
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, self._path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Alone among our own processes: what two of them write at once is all kept."""
        if sys.platform == "win32":  # where the last writer wins
            yield
            return
        lock = os.open(self._path.with_name(f"{self._path.name}.lock"), os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


class Keyring:
    """The system's own keeper of secrets, by way of the package `keyring`. It may ask the user, and so take long."""

    def __init__(self, service: str = "portico") -> None:
        try:
            self._keyring: Any = importlib.import_module("keyring")
        except ImportError:
            raise UsageError("the system's keyring needs a package: pip install keyring") from None
        self._service = service

    def read(self, key: Key) -> bytes | None:
        found = self._keyring.get_password(self._service, json.dumps(key))
        return None if found is None else str(found).encode()

    def write(self, key: Key, value: bytes | None) -> None:
        name = json.dumps(key)
        if value is not None:
            self._keyring.set_password(self._service, name, value.decode())
        elif self._keyring.get_password(self._service, name) is not None:
            self._keyring.delete_password(self._service, name)
