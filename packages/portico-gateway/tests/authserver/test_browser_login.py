"""A login in Chromium, which enforces content security policies, cookies and redirects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page

from support import chromium, debian
from support.access_control import REDIRECT_URI

Stand = Callable[..., Any]


@pytest.fixture(scope="module")
def program() -> str:
    try:
        return chromium.executable()
    except debian.NotInstalled as why:
        debian.without(why)


def _log_in(program: str, login: Any, scheme: str) -> tuple[list[str], int]:
    """Consent and log in. Return the errors that our pages caused, and by how much the first is too wide."""
    errors: list[str] = []
    # The port of the redirect URI is one that browsers block.
    with chromium.running(program, [*chromium.FLAGS, "--explicitly-allowed-ports=9"]) as browser:
        context = browser.new_context(viewport={"width": 360, "height": 740}, color_scheme=scheme)

        def callback(route: Any) -> None:
            login.answer = route.request.url
            route.fulfill(body="back in the client", content_type="text/plain")

        context.route(f"{REDIRECT_URI}*", callback)
        page: Page = context.new_page()
        # The pages of the provider load fonts from other hosts.
        ours = login.url.partition("/authorize")[0]
        page.on(
            "console",
            lambda message: (
                message.type == "error" and message.location["url"].startswith(ours) and errors.append(message.text)
            ),
        )
        page.goto(login.url)
        overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        page.get_by_role("button", name="Allow").click()
        page.locator("input[name=login]").fill("anna")
        page.locator("input[name=password]").fill("anything")
        page.locator("button[type=submit]").first.click()
        # The provider asks for its own consent.
        page.locator("button[type=submit]").first.click()
        page.get_by_text("back in the client").wait_for(timeout=10_000)
    return errors, int(overflow)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_user_logs_in_with_a_browser(stand: Stand, program: str, scheme: str) -> None:
    async with stand() as face:
        client = await face.register()
        login = face.prepare(client["client_id"], scope="notes:write")
        assert await asyncio.to_thread(_log_in, program, login, scheme) == ([], 0)
        status, given = await login.redeem()
        assert (status, given["scope"]) == (200, "notes:write")
