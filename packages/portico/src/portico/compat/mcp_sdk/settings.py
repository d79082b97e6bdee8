"""Settings objects of the official SDK."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Self

from msgspec import Struct

from portico.auth.resource_server import ResourceServer
from portico.compat.mcp_sdk.auth import AuthProvider, required_by, server_url, to_verifier
from portico.compat.unsupported import UnsupportedFeature, reject_options
from portico.protocol.errors import UsageError
from portico.server.options import StateCodec

if TYPE_CHECKING:
    from portico.server.context.request_state import RequestStateSealer

# The length of the SHA-256 MAC: a shorter key would be the weakest part.
MIN_KEY_BYTES = 32


class TransportSecuritySettings(Struct):
    """The Host and Origin headers that a server accepts."""

    enable_dns_rebinding_protection: bool = True
    allowed_hosts: Sequence[str] = ()
    allowed_origins: Sequence[str] = ()

    def http_options(self) -> dict[str, Any]:
        """Return the settings as options of `Server.run("http")`."""
        if not self.enable_dns_rebinding_protection:
            return {"allowed_hosts": ["*"]}
        # The SDK writes `host:*` for any port; a host without a port means that in Portico.
        hosts = [host.removesuffix(":*") for host in self.allowed_hosts]
        return {"allowed_hosts": hosts, "allowed_origins": list(self.allowed_origins)}


_REQUEST_STATE_UNSUPPORTED = {
    "bind_principal": UnsupportedFeature("a state is always bound to the principal", accepted=(None, True)),
    "audience": UnsupportedFeature("a state is always bound to the name of the server"),
}


class RequestStateSecurity:
    """How the request state that clients return between rounds is sealed.

    * **keys** – the first key seals, and every key unseals: `[new, old]` during a key rotation.
    * **codec** – alternatively an object with `seal(bytes) -> str` and `unseal(str) -> bytes`, which raises
      InvalidRequestState.
    * **ttl** – seconds until a state expires (default: 600).
    """

    def __init__(
        self,
        *,
        keys: Sequence[bytes | bytearray | str] | None = None,
        codec: StateCodec | None = None,
        ttl: float | None = None,
        **unsupported: Any,
    ) -> None:
        reject_options("RequestStateSecurity", unsupported, _REQUEST_STATE_UNSUPPORTED)
        if (keys is None) == (codec is None):
            raise UsageError("RequestStateSecurity requires either keys or a codec")
        self._keys = [key.encode() if isinstance(key, str) else bytes(key) for key in keys or ()]
        if keys is not None and (not self._keys or min(map(len, self._keys)) < MIN_KEY_BYTES):
            raise UsageError(f"the keys of RequestStateSecurity must have at least {MIN_KEY_BYTES} bytes each")
        self._codec = codec
        self._ttl = ttl

    @classmethod
    def ephemeral(cls, *, ttl: float | None = None, **unsupported: Any) -> Self:
        """Seal with a key of this process and its workers, which is the default of a server."""
        reject_options("RequestStateSecurity.ephemeral", unsupported, _REQUEST_STATE_UNSUPPORTED)
        # Around the constructor, which requires keys or a codec so that an empty list is never an
        # accident.
        security = cls.__new__(cls)
        security._keys, security._codec, security._ttl = [], None, ttl
        return security

    def create_sealer(self, name: str) -> RequestStateSealer:
        first = self._keys[0] if self._keys else None
        ttl = {} if self._ttl is None else {"ttl": self._ttl}
        from portico.server.context import request_state

        return request_state.RequestStateSealer(
            first, name=name, previous_keys=self._keys[1:], codec=self._codec, **ttl
        )


_AUTHORIZATION_SERVER = "an authorization server is configured with [auth.proxy] of portico-gateway"
_AUTH_UNSUPPORTED = {
    "client_registration_options": UnsupportedFeature(_AUTHORIZATION_SERVER),
    "revocation_options": UnsupportedFeature(_AUTHORIZATION_SERVER),
    "identity_assertion_enabled": UnsupportedFeature(_AUTHORIZATION_SERVER, accepted=(None, False)),
    # The audience of tokens is always validated.
    "validate_token_resource": UnsupportedFeature("use True or False", accepted=(None, True, False)),
}
AUTH_FIELDS = ("issuer_url", "resource_server_url", "required_scopes", "service_documentation_url", *_AUTH_UNSUPPORTED)


class AuthSettings(AuthProvider):
    """The issuer of tokens, the URL of this server, and the scopes that tokens need."""

    def __init__(
        self,
        *,
        issuer_url: Any,
        resource_server_url: Any = None,
        required_scopes: Collection[str] | None = None,
        service_documentation_url: Any = None,
        **unsupported: Any,
    ) -> None:
        reject_options("AuthSettings", unsupported, _AUTH_UNSUPPORTED)
        self._issuer, self._resource = str(issuer_url).rstrip("/"), str(resource_server_url or "") or None
        self.required_scopes, self._documentation = list(required_scopes or ()), service_documentation_url

    def create_resource_server(self, server: Any, verifier: Any = None) -> ResourceServer:
        return ResourceServer(
            self._issuer if verifier is None else to_verifier(verifier),
            audience=self._resource,
            public_url=server_url(self._resource),
            authorization_servers=[self._issuer],
            required_scopes={*self.required_scopes, *required_by(verifier)},
            resource_documentation=None if self._documentation is None else str(self._documentation),
        )
