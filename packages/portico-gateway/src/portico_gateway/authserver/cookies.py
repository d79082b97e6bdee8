"""Cookie that binds a login flow to one browser, so that a stolen or forwarded link is useless elsewhere."""

from __future__ import annotations

import re
import secrets

from portico.transports.http_server.messages import HeaderPairs, HttpRequest

_VALUE = re.compile(r"[A-Za-z0-9_-]{43}")


class BrowserCookie:
    """Cookie for the login flow.

    The `__Host-` prefix restricts it to https and to this host; a subdomain cannot overwrite it.
    """

    def __init__(self, name: str, *, secure: bool, max_age: int) -> None:
        self._name = f"__Host-{name}" if secure else name
        self._attributes = "; Secure" if secure else ""
        self._seconds = max_age

    def read(self, request: HttpRequest) -> str | None:
        for part in request.headers.get(b"cookie", b"").decode("latin-1").split(";"):
            name, _, value = part.strip().partition("=")
            if name == self._name:
                return value if _VALUE.fullmatch(value) else None
        return None

    def write(self, value: str) -> HeaderPairs:
        # SameSite=Lax, because the identity provider returns the browser with a cross-site top-level navigation.
        text = f"{self._name}={value}; Path=/; Max-Age={self._seconds}; HttpOnly; SameSite=Lax{self._attributes}"
        return ((b"set-cookie", text.encode()),)


def new_cookie_value() -> str:
    return secrets.token_urlsafe(32)
