"""Errors of the authorization server: an OAuth JSON body, a redirect to the client, or a page for the user."""

from __future__ import annotations

from portico.protocol.errors import PorticoError


class OAuthErrorResponse(PorticoError):
    """OAuth error response (RFC 6749, section 5.2), returned to the client as JSON."""

    def __init__(self, error: str, description: str, status: int = 400) -> None:
        super().__init__(description)
        self.error = error
        self.status = status


class RedirectErrorResponse(PorticoError):
    """OAuth error sent to the client by redirect. Raised only after the redirect URI was validated."""

    def __init__(self, error: str, description: str) -> None:
        super().__init__(description)
        self.error = error


class ErrorPageResponse(PorticoError):
    """Error page for the user. Used while the redirect URI is not validated, because no browser may be redirected
    there.
    """

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status
