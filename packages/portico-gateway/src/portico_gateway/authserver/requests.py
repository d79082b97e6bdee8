"""Parsing of OAuth requests, and construction of redirects and metadata. No I/O."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from urllib.parse import parse_qsl, unquote_plus, urlencode, urlsplit

from msgspec import Struct

from portico.auth.client_registration import DEVICE_CODE
from portico.auth.url_policy import resource_covers
from portico_gateway.authserver.clients import OAuthClient, matches_redirect_uri
from portico_gateway.authserver.config import AuthorizationServerConfig
from portico_gateway.authserver.errors import ErrorPageResponse, OAuthErrorResponse, RedirectErrorResponse

MAX_PARAMETERS = 64
MAX_STATE_CHARS = 4096
# RFC 7636, section 4: an S256 challenge is a SHA-256 digest in base64url, which has 43 characters.
_CHALLENGE = re.compile(r"[A-Za-z0-9_-]{43}")
_VERIFIER = re.compile(r"[A-Za-z0-9._~-]{43,128}")


class AuthorizationRequest(Struct, frozen=True):
    """Validated authorization request of a client."""

    client_id: str
    redirect_uri: str
    challenge: str
    scopes: tuple[str, ...]
    resource: str
    state: str | None = None


def parse_parameters(text: str) -> dict[str, str]:
    """Parse a query string or a form body.

    Raises OAuthErrorResponse for a repeated parameter (RFC 6749, section 3.1), since two parsers could choose different
    values.
    """
    result: dict[str, str] = {}
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_PARAMETERS)
    except ValueError:
        raise OAuthErrorResponse("invalid_request", "too many parameters") from None
    for name, value in pairs:
        if name in result:
            # RFC 8707 allows a repeated `resource`; this server issues tokens for one resource only.
            error = "invalid_target" if name == "resource" else "invalid_request"
            raise OAuthErrorResponse(error, "A parameter must not be repeated.")
        result[name] = value
    return result


def parse_authorization_request(
    params: Mapping[str, str], client: OAuthClient, settings: AuthorizationServerConfig
) -> AuthorizationRequest:
    """Validate the authorization request of a client.

    Raises ErrorPageResponse until the redirect URI is validated, and RedirectErrorResponse afterwards.
    """
    uri = params.get("redirect_uri", "")
    # First: an error sent to a URI that is not registered would make this server an open redirector.
    if not matches_redirect_uri(client, uri):
        raise ErrorPageResponse(
            "The redirect URI in this request is not registered for the program that sent you here."
        )
    if len(params.get("state", "")) > MAX_STATE_CHARS:
        raise ErrorPageResponse("The state parameter is too long.")
    if params.get("response_type") != "code":
        raise RedirectErrorResponse("unsupported_response_type", "response_type must be code.")
    # Ignoring them would be unsafe: their signed values take precedence over the ones checked here (RFC 9101).
    if "request" in params or "request_uri" in params:
        raise RedirectErrorResponse("request_not_supported", "Request objects are not supported.")
    if params.get("response_mode", "query") != "query":
        raise RedirectErrorResponse("invalid_request", "response_mode must be query.")
    challenge = params.get("code_challenge", "")
    if params.get("code_challenge_method") != "S256" or _CHALLENGE.fullmatch(challenge) is None:
        raise RedirectErrorResponse(
            "invalid_request", "PKCE is required: send code_challenge with code_challenge_method S256."
        )
    return AuthorizationRequest(
        client.id,
        uri,
        challenge,
        grant_scopes(params.get("scope"), settings),
        validate_resource(params, settings, RedirectErrorResponse),
        params.get("state"),
    )


def grant_scopes(scope: str | None, settings: AuthorizationServerConfig) -> tuple[str, ...]:
    """Return the supported scopes among the requested ones, or the default scopes if none are requested."""
    requested = (scope or "").split()
    # A refresh token is always issued, so `offline_access` is accepted and ignored.
    scopes = [fromkey for fromkey in dict.fromkeys(requested) if fromkey != "offline_access"]
    if not scopes:
        return settings.effective_default_scopes
    return tuple(fromkey for fromkey in scopes if fromkey in settings.scopes)


def validate_resource(
    params: Mapping[str, str],
    settings: AuthorizationServerConfig,
    refusal: type[OAuthErrorResponse] | type[RedirectErrorResponse],
) -> str:
    """Return the resource for which a token is requested (RFC 8707).

    It must be this server or a resource below the issuer. Raises `refusal` with `invalid_target` otherwise.
    """
    named = params.get("resource", settings.resource)
    if named.rstrip("/") == settings.resource.rstrip("/"):
        return settings.resource
    if resource_covers(settings.issuer, named):
        return settings.resource if settings.audience_only else named
    raise refusal("invalid_target", "Tokens for this resource are not issued here.")


def redirect_url(request_uri: str, issuer: str, state: str | None, params: Mapping[str, str]) -> str:
    """Return the redirect URI with response parameters. `iss` identifies the issuer (RFC 9207)."""
    more = {**params, **({"state": state} if state is not None else {}), "iss": issuer}
    return request_uri + ("&" if urlsplit(request_uri).query else "?") + urlencode(more)


def verify_code_challenge(verifier: str, challenge: str) -> bool:
    """Return whether a PKCE verifier matches its challenge (RFC 7636, section 4.6)."""
    # RFC 7636, section 4.1: shorter verifiers could be guessed.
    if _VERIFIER.fullmatch(verifier) is None:
        return False
    digest = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=")
    # In constant time, so that the response time does not show how much of the digest matches.
    return hmac.compare_digest(digest, challenge.encode())


def parse_basic_credentials(authorization: str | None) -> tuple[str, str] | None:
    """Parse a client's ID and secret from a Basic header; both are form-encoded (RFC 6749, section 2.3.1)."""
    if authorization is None:
        return None
    scheme, _, rest = authorization.partition(" ")
    if scheme.lower() != "basic":
        raise OAuthErrorResponse(
            "invalid_client", ("Client authentication must use HTTP Basic or the request body."), 401
        )
    try:
        name, colon, secret = base64.b64decode(rest.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        colon = ""
    if not colon:
        raise OAuthErrorResponse("invalid_client", "The client credentials are malformed.", 401)
    return unquote_plus(name), unquote_plus(secret)


def supported_grant_types(settings: AuthorizationServerConfig) -> list[str]:
    """Return the grant types that clients may register and use."""
    return ["authorization_code", "refresh_token", *([DEVICE_CODE] if settings.device_authorization else [])]


def server_metadata(settings: AuthorizationServerConfig, algorithms: Sequence[str]) -> dict[str, object]:
    """Return the authorization server metadata (RFC 8414, section 2), also served as OpenID configuration."""
    return {
        "issuer": settings.issuer,
        "authorization_endpoint": settings.url("/authorize"),
        "token_endpoint": settings.url("/token"),
        "revocation_endpoint": settings.url("/revoke"),
        "jwks_uri": settings.url("/jwks.json"),
        **({"registration_endpoint": settings.url("/register")} if settings.dynamic_client_registration else {}),
        **(
            {"device_authorization_endpoint": settings.url("/device_authorization")}
            if settings.device_authorization
            else {}
        ),
        "scopes_supported": list(settings.scopes),
        "response_types_supported": ["code"],
        "response_modes_supported": ["query"],
        "grant_types_supported": supported_grant_types(settings),
        "code_challenge_methods_supported": ["S256"],
        "token_endpoint_auth_methods_supported": ["none", "client_secret_basic", "client_secret_post"],
        "revocation_endpoint_auth_methods_supported": ["none", "client_secret_basic", "client_secret_post"],
        "client_id_metadata_document_supported": settings.client_id_metadata_documents,
        "authorization_response_iss_parameter_supported": True,
        # Required by OpenID clients, although no ID tokens are issued.
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": list(algorithms),
    }
