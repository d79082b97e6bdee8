"""Who is asking. The names below are for clients: each is imported when it is first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from portico.auth.assertions import SigningKey
    from portico.auth.authorization_code import AuthorizationCode
    from portico.auth.clients import Registration
    from portico.auth.credentials import Credentials, File, Keyring, Memory
    from portico.auth.errors import AuthorizationFailed
    from portico.auth.grants import ClientCredentials, EnterpriseManaged, IdentityProvider, WorkloadIdentity
    from portico.auth.oauth import OAuth

_HOMES = {
    "SigningKey": "portico.auth.assertions",
    "AuthorizationCode": "portico.auth.authorization_code",
    "Registration": "portico.auth.clients",
    "Credentials": "portico.auth.credentials",
    "File": "portico.auth.credentials",
    "Keyring": "portico.auth.credentials",
    "Memory": "portico.auth.credentials",
    "AuthorizationFailed": "portico.auth.errors",
    "ClientCredentials": "portico.auth.grants",
    "EnterpriseManaged": "portico.auth.grants",
    "IdentityProvider": "portico.auth.grants",
    "WorkloadIdentity": "portico.auth.grants",
    "OAuth": "portico.auth.oauth",
}

__all__ = [
    "AuthorizationCode",
    "AuthorizationFailed",
    "ClientCredentials",
    "Credentials",
    "EnterpriseManaged",
    "File",
    "IdentityProvider",
    "Keyring",
    "Memory",
    "OAuth",
    "Registration",
    "SigningKey",
    "WorkloadIdentity",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'portico.auth' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value
