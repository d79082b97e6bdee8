"""What clients ask of the face: reading requests, and the answers by way of the browser."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from urllib.parse import parse_qsl, unquote_plus, urlencode, urlsplit

from msgspec import Struct

from portico.auth.url_policy import covers
from portico_gateway.authserver.clients import KnownClient, redirects_to
from portico_gateway.authserver.config import FaceSettings
from portico_gateway.authserver.errors import GrantRefused, PageRefused, SentBack

MOST_PARAMETERS = 64
LONGEST_STATE = 4096
# RFC 7636, section 4: 43 characters are the digest of S256.
_CHALLENGE = re.compile(r"[A-Za-z0-9_-]{43}")
_VERIFIER = re.compile(r"[A-Za-z0-9._~-]{43,128}")


class AuthorizationRequest(Struct, frozen=True):
    """A client's wish, once it is sure that it is this client's."""

    client_id: str
    redirect_uri: str
    challenge: str
    scopes: tuple[str, ...]
    resource: str
    state: str | None = None


def parameters(text: str) -> dict[str, str]:
    """A query or a form. What comes twice is refused (RFC 6749, section 3.1): two readers would read two things."""
    found: dict[str, str] = {}
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_PARAMETERS)
    except ValueError:
        raise GrantRefused("invalid_request", "There are too many parameters.") from None
    for name, value in pairs:
        if name in found:
            # RFC 8707 lets `resource` be repeated; a token for several is not given here.
            error = "invalid_target" if name == "resource" else "invalid_request"
            raise GrantRefused(error, "A parameter stands twice.")
        found[name] = value
    return found


def read_authorization(said: Mapping[str, str], client: KnownClient, face: FaceSettings) -> AuthorizationRequest:
    """The request of a client. PageRefused while it is not sure where to send an error; SentBack afterwards."""
    uri = said.get("redirect_uri", "")
    if not redirects_to(client, uri):
        raise PageRefused(
            "The program that sent you here wants to be answered at an address that is not registered for it."
        )
    if len(said.get("state", "")) > LONGEST_STATE:
        raise PageRefused("The request is too long.")
    if said.get("response_type") != "code":
        raise SentBack("unsupported_response_type", "The response_type is code.")
    if "request" in said or "request_uri" in said:
        raise SentBack("request_not_supported", "Request objects are not read here.")
    if said.get("response_mode", "query") != "query":
        raise SentBack("invalid_request", "The response_mode is query.")
    challenge = said.get("code_challenge", "")
    if said.get("code_challenge_method") != "S256" or _CHALLENGE.fullmatch(challenge) is None:
        raise SentBack("invalid_request", "PKCE is required: code_challenge, with code_challenge_method S256.")
    return AuthorizationRequest(
        client.id, uri, challenge, granted(said.get("scope"), face), target(said, face, SentBack), said.get("state")
    )


def granted(scope: str | None, face: FaceSettings) -> tuple[str, ...]:
    """Of what is asked for, that which there is; a client that asks for nothing gets the default."""
    asked = (scope or "").split()
    wanted = [one for one in dict.fromkeys(asked) if one != "offline_access"]
    if not wanted:
        return face.defaults
    return tuple(one for one in wanted if one in face.scopes)


def target(said: Mapping[str, str], face: FaceSettings, refusal: type[GrantRefused] | type[SentBack]) -> str:
    """RFC 8707: whom the token is for: the server behind us, or another of its endpoints, and no other server."""
    named = said.get("resource", face.resource)
    if named.rstrip("/") == face.resource.rstrip("/"):
        return face.resource
    if covers(face.issuer, named):
        return face.resource if face.audience_only else named
    raise refusal("invalid_target", "The resource is not one that tokens are given for here.")


def answer_url(request_uri: str, issuer: str, state: str | None, said: Mapping[str, str]) -> str:
    """Where the browser is sent with an answer. It names its issuer (RFC 9207)."""
    more = {**said, **({"state": state} if state is not None else {}), "iss": issuer}
    return request_uri + ("&" if urlsplit(request_uri).query else "?") + urlencode(more)


def verifies(verifier: str, challenge: str) -> bool:
    """Whether a verifier is the one that a challenge was made of (RFC 7636, section 4.6)."""
    if _VERIFIER.fullmatch(verifier) is None:
        return False
    digest = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=")
    return hmac.compare_digest(digest, challenge.encode())


def basic_credentials(authorization: str | None) -> tuple[str, str] | None:
    """A client's id and secret from its header; each half is form-encoded (RFC 6749, section 2.3.1)."""
    if authorization is None:
        return None
    scheme, _, rest = authorization.partition(" ")
    if scheme.lower() != "basic":
        raise GrantRefused("invalid_client", "Clients authenticate with Basic, or in the form.", 401)
    try:
        name, colon, secret = base64.b64decode(rest.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        colon = ""
    if not colon:
        raise GrantRefused("invalid_client", "The client's credentials cannot be read.", 401)
    return unquote_plus(name), unquote_plus(secret)


def metadata(face: FaceSettings, algorithms: Sequence[str]) -> dict[str, object]:
    """RFC 8414, section 2; the same document is served where OpenID clients look."""
    return {
        "issuer": face.issuer,
        "authorization_endpoint": face.url("/authorize"),
        "token_endpoint": face.url("/token"),
        "revocation_endpoint": face.url("/revoke"),
        "jwks_uri": face.url("/jwks.json"),
        **({"registration_endpoint": face.url("/register")} if face.registration else {}),
        "scopes_supported": list(face.scopes),
        "response_types_supported": ["code"],
        "response_modes_supported": ["query"],
        "grant_types_supported": ["authorization_code", "refresh_token"],
        "code_challenge_methods_supported": ["S256"],
        "token_endpoint_auth_methods_supported": ["none", "client_secret_basic", "client_secret_post"],
        "revocation_endpoint_auth_methods_supported": ["none", "client_secret_basic", "client_secret_post"],
        "client_id_metadata_document_supported": face.documents,
        "authorization_response_iss_parameter_supported": True,
        # OpenID clients want these, although no ID token is given out.
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": list(algorithms),
    }
