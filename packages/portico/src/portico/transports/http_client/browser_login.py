"""Showing the user a login page, and waiting on this machine for the redirect at its end."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import webbrowser
from collections.abc import Callable
from urllib.parse import urlsplit

from portico.auth.errors import AuthorizationFailed, RedirectRejected, quoted
from portico.transports.http_client.pool import Location, Pool

# How long a person may take to log in.
LOGIN_SECONDS = 300.0
LONGEST_REQUEST = 16 * 1024
READ_SECONDS = 10.0

_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Portico</title>
<style>body{{font:18px/1.5 system-ui,sans-serif;max-width:32em;margin:20vh auto;padding:0 1em}}</style>
<h1>{title}</h1><p>{text}</p></html>"""
_DONE = _PAGE.format(title="That is all", text="You can close this window and go back to where you came from.")
_DENIED = _PAGE.format(title="No access was given", text="You can close this window. The program was told.")
_ELSEWHERE = _PAGE.format(title="Nothing here", text="This address is only for coming back from a login.")


def announce(url: str) -> None:
    """Standard output may belong to the protocol, or to a pipe."""
    print(f"To log in, open this page:\n\n  {url}\n", file=sys.stderr, flush=True)


class Browser:
    """Opens the user's own browser. The page is announced too, for who has none on this machine."""

    def __init__(self, tell: Callable[[str], None] = announce, *, patience: float = LOGIN_SECONDS) -> None:
        self._tell = tell
        self._patience = patience

    async def __call__(self, url: str, redirect_uri: str) -> str:
        callback = _Callback(redirect_uri)
        async with callback:
            self._tell(url)
            with contextlib.suppress(webbrowser.Error, OSError):
                await asyncio.to_thread(webbrowser.open, url)
            try:
                async with asyncio.timeout(self._patience):
                    return await callback.arrived
            except TimeoutError:
                raise AuthorizationFailed(f"There was no login within {self._patience:g} s. Start again.") from None


class _Callback:
    """A listener on loopback that takes one redirect."""

    def __init__(self, redirect_uri: str) -> None:
        parts = urlsplit(redirect_uri)
        self._uri = redirect_uri
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._path = parts.path or "/"
        self._server: asyncio.Server | None = None
        self.arrived: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> None:
        host = "127.0.0.1" if self._host == "localhost" else self._host
        try:
            self._server = await asyncio.start_server(self._serve, host, self._port, limit=LONGEST_REQUEST)
        except OSError as failure:
            raise AuthorizationFailed(
                f"{quoted(self._uri)} is where the browser is to come back to, and it cannot be listened on: "
                f"{failure.strerror or failure}. Close what uses the port, or configure another redirect URI."
            ) from None

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        if not self.arrived.done():
            self.arrived.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(READ_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                status, page = self._answer(head.partition(b"\r\n")[0].decode("latin-1"))
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
            pass  # another browser, or an impatient one: the redirect may still come
        finally:
            writer.close()

    def _answer(self, line: str) -> tuple[str, str]:
        method, _, rest = line.partition(" ")
        target = rest.rpartition(" ")[0]
        path, _, query = target.partition("?")
        # Browsers ask for an icon too, and anything on this machine may knock here.
        if method != "GET" or path != self._path or ("code=" not in query and "error=" not in query):
            return "404 Not Found", _ELSEWHERE
        if not self.arrived.done():
            self.arrived.set_result(f"{self._uri}?{query}")
        return "200 OK", _DENIED if "error=" in query and "code=" not in query else _DONE


async def headless(url: str, redirect_uri: str) -> str:
    """For tests, and for authorization servers that show no page: they redirect at once."""
    place = Location(url)
    pool = Pool()
    try:
        answer = await pool.send("GET", place, ())
        location = place.join(answer.headers.get("location", ""))
        pool.give_back(place, answer)
    finally:
        await pool.close()
    if answer.status not in (301, 302, 303, 307, 308) or not location.startswith(redirect_uri):
        raise RedirectRejected(f"{quoted(url)} wants to be shown to a person: it does not redirect by itself.")
    return location
