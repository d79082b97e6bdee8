"""Login to a console that requires a scope: a real browser and a real provider."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from support import logins

TIMEOUT_SECONDS = 60.0
FILE = """
from portico import Server

server = Server("desk")

@server.tool
async def hello() -> str:
    return "hello"
"""
CONFIG = """
[auth]
public_url = "{url}"

[auth.proxy]
provider = "oidc"
issuer = "{issuer}"
client_id = "portico"
client_secret = "known to both"
scopes = {{ "admin" = "look at everything" }}
"""
CLIENT = {
    "client_id": "portico",
    "client_secret": "known to both",
    "application_type": "native",
    "token_endpoint_auth_method": "client_secret_basic",
    "redirect_uris": ["http://127.0.0.1/callback"],
}


class Desk:
    """A process that serves the file to those who log in at the provider."""

    def __init__(self, folder: Path, issuer: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        (folder / "desk.py").write_text(FILE)
        (folder / "access.toml").write_text(CONFIG.format(url=self.url, issuer=issuer))
        self._folder = folder
        self._environment = {**os.environ, "PORTICO_DATA": str(folder / "data"), "PORTICO_LOG_LEVEL": "error"}
        words = ["desk.py", "--config", "access.toml", "--port", str(self.port), "--console", "scope:admin"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "portico", "serve", *words],
            cwd=folder, env=self._environment, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        until = time.monotonic() + TIMEOUT_SECONDS
        while not self._answers():
            assert self._process.poll() is None and time.monotonic() < until, "the desk does not start"
            time.sleep(0.05)

    def _answers(self) -> bool:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/livez")
            return connection.getresponse().status < 500
        except OSError:
            return False
        finally:
            connection.close()

    def portico(self, *words: str) -> None:
        command = [sys.executable, "-m", "portico", *words]
        done = subprocess.run(
            command, cwd=self._folder, env=self._environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(TIMEOUT_SECONDS)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory, program: str) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("desk")
    accounts = {"anna": {"preferred_username": "anna", "name": "Anna A."}}
    with logins.provider(folder, clients=[CLIENT], accounts=accounts, scopes=["desk"]) as issuer:
        running = Desk(folder, issuer)
        try:
            yield running
        finally:
            running.stop()


def test_login_response_with_an_unknown_state_is_rejected(desk: Any, browser: Any) -> None:
    page = browser.new_context().new_page()
    page.goto(f"{desk.url}/?state=made-up&code=made-up&iss={desk.url}")
    expect(page.get_by_text("Login failed: state or issuer mismatch.")).to_be_visible()
    expect(page.get_by_role("button", name="Log in")).to_be_visible()
    assert page.url == f"{desk.url}/"
    page.context.close()


def test_user_logs_in_and_is_signed_out_after_revocation(desk: Any, browser: Any) -> None:
    page = browser.new_context().new_page()
    page.goto(desk.url)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", name=re.compile("Allow “Portico console” to access"))).to_be_visible()
    expect(page.get_by_text("look at everything")).to_be_visible()
    page.locator("button.yes").click()
    page.locator("input[name=login]").fill("anna")
    page.locator("input[name=password]").fill("whatever")
    page.locator("button[type=submit]").click()
    page.locator("button[type=submit]").click()  # the provider's own consent
    expect(page.get_by_role("option", name="hello")).to_be_visible()
    assert page.url.startswith(f"{desk.url}/") and "code" not in page.url
    about = page.evaluate("import('/console/mcp.js').then(({ call }) => call('about'))")
    assert about["principal"]["id"] == "anna" and about["principal"]["scopes"] == ["admin"]
    # The cookie's token has ended: another one is had without a person.
    page.context.clear_cookies()
    about = page.evaluate("import('/console/mcp.js').then(({ call }) => call('about'))")
    assert about["principal"]["id"] == "anna"
    desk.portico("tokens", "revoke-user", "anna")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible(timeout=30_000)
    page.context.close()
