"""How the face says no: to a client as OAuth's JSON, to a client by way of the browser, or to the person alone."""

from __future__ import annotations

from portico.protocol.errors import Error


class GrantRefused(Error):
    """One of OAuth's errors (RFC 6749, section 5.2), for the client that asked."""

    def __init__(self, error: str, description: str, status: int = 400) -> None:
        super().__init__(description)
        self.error = error
        self.status = status


class SentBack(Error):
    """The same, by way of the browser: the redirect URI is the client's own, so it may be told there."""

    def __init__(self, error: str, description: str) -> None:
        super().__init__(description)
        self.error = error


class PageRefused(Error):
    """For the person at the browser alone. Where it is not sure whose a redirect URI is, no browser is sent there."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status
