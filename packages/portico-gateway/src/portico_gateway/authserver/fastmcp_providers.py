"""FastMCP's login providers, implemented with Portico's authorization server (`[auth.proxy]`).

Like FastMCP's own providers, they admit every user of the identity provider unless `allow` restricts it; a warning is
logged in that case.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from portico.auth.resource_server import ResourceServer
from portico.auth.settings import AuthSectionSettings, apply
from portico.compat.mcp_sdk.auth import AuthProvider
from portico.compat.unsupported import UnsupportedFeature, reject_options
from portico.protocol.errors import UsageError

log = logging.getLogger("portico.access")

# FastMCP's default, which its users have registered at their identity provider.
CALLBACK_PATH = "/auth/callback"


class LoginPreset(NamedTuple):
    """Mapping of a FastMCP provider to `[auth.proxy]`."""

    # Required options. The first missing one is reported.
    options: tuple[str, ...] = ()
    # Builds the `[auth.proxy]` settings from the values of the options.
    settings: Callable[..., Mapping[str, Any]] = dict
    provider: str = "oidc"
    optional: Mapping[str, str] = {}
    # Requested from the identity provider unless `required_scopes` is set.
    default_scopes: tuple[str, ...] = ()
    # Names of the `client_id` and `client_secret` options.
    client: tuple[str, str] = ("client_id", "client_secret")
    doc: str = ""


_STORED = "sessions and clients are stored in the store of the server: store=URL"
_EXPIRY = "use [auth.proxy] access_token_ttl, max_session_age and session_idle_timeout"
_UPSTREAM = "the tokens of the identity provider are used for the login alone"
_UNSUPPORTED = {
    "resource_base_url": UnsupportedFeature("base_url is the URL of the server and of the resource"),
    "issuer_url": UnsupportedFeature("the issuer is base_url"),
    "service_documentation_url": UnsupportedFeature("use ResourceServer(documentation=…)"),
    "allowed_client_redirect_uris": UnsupportedFeature(
        "use [auth.proxy] allowed_client_hosts, or register clients with client"
    ),
    "client_storage": UnsupportedFeature(_STORED),
    "jwt_signing_key": UnsupportedFeature("use [auth.proxy] encryption_keys; without them keys are made and stored"),
    "require_authorization_consent": UnsupportedFeature(
        "consent is always requested", accepted=(None, True, "remember")
    ),
    "consent_csp_policy": UnsupportedFeature("the pages have a fixed content security policy"),
    "forward_resource": UnsupportedFeature(_UPSTREAM, accepted=(None, True, False)),
    "forward_pkce": UnsupportedFeature("PKCE is always used", accepted=(None, True)),
    "fallback_access_token_expiry_seconds": UnsupportedFeature(_EXPIRY),
    "fallback_refresh_token_expiry_seconds": UnsupportedFeature(_EXPIRY),
    "fastmcp_access_token_expiry_seconds": UnsupportedFeature(_EXPIRY),
    "token_expiry_threshold_seconds": UnsupportedFeature(_EXPIRY),
    "http_client": UnsupportedFeature("Portico fetches with its own HTTP client and its own limits"),
    "timeout_seconds": UnsupportedFeature("Portico fetches with its own HTTP client and its own limits"),
    "cache_ttl_seconds": UnsupportedFeature(_UPSTREAM),
    "max_cache_size": UnsupportedFeature(_UPSTREAM),
    "enable_cimd": UnsupportedFeature("use [auth.proxy] client_id_metadata_documents = false", accepted=(None, True)),
    "identity_assertion": UnsupportedFeature("use portico.auth.EnterpriseManagedAuthorization"),
    "token_verifier": UnsupportedFeature(_UPSTREAM),
    "verify_id_token": UnsupportedFeature("id tokens are always verified", accepted=(None, True)),
    "algorithm": UnsupportedFeature("the algorithm is taken from the published keys"),
    "strict": UnsupportedFeature("the metadata of the identity provider is always validated", accepted=(None, True)),
    "token_endpoint_auth_method": UnsupportedFeature("the method is taken from the provider's metadata"),
    "extra_token_params": UnsupportedFeature("use extra_authorize_params="),
    "upstream_revocation_endpoint": UnsupportedFeature(_UPSTREAM),
    "identifier_uri": UnsupportedFeature(_UPSTREAM),
    "additional_authorize_scopes": UnsupportedFeature(_UPSTREAM),
    "base_authority": UnsupportedFeature("use OIDCProxy with config_url="),
    "token_issuer": UnsupportedFeature("use OIDCProxy with config_url="),
}


class OAuthLoginProvider(AuthProvider):
    """Base class of the login providers: `FastMCP(auth=GitHubProvider(client_id=…, client_secret=…, base_url=…))`.

    The settings are applied when the server is opened over HTTP.

    * **client_id**, **client_secret** – the registration of this server at the identity provider.
    * **base_url** – the public URL of this server.
    * **redirect_path** – the path to which the identity provider returns the browser; /auth/callback by default.
    * **required_scopes** – the scopes to request from the identity provider.
    * **valid_scopes** – the scopes that clients may request from this server.
    * **extra_authorize_params**, **audience** – parameters for the login page of the identity provider.
    * **allow** – the users who may log in, as in `[auth.proxy]`; None admits every user of the identity provider.
    """

    preset = LoginPreset()

    def __init__(
        self,
        *,
        base_url: Any = None,
        redirect_path: str | None = None,
        required_scopes: Collection[str] | None = None,
        valid_scopes: Sequence[str] | None = None,
        extra_authorize_params: Mapping[str, str] | None = None,
        audience: str | None = None,
        allow: Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        preset = self.preset
        self._client = {name: options.pop(option, None) for name, option in zip(_CLIENT, preset.client, strict=True)}
        named = {**preset.optional, **dict.fromkeys(preset.options)}
        self._options = {name: options.pop(name, None) or default for name, default in named.items()}
        # An option that is silently ignored could be one that restricts access.
        reject_options(type(self).__name__, options, _UNSUPPORTED)
        self._home = None if base_url is None else str(base_url).rstrip("/")
        self._scopes = list(required_scopes or preset.default_scopes)
        self._allow = allow
        parameters = {**({} if audience is None else {"audience": audience}), **(extra_authorize_params or {})}
        self._settings = {
            "callback_path": redirect_path or CALLBACK_PATH,
            **({} if valid_scopes is None else {"scopes": list(valid_scopes)}),
            **({"extra_authorize_params": parameters} if parameters else {}),
        }

    def create_resource_server(self, server: Any, verifier: Any = None) -> ResourceServer:
        """Install `[auth.proxy]` on the server and return its resource server."""
        if self._allow is None:
            log.warning(
                "every user of the identity provider may log in; restrict it with %s(allow=[…])", type(self).__name__
            )
        proxy = {
            "provider": self.preset.provider,
            "allow": ["*"] if self._allow is None else list(self._allow),
            **{name: value for name, value in self._client.items() if value},
            **self._settings,
            **({"provider_scopes": self._scopes} if self._scopes else {}),
            **self._identity_provider(),
        }
        apply(server, AuthSectionSettings(proxy=proxy, public_url=self._home))
        resource: ResourceServer = server.auth
        return resource

    def _identity_provider(self) -> Mapping[str, Any]:
        for name in self.preset.options:
            if not self._options[name]:
                raise UsageError(f"{type(self).__name__} needs {name}")
        return self.preset.settings(**{name: str(value) for name, value in self._options.items()})


_CLIENT = ("client_id", "client_secret")


def _create_provider(name: str, preset: LoginPreset) -> type[OAuthLoginProvider]:
    return type(name, (OAuthLoginProvider,), {"__doc__": preset.doc, "__module__": __name__, "preset": preset})


def _from_config_url(config_url: str) -> dict[str, Any]:
    return {"issuer": config_url.removesuffix("/.well-known/openid-configuration")}


def _oauth(
    upstream_authorization_endpoint: str, upstream_token_endpoint: str, userinfo_endpoint: str
) -> dict[str, Any]:
    return {
        "issuer": "/".join(upstream_authorization_endpoint.split("/")[:3]),
        "authorization_endpoint": upstream_authorization_endpoint,
        "token_endpoint": upstream_token_endpoint,
        "userinfo_endpoint": userinfo_endpoint,
    }


_DISCORD = {
    "issuer": "https://discord.com",
    "authorization_endpoint": "https://discord.com/oauth2/authorize",
    "token_endpoint": "https://discord.com/api/oauth2/token",
    "userinfo_endpoint": "https://discord.com/api/users/@me",
    "subject_claim": "id",
    "username_claim": "username",
}

PRESETS = {
    "AWSCognitoProvider": LoginPreset(
        ("user_pool_id",),
        lambda user_pool_id, aws_region: {"issuer": f"https://cognito-idp.{aws_region}.amazonaws.com/{user_pool_id}"},
        optional={"aws_region": "eu-central-1"},
        doc="Users log in at a user pool of Cognito.",
    ),
    "Auth0Provider": LoginPreset(
        ("config_url",),
        lambda config_url: {"issuer": _from_config_url(config_url)["issuer"].rstrip("/") + "/"},
        doc="Users log in at Auth0.",
    ),
    "AzureProvider": LoginPreset(
        ("tenant_id",),
        lambda tenant_id: {"tenant": tenant_id, "provider_scopes": ["openid", "profile", "email"]},
        "entra",
        doc="Users log in at Microsoft, in the tenant `tenant_id`.",
    ),
    "ClerkProvider": LoginPreset(
        ("domain",),
        lambda domain: {"issuer": f"https://{domain.removeprefix('https://').rstrip('/')}"},
        doc="Users log in at Clerk.",
    ),
    "DiscordProvider": LoginPreset(
        (), lambda: _DISCORD, "oauth", default_scopes=("identify",), doc="Users log in at Discord."
    ),
    "GitHubProvider": LoginPreset(provider="github", doc="Users log in at GitHub."),
    "GoogleProvider": LoginPreset(provider="google", doc="Users log in at Google."),
    "HuggingFaceProvider": LoginPreset(
        (), lambda: {"issuer": "https://huggingface.co"}, doc="Users log in at Hugging Face."
    ),
    "KeycloakAuthProvider": LoginPreset(
        ("realm_url",), lambda realm_url: {"issuer": realm_url.rstrip("/")}, doc="Users log in at a realm of Keycloak."
    ),
    "OAuthProxy": LoginPreset(
        ("upstream_authorization_endpoint", "upstream_token_endpoint", "userinfo_endpoint"),
        _oauth,
        "oauth",
        client=("upstream_client_id", "upstream_client_secret"),
        doc="Users log in at a server of plain OAuth, which says who a user is at `userinfo_endpoint`.",
    ),
    "OCIProvider": LoginPreset(
        ("config_url",), _from_config_url, doc="Users log in at an identity domain of Oracle's cloud."
    ),
    "OIDCProxy": LoginPreset(
        ("config_url",), _from_config_url, doc="Users log in at a server of OpenID Connect, named by its `config_url`."
    ),
    "WorkOSProvider": LoginPreset(
        ("authkit_domain",),
        lambda authkit_domain: {"issuer": authkit_domain.rstrip("/")},
        doc="Users log in at an AuthKit domain of WorkOS.",
    ),
}

PROVIDERS = {name: _create_provider(name, preset) for name, preset in PRESETS.items()}
