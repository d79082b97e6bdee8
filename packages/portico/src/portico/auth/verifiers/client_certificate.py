"""Clients with a certificate, where a proxy in front of us has checked it and says in a header whose it is.

The header is believed from trusted proxies alone. A proxy has to set it on every request, and to take away what a
client sends under that name.
"""

from __future__ import annotations

from collections.abc import Collection

from portico.auth.principal import Principal
from portico.auth.verifiers.base import RequestCredentials, TokenInvalid, Verified
from portico.protocol.errors import UsageError

LONGEST_NAME = 1024


class CertificateVerifier:
    """Takes the name in a header for who it is.

    * **header** – such as `x-ssl-client-s-dn`.
    * **scopes** – what such a client may do; None: everything.
    * **verified_header** – one that says "SUCCESS", where the proxy lets clients without a certificate in as well.
    """

    # Nothing but what it is shown decides: not from where.
    by_address = False

    def __init__(
        self,
        header: str,
        *,
        scopes: Collection[str] | None = (),
        verified_header: str | None = None,
    ) -> None:
        if not header or header.lower() in ("authorization", "cookie"):
            raise UsageError(f"{header!r} is no header that a proxy says in whose certificate it has seen")
        self._header = header.lower()
        self._verified = None if verified_header is None else verified_header.lower()
        self.headers = tuple(name for name in (self._header, self._verified) if name is not None)
        self._scopes = None if scopes is None else frozenset(scopes)

    def at_once(self, credentials: RequestCredentials) -> Verified | None:
        name = credentials.headers.get(self._header)
        if credentials.scheme or not name:
            return None
        if not credentials.proxied:
            raise TokenInvalid(f"the header {self._header} does not come from a trusted proxy")
        if self._verified is not None and credentials.headers.get(self._verified, "").upper() != "SUCCESS":
            raise TokenInvalid("the proxy has not verified the certificate")
        if len(name) > LONGEST_NAME or not name.isprintable():
            raise TokenInvalid("the name in the certificate cannot be read")
        return Verified(Principal(name, self._scopes, issuer="certificate"), keep=False)

    async def __call__(self, credentials: RequestCredentials) -> Verified | None:
        return self.at_once(credentials)
