"""Fixtures of the console tests: one browser, one server of each kind, and checks of every page after each test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import quote, urlsplit

import pytest

from support import chromium, debian
from support.forks import ForkServer
from support.paths import PROGRAMS

TIMEOUT_SECONDS = 60.0
TIMEOUT_SECONDS = 15_000  # of the browser, in milliseconds
_TOKEN = re.compile(r"PORTICO_TOKEN=(?:\$\(cat (?P<file>[^)]+)\)|(?P<token>\S+))")
_LINK = re.compile(r"http://\S+/#token=\S+")
# What a log says instead of a link.
_COMMAND = re.compile(r"run `portico (console http://\S+)`")


# The rules of axe that are broken.
_LOOK = """async () => {
  const found = await axe.run(document, {resultTypes: ['violations'], runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'best-practice']});
  return found.violations.map(one => `${one.id}: ${one.help}: ${one.nodes.slice(0, 3).map(node => node.html.slice(0, 160)).join(' | ')}`);
}"""


class ServedConsole:
    """A process with a console. Its link is good once; whoever comes later has the cookie and the key."""

    def __init__(self, fork_server: ForkServer, command: list[str], folder: Path) -> None:
        environment = {**os.environ, "PORTICO_DATA": str(folder / "data"), "PORTICO_LOG_LEVEL": "error"}
        self.said: list[str] = []
        self.state: Any = None
        self._found = threading.Event()
        self.link = ""
        self.environment = environment
        self._fork_server = fork_server
        self.process = fork_server.start(*command, cwd=folder, env=environment)
        self._readers = [
            threading.Thread(target=self._read, args=(pipe,), daemon=True)
            for pipe in (self.process.stdout, self.process.stderr)
        ]
        for reader in self._readers:
            reader.start()
        if not self._found.wait(TIMEOUT_SECONDS) or not self.link:
            self.stop()
            pytest.fail("no console: " + "".join(self.said), pytrace=False)
        self.origin = "{0.scheme}://{0.netloc}".format(urlsplit(self.link))

    def _read(self, pipe: TextIO) -> None:
        for line in pipe:
            self.said.append(line)
            if match := _TOKEN.search(line):
                token = match["token"] or Path(match["file"]).read_text(encoding="utf-8").strip()
                self.environment["PORTICO_TOKEN"] = token
            if command := _COMMAND.search(line):
                line = self._fork_server.run(*command[1].split(), env=self.environment).stdout
            match = _LINK.search(line)
            if match and not self.link:
                self.link = match[0]
                self._found.set()
        if pipe is self.process.stderr:
            self._found.set()

    def fresh_link(self) -> str:
        """Create another link, for another browser."""
        return self.portico("console", self.origin).strip()

    def portico(self, *command: str) -> str:
        """Run another client of the same server on the command line."""
        done = self._fork_server.run(*command, env=self.environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def python(self, *command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command], env=self.environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(TIMEOUT_SECONDS)
        for reader in self._readers:
            reader.join(TIMEOUT_SECONDS)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            pipe.close()


class Visit:
    """A page, and all that went wrong on it."""

    def __init__(self, browser: Any, console: ServedConsole, **options: Any) -> None:
        self.console = console
        self.wrong: list[str] = []
        self.context = browser.new_context(
            storage_state=console.state, viewport=options.pop("viewport", {"width": 1280, "height": 800}), **options
        )
        self.context.set_default_timeout(TIMEOUT_SECONDS)
        self.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=console.origin)
        self.page = self.context.new_page()
        self.page.on(
            "console", lambda message: message.type in ("error", "warning") and self.wrong.append(message.text)
        )
        self.page.on("pageerror", lambda error: self.wrong.append(f"uncaught: {error}"))
        self.page.on("dialog", lambda dialog: (self.wrong.append(f"a dialog: {dialog.message}"), dialog.dismiss()))
        self.page.on("request", self._look)
        self.context.on("page", lambda page: self.wrong.append(f"another page: {page.url}"))

    def _look(self, request: Any) -> None:
        if not request.url.startswith((self.console.origin, "data:", "blob:")):
            self.wrong.append(f"a request to {request.url}")

    def enter(self) -> None:
        """Open the link, once per server."""
        if self.console.state is None:
            self.page.goto(self.console.link)
            self.page.locator("nav").wait_for(state="attached")
            assert "token" not in self.page.url
            self.console.state = self.context.storage_state()
        else:
            self.page.goto(self.console.origin)
            self.page.locator("nav").wait_for(state="attached")

    def go(self, *parts: str, target: str | None = None) -> None:
        """Open the address directly, as a bookmark does."""
        if target is None:
            # Whichever is open: the address of the first view says it.
            target = (self.page.locator("nav a").first.get_attribute("href") or "#/self/").split("/")[1]
        address = "#/" + "/".join(quote(part, safe="") for part in (target, *parts))
        self.page.evaluate("address => { location.hash = address }", address)

    def violations(self) -> list[str]:
        """Return the rules of axe that the current page violates."""
        if not self.page.evaluate("typeof axe !== 'undefined'"):
            self.page.evaluate(
                resources.files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
            )
        view = self.page.evaluate("location.hash")
        return [f"{view}: {item}" for item in self.page.evaluate(_LOOK)]

    def close(self) -> None:
        self.context.close()
        assert not self.wrong, self.wrong


@pytest.fixture(scope="session")
def program() -> str:
    """Locate Chromium; without it nothing is started."""
    try:
        return chromium.executable()
    except debian.NotInstalled as why:
        debian.without(why)


@pytest.fixture(scope="module")
def browser(program: str) -> Iterator[Any]:
    """Start one browser per file: Playwright's loop runs in this thread, which other files use for theirs."""
    with chromium.running(program) as item:
        yield item


@pytest.fixture(scope="session")
def serve(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., ServedConsole]]:
    """Start a console for a command line; equal command lines share one."""
    running: dict[tuple[str, ...], ServedConsole] = {}

    def start(*command: str) -> ServedConsole:
        if command not in running:
            running[command] = ServedConsole(fork_server, list(command), tmp_path_factory.mktemp("console"))
        return running[command]

    yield start
    for item in running.values():
        item.stop()


@pytest.fixture(scope="session")
def varied(program: str, serve: Callable[..., ServedConsole]) -> ServedConsole:
    return serve("serve", str(PROGRAMS / "varied_server.py"), "--transport", "http", "--port", "0")


@pytest.fixture(scope="session")
def services(program: str, serve: Callable[..., ServedConsole]) -> ServedConsole:
    return serve("serve", "--services", "memory,tasks,contracts", "--transport", "http", "--port", "0")


@pytest.fixture(scope="module")
def visit(browser: Any) -> Iterator[Callable[..., Visit]]:
    """Open a page of a console; equal requests share one, because opening takes longer than most tests."""
    known_names: dict[str, Visit] = {}

    def start(console: ServedConsole, **options: Any) -> Visit:
        wish = f"{console.origin} {sorted(options.items())}"
        if wish not in known_names:
            known_names[wish] = Visit(browser, console, **options)
            known_names[wish].enter()
        return known_names[wish]

    yield start
    for item in known_names.values():
        item.close()


@pytest.fixture
def tried(visit: Callable[..., Visit], varied: ServedConsole) -> Iterator[Visit]:
    """Yield the page of the varied server and check that no error occurred."""
    seen = visit(varied)
    yield seen
    assert not seen.wrong, seen.wrong
