"""The cookie that ties a login to one browser. Who has only the link, and not the browser, gets nowhere."""

from __future__ import annotations

import re
import secrets

from portico.transports.http_server.messages import Pairs, Request

_VALUE = re.compile(r"[A-Za-z0-9_-]{43}")


class BrowserCookie:
    """`__Host-` means: over https, from this host alone, and no subdomain can put its own in place."""

    def __init__(self, name: str, *, secure: bool, seconds: int) -> None:
        self._name = f"__Host-{name}" if secure else name
        self._more = "; Secure" if secure else ""
        self._seconds = seconds

    def read(self, request: Request) -> str | None:
        for part in request.headers.get(b"cookie", b"").decode("latin-1").split(";"):
            name, _, value = part.strip().partition("=")
            if name == self._name:
                return value if _VALUE.fullmatch(value) else None
        return None

    def write(self, value: str) -> Pairs:
        text = f"{self._name}={value}; Path=/; Max-Age={self._seconds}; HttpOnly; SameSite=Lax{self._more}"
        return ((b"set-cookie", text.encode()),)


def fresh_value() -> str:
    return secrets.token_urlsafe(32)
