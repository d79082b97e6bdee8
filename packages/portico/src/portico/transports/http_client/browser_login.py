"""Login in the user's browser, with a local listener for the redirect at its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import webbrowser
from collections.abc import Callable
from urllib.parse import urlsplit

from portico.auth.errors import AuthorizationError, InvalidRedirect, quote_untrusted
from portico.auth.flow import DeviceCodeRequest
from portico.transports.http_client.pool import HttpConnectionPool, HttpUrl

# Time for the user to log in.
LOGIN_TIMEOUT_SECONDS = 300.0
MAX_REQUEST_BYTES = 16 * 1024
READ_TIMEOUT_SECONDS = 10.0

_PAGE_TEMPLATE = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Portico</title>
<style>body{{font:18px/1.5 system-ui,sans-serif;max-width:32em;margin:20vh auto;padding:0 1em}}</style>
<h1>{title}</h1><p>{text}</p></html>"""
_SUCCESS_PAGE = _PAGE_TEMPLATE.format(
    title="Login complete",
    text="You can close this window and return to the application.",
)
_DENIED_PAGE = _PAGE_TEMPLATE.format(
    title="Access denied", text="You can close this window. The application has been notified."
)
_NOT_FOUND_PAGE = _PAGE_TEMPLATE.format(title="Not found", text="This address only accepts the redirect after a login.")


def print_login_url(url: str) -> None:
    """Print the login URL to standard error: standard output may carry the protocol or a pipe."""
    print(f"To log in, open this page:\n\n  {url}\n", file=sys.stderr, flush=True)


def print_device_code(request: DeviceCodeRequest) -> None:
    """Print the user code of a device login, and the page to enter it on, to standard error."""
    print(
        f"To log in, open this page on any device:\n\n  {request.verification_uri}\n\n"
        f"and enter the code:\n\n  {request.user_code}\n\n"
        f"The code is valid for {request.expires_in / 60:.0f} minutes.",
        file=sys.stderr,
        flush=True,
    )


def has_browser() -> bool:
    """Return whether a login page can be opened on this machine for the user to see."""
    if os.environ.get("BROWSER"):
        return True
    if sys.platform in ("win32", "darwin"):
        return "SSH_CONNECTION" not in os.environ
    # Text browsers are registered without a display too, but cannot show most login pages.
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


class BrowserLogin:
    """Opens the user's browser. The URL is also printed, in case there is no browser on this machine."""

    def __init__(
        self, announce: Callable[[str], None] = print_login_url, *, timeout: float = LOGIN_TIMEOUT_SECONDS
    ) -> None:
        self._announce = announce
        self._timeout = timeout

    async def __call__(self, url: str, redirect_uri: str) -> str:
        callback = _RedirectListener(redirect_uri)
        async with callback:
            self._announce(url)
            # In a thread, because some browsers block until they are closed.
            with contextlib.suppress(webbrowser.Error, OSError):
                await asyncio.to_thread(webbrowser.open, url)
            try:
                async with asyncio.timeout(self._timeout):
                    return await callback.redirect_future
            except TimeoutError:
                raise AuthorizationError(
                    f"The login was not completed within {self._timeout:g} s. Start again."
                ) from None


class _RedirectListener:
    """Loopback listener that accepts one redirect."""

    def __init__(self, redirect_uri: str) -> None:
        parts = urlsplit(redirect_uri)
        self._uri = redirect_uri
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._path = parts.path or "/"
        self._server: asyncio.Server | None = None
        self.redirect_future: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> None:
        # `localhost` may resolve to ::1 first. RFC 8252, section 8.3, recommends the address over the name.
        host = "127.0.0.1" if self._host == "localhost" else self._host
        try:
            self._server = await asyncio.start_server(self._serve, host, self._port, limit=MAX_REQUEST_BYTES)
        except OSError as failure:
            raise AuthorizationError(
                f"cannot listen on the redirect URI {quote_untrusted(self._uri)}: "
                f"{failure.strerror or failure}. Close the program that uses the port, or configure another "
                "redirect URI."
            ) from None

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        if not self.redirect_future.done():
            self.redirect_future.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(READ_TIMEOUT_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                status, page = self._handle_request_line(head.partition(b"\r\n")[0].decode("latin-1"))
                body = page.encode()
                writer.write(
                    f"HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
                    "Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\n"
                    "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'\r\n"
                    "Connection: close\r\n\r\n".encode()
                    + body
                )
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            pass  # another or an impatient browser: the redirect may still arrive
        finally:
            writer.close()

    def _handle_request_line(self, line: str) -> tuple[str, str]:
        method, _, rest = line.partition(" ")
        target = rest.rpartition(" ")[0]
        path, _, query = target.partition("?")
        # Browsers also request an icon, and any local program may connect.
        if method != "GET" or path != self._path or ("code=" not in query and "error=" not in query):
            return "404 Not Found", _NOT_FOUND_PAGE
        if not self.redirect_future.done():
            self.redirect_future.set_result(f"{self._uri}?{query}")
        return "200 OK", _DENIED_PAGE if "error=" in query and "code=" not in query else _SUCCESS_PAGE


async def headless_login(url: str, redirect_uri: str) -> str:
    """Follow the redirect of an authorization server that shows no page. For tests and automated logins."""
    parsed = HttpUrl(url)
    pool = HttpConnectionPool()
    try:
        answer = await pool.send("GET", parsed, ())
        location = parsed.join(answer.headers.get("location", ""))
        pool.release(parsed, answer)
    finally:
        await pool.close()
    if answer.status not in (301, 302, 303, 307, 308) or not location.startswith(redirect_uri):
        raise InvalidRedirect(f"{quote_untrusted(url)} requires a user: it does not redirect by itself.")
    return location
