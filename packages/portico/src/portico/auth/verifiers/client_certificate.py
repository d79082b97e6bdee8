"""Client certificates that a reverse proxy has verified and reports in a header.

The header is accepted from trusted proxies only. The proxy must set it on every request and remove any value that the
client sent.
"""

from __future__ import annotations

from collections.abc import Collection

from portico.auth.principal import Principal
from portico.auth.verifiers.base import InvalidToken, RequestCredentials, VerifiedToken
from portico.protocol.errors import UsageError

MAX_NAME_CHARS = 1024


class ClientCertificateVerifier:
    """Verifier that takes the principal's id from a header.

    * **subject_header** – such as `x-ssl-client-s-dn`.
    * **scopes** – scopes of such clients; None: no restriction.
    * **verify_header** – a header that must be "SUCCESS", for proxies that also admit clients without a certificate.
    """

    # The result does not depend on the client's address.
    depends_on_address = False

    def __init__(
        self,
        subject_header: str,
        *,
        scopes: Collection[str] | None = (),
        verify_header: str | None = None,
    ) -> None:
        # Browsers and OAuth clients set these two themselves, so they cannot come from the proxy alone.
        if not subject_header or subject_header.lower() in ("authorization", "cookie"):
            raise UsageError(f"subject_header must name a header set by the proxy, got {subject_header!r}")
        self._header = subject_header.lower()
        self._verify_header = None if verify_header is None else verify_header.lower()
        self.headers = tuple(name for name in (self._header, self._verify_header) if name is not None)
        self._scopes = None if scopes is None else frozenset(scopes)

    def try_verify(self, credentials: RequestCredentials) -> VerifiedToken | None:
        name = credentials.headers.get(self._header)
        # An Authorization header takes precedence: its token says more about the caller than the connection.
        if credentials.scheme or not name:
            return None
        # A client that connects directly can send any header, and would choose its own identity.
        if not credentials.via_trusted_proxy:
            raise InvalidToken(f"the header {self._header} does not come from a trusted proxy")
        if self._verify_header is not None and credentials.headers.get(self._verify_header, "").upper() != "SUCCESS":
            raise InvalidToken("the proxy has not verified the certificate")
        if len(name) > MAX_NAME_CHARS or not name.isprintable():
            raise InvalidToken("the name in the certificate is too long or not printable")
        return VerifiedToken(Principal(name, self._scopes, issuer="certificate"), cacheable=False)

    async def __call__(self, credentials: RequestCredentials) -> VerifiedToken | None:
        return self.try_verify(credentials)
