"""Run a certified OpenID provider, npm's oidc-provider, with its development pages.

    with oidc.provider(tmp_path, clients=[…]) as issuer:
        browser = oidc.Browser(account="anna")
        url = browser.visit("https://…/authorize?…", until="http://127.0.0.1:9/callback")

`Browser` has cookies, follows redirects and fills in forms: the provider's login and consent pages, and pages with a
button. Raises `node.NotInstalled` where the provider is not available.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urljoin, urlsplit

from support import node
from support.paths import SUPPORT

HERE = SUPPORT / "npm" / "oidc"
SECONDS = 60.0
MOST_STEPS = 40


@contextmanager
def provider(folder: Path, **settings: Any) -> Iterator[str]:
    """Run a provider with these clients and accounts, and yield its issuer."""
    packages = node.install(HERE, "oidc")
    folder = Path(tempfile.mkdtemp(prefix="oidc-", dir=folder))
    (folder / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    # Node finds packages next to the module.
    script = packages.modules.parent / "provider.mjs"
    # Other processes may start one at the same time, so the file is written atomically.
    aside = script.with_name(f"provider-{os.getpid()}-{folder.name}.mjs")
    shutil.copy(HERE / "provider.mjs", aside)
    os.replace(aside, script)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [str(packages.node), str(script), str(folder / "settings.json")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env=node.environment(),
            start_new_session=True,
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"oidc-provider does not start: {(folder / 'log').read_text()[-2000:]}")
        yield str(json.loads(line)["issuer"])
    finally:
        process.kill()
        process.wait(SECONDS)
        if process.stdout is not None:
            process.stdout.close()


class PageResponse:
    """One response."""

    def __init__(self, url: str, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.url = url
        self.status = status
        self.headers = {name.lower(): value for name, value in headers}
        self.text = body.decode(errors="replace")

    @property
    def location(self) -> str | None:
        response = self.headers.get("location")
        refresh = re.search(r'http-equiv="refresh" content="0;url=([^"]*)"', self.text)
        return urljoin(self.url, response) if response else unescape(refresh[1]) if refresh else None


class Browser:
    """A browser with cookies by host."""

    def __init__(self, account: str = "anna", answer: str = "yes", accounts: dict[str, str] | None = None) -> None:
        self.account = account
        # Accounts with different names at some issuers.
        self.accounts = accounts or {}
        self.answer = answer
        self.cookies: dict[str, dict[str, str]] = {}
        self.seen: list[PageResponse] = []

    def request(
        self, method: str, url: str, form: dict[str, str] | None = None, headers: dict[str, str] | None = None
    ) -> PageResponse:
        parts = urlsplit(url)
        jar = self.cookies.setdefault(parts.netloc, {})
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.netloc, timeout=SECONDS)
        sent = {"Cookie": "; ".join(f"{name}={value}" for name, value in jar.items())} if jar else {}
        body = None
        if form is not None:
            body = urlencode(form)
            sent |= {
                "Content-Type": "application/x-www-form-urlencoded",
                "Origin": f"{parts.scheme}://{parts.netloc}",
                "Sec-Fetch-Site": "same-origin",
            }
        try:
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request(method, path, body, {**sent, **(headers or {})})
            answer = connection.getresponse()
            seen = PageResponse(url, answer.status, answer.getheaders(), answer.read())
            for value in answer.headers.get_all("Set-Cookie", []):
                for name, morsel in SimpleCookie(value).items():
                    jar[name] = morsel.value
        finally:
            connection.close()
        self.seen.append(seen)
        return seen

    def visit(self, url: str, until: str) -> str:
        """Follow redirects and forms until the address begins with `until`, and return that address."""
        seen = self.request("GET", url)
        for _ in range(MOST_STEPS):
            location = seen.location
            if location is not None:
                if location.startswith(until):
                    return location
                seen = self.request("GET", location)
                continue
            seen = self.submit(seen)
        raise AssertionError(f"the login goes in circles at {seen.url}")

    def submit(self, seen: PageResponse) -> PageResponse:
        """Fill in and submit the form of a page."""
        form = re.search(r"<form([^>]*)>(.*?)</form>", seen.text, re.DOTALL)
        if form is None:
            raise AssertionError(f"HTTP {seen.status} at {seen.url}, and no form: {seen.text[:2000]}")
        action = re.search(r'action="([^"]*)"', form[1])
        message: dict[str, str] = {}
        for tag in re.findall(r"<input[^>]*>", form[2]):
            name = re.search(r'name="([^"]*)"', tag)
            value = re.search(r'value="([^"]*)"', tag)
            if name is not None:
                message[name[1]] = unescape(value[1]) if value else ""
        if "login" in message:
            origin = "{0.scheme}://{0.netloc}".format(urlsplit(seen.url))
            message |= {"login": self.accounts.get(origin, self.account), "password": "anything"}
        if 'name="answer"' in form[2]:
            message["answer"] = self.answer
        return self.request("POST", urljoin(seen.url, unescape(action[1]) if action else ""), message)
