# Public names, and the modules that define them. `portico._lazy.attach_stub` reads this file at run time.
from portico.auth.assertions import SigningKey as SigningKey
from portico.auth.authorization_code import AuthorizationCode as AuthorizationCode
from portico.auth.client_registration import ClientRegistration as ClientRegistration
from portico.auth.device_code import DeviceCode as DeviceCode
from portico.auth.errors import (
    AuthorizationError as AuthorizationError,
    InvalidRedirect as InvalidRedirect,
    IssuerMismatch as IssuerMismatch,
    ResourceMismatch as ResourceMismatch,
    ScopeRejected as ScopeRejected,
)
from portico.auth.grants import (
    ClientCredentials as ClientCredentials,
    EnterpriseManagedAuthorization as EnterpriseManagedAuthorization,
    Grant as Grant,
    IdentityProvider as IdentityProvider,
    TokenExchange as TokenExchange,
    WorkloadIdentity as WorkloadIdentity,
)
from portico.auth.oauth import OAuth as OAuth
from portico.auth.principal import Principal as Principal
from portico.auth.resource_server import ResourceServer as ResourceServer
from portico.auth.token_storage import (
    FileStorage as FileStorage,
    KeyringStorage as KeyringStorage,
    MemoryStorage as MemoryStorage,
    TokenStorage as TokenStorage,
)
from portico.auth.verifiers.base import (
    InvalidToken as InvalidToken,
    RequestCredentials as RequestCredentials,
    VerifiedToken as VerifiedToken,
    Verifier as Verifier,
    VerifierUnavailable as VerifierUnavailable,
)
from portico.auth.verifiers.claims import ClaimNames as ClaimNames
from portico.auth.verifiers.client_certificate import ClientCertificateVerifier as ClientCertificateVerifier
from portico.auth.verifiers.introspection import IntrospectionVerifier as IntrospectionVerifier
from portico.auth.verifiers.jwt import JwtVerifier as JwtVerifier
from portico.auth.verifiers.token_file import TokenFileVerifier as TokenFileVerifier
from portico.transports.http_client.browser_login import headless_login as headless_login
