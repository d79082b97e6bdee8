"""Who is asking. The names below are for clients: each is imported when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from portico._lazy import public_names

if TYPE_CHECKING:
    from portico.auth.assertions import SigningKey
    from portico.auth.authorization_code import AuthorizationCode
    from portico.auth.clients import Registration
    from portico.auth.credentials import Credentials, File, Keyring, Memory
    from portico.auth.errors import (
        AuthorizationFailed,
        IssuerMismatch,
        RedirectRejected,
        ResourceMismatch,
        ScopeRejected,
    )
    from portico.auth.grants import ClientCredentials, EnterpriseManaged, Grant, IdentityProvider, WorkloadIdentity
    from portico.auth.oauth import OAuth

_HOMES = {
    "portico.auth.assertions": ("SigningKey",),
    "portico.auth.authorization_code": ("AuthorizationCode",),
    "portico.auth.clients": ("Registration",),
    "portico.auth.credentials": ("Credentials", "File", "Keyring", "Memory"),
    "portico.auth.errors": (
        "AuthorizationFailed",
        "IssuerMismatch",
        "RedirectRejected",
        "ResourceMismatch",
        "ScopeRejected",
    ),
    "portico.auth.grants": ("ClientCredentials", "EnterpriseManaged", "Grant", "IdentityProvider", "WorkloadIdentity"),
    "portico.auth.oauth": ("OAuth",),
}

__all__ = [
    "AuthorizationCode",
    "AuthorizationFailed",
    "ClientCredentials",
    "Credentials",
    "EnterpriseManaged",
    "File",
    "Grant",
    "IdentityProvider",
    "IssuerMismatch",
    "Keyring",
    "Memory",
    "OAuth",
    "RedirectRejected",
    "Registration",
    "ResourceMismatch",
    "ScopeRejected",
    "SigningKey",
    "WorkloadIdentity",
]

if not TYPE_CHECKING:  # which would take any name for one that is there
    __getattr__, __dir__ = public_names(__name__, _HOMES)
