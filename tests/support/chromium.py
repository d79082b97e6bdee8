"""Run Chromium (Debian's package, driven by Playwright) for the tests of the console."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import sync_playwright

from support import debian

NAMES = ("chromium", "chromium-browser", "google-chrome")
# Tests run as root in containers, where Chromium's own sandbox does not work.
PLAIN_FLAGS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking", "--no-first-run"]
# Enable Connection-Allowlist also in versions that enforce it only for an origin trial.
FLAGS = [*PLAIN_FLAGS, "--enable-features=ConnectionAllowlists,OverrideConnectionAllowlistOriginTrial"]


def executable() -> str:
    """Return the path of Chromium. In CI it is installed first. Raises `debian.NotInstalled`."""
    match = _find_chromium()
    if match is None:
        debian.install("chromium")
        match = _find_chromium()
    if match is None:
        raise debian.NotInstalled("chromium was installed, but none of its executables is on the PATH")
    return match


@contextmanager
def running(path: str, flags: list[str] = FLAGS) -> Iterator[Any]:
    """Run a browser."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=flags)
        try:
            yield browser
        finally:
            browser.close()


def _find_chromium() -> str | None:
    return next((path for path in map(shutil.which, NAMES) if path), None)
