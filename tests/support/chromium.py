"""Chromium, for the tests of the console: Debian's package, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import sync_playwright

from support import debian

NAMES = ("chromium", "chromium-browser", "google-chrome")
# Tests run as root in containers, where Chromium's own sandbox cannot be had.
PLAIN_FLAGS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking", "--no-first-run"]
# Connection-Allowlist, also in versions that enforce it only for the sites of a trial.
FLAGS = [*PLAIN_FLAGS, "--enable-features=ConnectionAllowlists,OverrideConnectionAllowlistOriginTrial"]


def executable() -> str:
    """Where it is; it is installed first where that may be done. Raises where it cannot be had."""
    found = _found()
    if found is None:
        debian.install("chromium")
        found = _found()
    if found is None:
        raise debian.NotInstalled("chromium was installed, and is not there")
    return found


@contextmanager
def running(path: str, flags: list[str] = FLAGS) -> Iterator[Any]:
    """A browser, until the end."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=flags)
        try:
            yield browser
        finally:
            browser.close()


def _found() -> str | None:
    return next((path for path in map(shutil.which, NAMES) if path), None)
