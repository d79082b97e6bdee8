"""Who is asking. The names below are for clients that log in, and for servers that let them in: each is imported when
it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from portico._lazy import public_names

if TYPE_CHECKING:
    from portico.auth.assertions import SigningKey
    from portico.auth.authorization_code import AuthorizationCode
    from portico.auth.client_registration import Registration
    from portico.auth.errors import (
        AuthorizationFailed,
        IssuerMismatch,
        RedirectRejected,
        ResourceMismatch,
        ScopeRejected,
    )
    from portico.auth.grants import (
        ClientCredentials,
        EnterpriseManaged,
        Grant,
        IdentityProvider,
        TokenExchange,
        WorkloadIdentity,
    )
    from portico.auth.oauth import OAuth
    from portico.auth.principal import Principal
    from portico.auth.resource_server import ResourceServer
    from portico.auth.token_storage import Credentials, File, Keyring, Memory
    from portico.auth.verifiers.base import RequestCredentials, TokenInvalid, Unavailable, Verified, Verifier
    from portico.auth.verifiers.claims import ClaimNames
    from portico.auth.verifiers.client_certificate import CertificateVerifier
    from portico.auth.verifiers.introspection import IntrospectionVerifier
    from portico.auth.verifiers.jwt import JwtVerifier
    from portico.auth.verifiers.token_file import TokenFileVerifier

_HOMES = {
    "portico.auth.assertions": ("SigningKey",),
    "portico.auth.authorization_code": ("AuthorizationCode",),
    "portico.auth.client_registration": ("Registration",),
    "portico.auth.token_storage": ("Credentials", "File", "Keyring", "Memory"),
    "portico.auth.errors": (
        "AuthorizationFailed",
        "IssuerMismatch",
        "RedirectRejected",
        "ResourceMismatch",
        "ScopeRejected",
    ),
    "portico.auth.grants": (
        "ClientCredentials",
        "EnterpriseManaged",
        "Grant",
        "IdentityProvider",
        "TokenExchange",
        "WorkloadIdentity",
    ),
    "portico.auth.oauth": ("OAuth",),
    "portico.auth.principal": ("Principal",),
    "portico.auth.resource_server": ("ResourceServer",),
    "portico.auth.verifiers.client_certificate": ("CertificateVerifier",),
    "portico.auth.verifiers.claims": ("ClaimNames",),
    "portico.auth.verifiers.base": (
        "RequestCredentials",
        "TokenInvalid",
        "Unavailable",
        "Verified",
        "Verifier",
    ),
    "portico.auth.verifiers.introspection": ("IntrospectionVerifier",),
    "portico.auth.verifiers.jwt": ("JwtVerifier",),
    "portico.auth.verifiers.token_file": ("TokenFileVerifier",),
}

__all__ = [
    "AuthorizationCode",
    "AuthorizationFailed",
    "CertificateVerifier",
    "ClaimNames",
    "ClientCredentials",
    "Credentials",
    "EnterpriseManaged",
    "File",
    "Grant",
    "IdentityProvider",
    "IntrospectionVerifier",
    "IssuerMismatch",
    "JwtVerifier",
    "Keyring",
    "Memory",
    "OAuth",
    "Principal",
    "RedirectRejected",
    "Registration",
    "RequestCredentials",
    "ResourceMismatch",
    "ResourceServer",
    "ScopeRejected",
    "SigningKey",
    "TokenExchange",
    "TokenFileVerifier",
    "TokenInvalid",
    "Unavailable",
    "Verified",
    "Verifier",
    "WorkloadIdentity",
]

if not TYPE_CHECKING:  # which would take any name for one that is there
    __getattr__, __dir__ = public_names(__name__, _HOMES)
