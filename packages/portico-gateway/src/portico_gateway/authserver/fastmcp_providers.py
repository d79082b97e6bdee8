"""FastMCP's login providers, by `[auth.proxy]`: an authorization server of our own in front of a login elsewhere.

Theirs let in everyone who has an account there. So do these, with a warning in the log, unless `allow` narrows it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Any

from portico.auth.resource_server import ResourceServer
from portico.auth.settings import AuthorizationSettings, apply
from portico.compat.fastmcp.auth import FamiliarAuth
from portico.protocol.errors import UsageError

log = logging.getLogger("portico.access")

_DISCORD = "https://discord.com"


class LoginProvider(FamiliarAuth):
    """`Server(auth=GitHubProvider(client_id=…, client_secret=…, base_url=…))`. It is read when the server is opened
    over HTTP; options that only their own machinery needs are not looked at.

    * **client_id**, **client_secret** – who this server is at the provider.
    * **base_url** – what this server is called from outside.
    * **required_scopes** – what people are asked for at the provider.
    * **allow** – who may come in, as in `[auth.proxy]`; None: everybody who has an account there.
    """

    provider = "oidc"

    def __init__(
        self,
        *,
        client_id: str = "",
        client_secret: str | None = None,
        base_url: Any = None,
        required_scopes: Collection[str] | None = None,
        allow: Sequence[str] | None = None,
        **more: Any,
    ) -> None:
        self._given = {"client_id": client_id, "client_secret": client_secret}
        self._home = None if base_url is None else str(base_url).rstrip("/")
        self._scopes = list(required_scopes or ())
        self._allow = allow
        self._more = more

    def login(self, more: dict[str, Any]) -> dict[str, Any]:
        """What of the provider's own options `[auth.proxy]` wants to know."""
        return {}

    def resource_for(self, server: Any, verifier: Any) -> ResourceServer:
        if self._allow is None:
            log.warning(
                "everybody with an account at the login may come in; %s(allow=[…]) narrows it", type(self).__name__
            )
        table = {
            "provider": self.provider,
            "allow": ["*"] if self._allow is None else list(self._allow),
            **{name: value for name, value in self._given.items() if value is not None},
            **({"login_scopes": self._scopes} if self._scopes else {}),
            **self.login(self._more),
        }
        apply(server, AuthorizationSettings(proxy=table, public_url=self._home))
        made: ResourceServer = server.auth
        return made

    def _must(self, name: str) -> str:
        value = self._more.get(name)
        if not value:
            raise UsageError(f"{type(self).__name__} needs {name}")
        return str(value)


class GitHubProvider(LoginProvider):
    """People log in at GitHub."""

    provider = "github"


class GoogleProvider(LoginProvider):
    """People log in at Google."""

    provider = "google"


class AzureProvider(LoginProvider):
    """People log in at Microsoft, in the tenant `tenant_id`."""

    provider = "entra"

    def login(self, more: dict[str, Any]) -> dict[str, Any]:
        return {"tenant": self._must("tenant_id"), "login_scopes": ["openid", "profile", "email"]}


class DiscordProvider(LoginProvider):
    """People log in at Discord."""

    provider = "oauth"

    def login(self, more: dict[str, Any]) -> dict[str, Any]:
        return {
            "issuer": _DISCORD,
            "authorization_endpoint": f"{_DISCORD}/oauth2/authorize",
            "token_endpoint": f"{_DISCORD}/api/oauth2/token",
            "userinfo_endpoint": f"{_DISCORD}/api/users/@me",
            "login_scopes": self._scopes or ["identify"],
            "subject": "id",
            "username": "username",
        }


class OIDCProxy(LoginProvider):
    """People log in at any server of OpenID Connect, named by its `config_url`."""

    def login(self, more: dict[str, Any]) -> dict[str, Any]:
        return {"issuer": self._must("config_url").removesuffix("/.well-known/openid-configuration")}


class Auth0Provider(OIDCProxy):
    """People log in at Auth0."""

    def login(self, more: dict[str, Any]) -> dict[str, Any]:
        return {"issuer": super().login(more)["issuer"].rstrip("/") + "/"}


class WorkOSProvider(LoginProvider):
    """People log in at an AuthKit domain of WorkOS."""

    def login(self, more: dict[str, Any]) -> dict[str, Any]:
        return {"issuer": self._must("authkit_domain").rstrip("/")}


class AWSCognitoProvider(LoginProvider):
    """People log in at a user pool of Cognito."""

    def login(self, more: dict[str, Any]) -> dict[str, Any]:
        region = more.get("aws_region", "eu-central-1")
        return {"issuer": f"https://cognito-idp.{region}.amazonaws.com/{self._must('user_pool_id')}"}


class ClerkProvider(LoginProvider):
    """People log in at Clerk."""

    def login(self, more: dict[str, Any]) -> dict[str, Any]:
        return {"issuer": f"https://{self._must('domain').removeprefix('https://').rstrip('/')}"}


class HuggingFaceProvider(LoginProvider):
    """People log in at Hugging Face."""

    def login(self, more: dict[str, Any]) -> dict[str, Any]:
        return {"issuer": "https://huggingface.co"}


class OCIProvider(OIDCProxy):
    """People log in at an identity domain of Oracle's cloud."""


class KeycloakAuthProvider(LoginProvider):
    """People log in at a realm of Keycloak."""

    def login(self, more: dict[str, Any]) -> dict[str, Any]:
        return {"issuer": self._must("realm_url").rstrip("/")}


class OAuthProxy(LoginProvider):
    """People log in at a server of plain OAuth. It says who a person is at an address: `userinfo_endpoint`."""

    provider = "oauth"

    def __init__(self, *, upstream_client_id: str = "", upstream_client_secret: str | None = None, **more: Any) -> None:
        super().__init__(client_id=upstream_client_id, client_secret=upstream_client_secret, **more)

    def login(self, more: dict[str, Any]) -> dict[str, Any]:
        where = self._must("upstream_authorization_endpoint")
        return {
            "issuer": "/".join(where.split("/")[:3]),
            "authorization_endpoint": where,
            "token_endpoint": self._must("upstream_token_endpoint"),
            "userinfo_endpoint": self._must("userinfo_endpoint"),
        }
