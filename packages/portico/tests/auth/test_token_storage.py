"""Stored tokens and registrations (2026-07-28, Authorization Server Binding; Token Theft)."""

from __future__ import annotations

import json
import os
import stat
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from portico.auth.client_registration import ClientRegistration
from portico.auth.errors import RegistrationError
from portico.auth.token_storage import FileStorage, KeyringStorage, MemoryStorage, TokenStorage
from portico.auth.tokens import Token
from portico.protocol.errors import UsageError

ONE, OTHER, SERVER = "https://one.example", "https://other.example", "https://mcp.example/mcp"


class Ring(ModuleType):
    """A keyring that is a dict."""

    def __init__(self) -> None:
        super().__init__("keyring")
        self.kept: dict[tuple[str, str], str] = {}

    def get_password(self, service: str, name: str) -> str | None:
        return self.kept.get((service, name))

    def set_password(self, service: str, name: str, value: str) -> None:
        self.kept[service, name] = value

    def delete_password(self, service: str, name: str) -> None:
        del self.kept[service, name]


@pytest.fixture(params=["memory", "file", "keyring"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "memory":
        return MemoryStorage()
    if request.param == "file":
        return FileStorage(tmp_path / "deep" / "credentials.json")
    monkeypatch.setitem(sys.modules, "keyring", Ring())
    return KeyringStorage()


def token(issuer: str = ONE, resource: str = SERVER, **more: Any) -> Token:
    return Token(access_token=f"token of {issuer}", issuer=issuer, resource=resource, **more)


def test_token_is_found_under_its_issuer_and_resource_alone(store: Any) -> None:
    credentials = TokenStorage(store)
    kept = token(
        expires_at=12.5, refresh_token="r", scope="a b", requested_scopes=("a", "b", "c"), type="DPoP", dpop_key="{}"
    )
    credentials.store_token(SERVER, kept)
    assert credentials.token(ONE, SERVER) == kept
    assert credentials.token(OTHER, SERVER) is None
    assert credentials.token(ONE, "https://mcp.example") is None
    assert credentials.token(ONE + "/", SERVER) is None


def test_server_remembers_the_token_it_was_last_used_with(store: Any) -> None:
    credentials = TokenStorage(store)
    credentials.store_token(SERVER, token(ONE))
    credentials.store_token(SERVER, token(OTHER))
    assert credentials.last_token(SERVER) == token(OTHER)
    assert credentials.last_token("https://mcp.example/other") is None
    credentials.delete_token(token(OTHER))
    credentials.delete_token(token(OTHER))
    assert credentials.last_token(SERVER) is None
    assert credentials.token(ONE, SERVER) == token(ONE)


def test_registration_is_its_issuers(store: Any) -> None:
    credentials = TokenStorage(store)
    kept = ClientRegistration(client_id="a", client_secret="s", redirect_uris=("http://localhost/x",), issuer=ONE)
    credentials.store_registration(ONE, kept)
    assert credentials.registration(ONE) == kept
    assert credentials.registration(OTHER) is None
    credentials.store_registration(ONE, None)
    assert credentials.registration(ONE) is None


def test_client_is_bound_once(store: Any) -> None:
    credentials = TokenStorage(store)
    credentials.bind_issuer(SERVER, "me", ONE)
    credentials.bind_issuer(SERVER, "me", ONE)
    credentials.bind_issuer("https://mcp.example/other", "me", OTHER)
    with pytest.raises(RegistrationError, match="is registered with"):
        TokenStorage(store).bind_issuer(SERVER, "me", OTHER)


def test_unreadable_stored_token_is_treated_as_missing(store: Any) -> None:
    store.write(("token", ONE, SERVER), b'{"access_token": 7}')
    assert TokenStorage(store).token(ONE, SERVER) is None


def test_entries_stored_under_another_issuer_are_ignored(store: Any) -> None:
    credentials = TokenStorage(store)
    store.write(("token", OTHER, SERVER), b'{"access_token": "x", "issuer": "https://one.example", "resource": "y"}')
    store.write(("registration", OTHER), b'{"client_id": "x", "issuer": "https://one.example"}')
    assert credentials.token(OTHER, SERVER) is None
    assert credentials.registration(OTHER) is None


@pytest.mark.requirement("auth.secure-storage")
@pytest.mark.skipif(sys.platform == "win32", reason="modes are not kept there")
def test_file_is_its_owners_from_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deep" / "credentials.json"
    seen: list[int] = []
    real = os.replace

    def replace(source: str, target: Any) -> None:
        seen.append(stat.S_IMODE(os.stat(source).st_mode))
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    before = os.umask(0)
    try:
        TokenStorage(FileStorage(path)).store_token(SERVER, token())
        path.chmod(0o644)
        TokenStorage(FileStorage(path)).store_token(SERVER, token())
    finally:
        os.umask(before)
    assert set(seen) == {0o600}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(item.stat().st_mode) == 0o600 for item in path.parent.iterdir())


def test_file_is_keyed_by_issuer_and_resource(tmp_path: Path) -> None:
    path = tmp_path / "credentials.json"
    TokenStorage(FileStorage(path)).store_token(SERVER, token())
    assert json.loads(path.read_text())["token"][ONE][SERVER]["access_token"] == f"token of {ONE}"


def test_failed_write_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "credentials.json"
    credentials = TokenStorage(FileStorage(path))
    credentials.store_token(SERVER, token())

    def fail(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        credentials.store_token(SERVER, token(OTHER))
    monkeypatch.undo()
    assert credentials.last_token(SERVER) == token()
    assert {item.name for item in tmp_path.iterdir()} <= {"credentials.json", "credentials.json.lock"}


def test_concurrent_writes_are_all_stored(tmp_path: Path) -> None:
    path = tmp_path / "credentials.json"
    resources = [f"https://mcp.example/{number}" for number in range(16)]

    def keep(resource: str) -> None:
        TokenStorage(FileStorage(path)).store_token(resource, token(resource=resource))

    threads = [threading.Thread(target=keep, args=(resource,)) for resource in resources]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert all(TokenStorage(FileStorage(path)).last_token(resource) for resource in resources)


def test_file_that_is_not_json_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "credentials.json"
    path.write_text("precious notes")
    with pytest.raises(UsageError, match="not valid JSON"):
        TokenStorage(FileStorage(path)).store_token(SERVER, token())
    assert path.read_text() == "precious notes"


def test_without_the_package_there_is_no_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(UsageError, match="pip install keyring"):
        KeyringStorage()


def test_token_does_not_show_itself() -> None:
    result = repr(token(refresh_token="r3fresh", dpop_key="k3y"))
    assert "token of" not in result
    assert "r3fresh" not in result
    assert "k3y" not in result
