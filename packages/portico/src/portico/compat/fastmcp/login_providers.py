"""FastMCP's login providers. portico-gateway implements them, because they need its authorization server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from portico.plugins import require_plugin
from portico.protocol.errors import UsageError

if TYPE_CHECKING:
    from portico.compat.mcp_sdk.auth import AuthProvider

    class LoginProvider(AuthProvider):
        def __init__(self, **options: Any) -> None: ...

    AWSCognitoProvider: type[LoginProvider]
    Auth0Provider: type[LoginProvider]
    AzureProvider: type[LoginProvider]
    ClerkProvider: type[LoginProvider]
    DiscordProvider: type[LoginProvider]
    GitHubProvider: type[LoginProvider]
    GoogleProvider: type[LoginProvider]
    HuggingFaceProvider: type[LoginProvider]
    KeycloakAuthProvider: type[LoginProvider]
    OAuthProxy: type[LoginProvider]
    OCIProvider: type[LoginProvider]
    OIDCProxy: type[LoginProvider]
    WorkOSProvider: type[LoginProvider]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            plugin = require_plugin("gateway", name)
        except UsageError as missing:
            raise ImportError(str(missing)) from None
        return plugin.get_login_provider(name)
