"""OAuth clients: configured, dynamically registered (RFC 7591), or identified by the URL of a metadata document."""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec
from msgspec import Struct

from portico.auth.client_registration import AUTH_NONE, CLIENT_SECRET_BASIC, CLIENT_SECRET_POST, DEVICE_CODE
from portico.auth.url_policy import is_loopback_name
from portico.protocol.json_depth import decode_bounded
from portico_gateway.authserver.errors import ErrorPageResponse, OAuthErrorResponse
from portico_gateway.credentials.encryption import digest

MAX_DOCUMENT_BYTES = 32 * 1024
MAX_URI_CHARS = 2048
MAX_NAME_CHARS = 100
MAX_REDIRECT_URIS = 20

# Schemes that execute or display content in the browser or the operating system. A code sent there can leak, run as a
# script or start an installation. Schemes with one of `_NEVER_PREFIXES` are rejected as well.
_NEVER = frozenset(
    {"javascript", "data", "vbscript", "file", "blob", "about", "filesystem", "view-source", "ws", "wss", "ftp"}
    | {"search", "shell", "jar", "mailto", "tel", "sms", "ssh", "telnet", "ldap", "smb", "intent", "market", "itms"}
    | {"chrome", "edge", "res", "mk", "mhtml", "hcp", "steam", "itms-apps", "itms-services", "microsoft-edge"}
)
_NEVER_PREFIXES = ("ms-", "web+", "search-", "chrome-", "moz-")
# RFC 8252, section 7.1: an application's scheme is a reversed domain name of its author. These clients use other
# schemes.
KNOWN_SCHEMES = frozenset(
    {
        "cursor",
        "vscode",
        "vscode-insiders",
        "vscodium",
        "code-oss",
        "windsurf",
        "windsurf-next",
        "claude",
        "zed",
        "trae",
    }
    | {"kiro", "warp", "warppreview", "raycast", "goose", "jetbrains", "lmstudio", "postman", "insomnia", "positron"}
)
_REVERSE_DOMAIN = re.compile(r"[a-z][a-z0-9-]*(?:\.[a-z0-9-]+)+")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{1,100}")
# The host is matched against ASCII only; internationalized names must be in their `xn--` form.
_HOST = re.compile(r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*\.?|[0-9a-f:.]+")
# Characters that browsers and URL parsers treat differently (control characters, spaces, backslashes, brackets).
_UNFIT = re.compile(r"[^\x21-\x7e]|[\\<>\"^`{|}]")


class OAuthClient(Struct, frozen=True, kw_only=True):
    """An OAuth client. Its self-declared metadata is for display only and proves nothing."""

    id: str
    redirect_uris: tuple[str, ...]
    name: str = ""
    kind: Literal["configured", "registered", "document"] = "configured"
    # Digest of the client secret. None for a public client, where only PKCE binds a code to the client.
    secret: str | None = None
    method: str = AUTH_NONE
    # Whether it may use the device authorization grant. Clients opt in: without a redirect URI, nothing but a secret
    # shows that a request comes from the client it names.
    device_grant: bool = False

    @property
    def metadata_host(self) -> str | None:
        """Return the host of the metadata document, the only verified fact about such a client, or None."""
        return urlsplit(self.id).hostname if self.kind == "document" else None


class _ClientDocument(Struct, frozen=True):
    """Members of a client metadata document that the server uses (RFC 7591, section 2)."""

    redirect_uris: list[str]
    client_id: str | None = None
    client_name: str | None = None
    grant_types: tuple[str, ...] = ("authorization_code",)
    response_types: tuple[str, ...] = ("code",)
    token_endpoint_auth_method: str | None = None


def is_metadata_document_url(client_id: str) -> bool:
    """Return whether a client ID is a metadata document URL: https, with a path, and unambiguous for every URL
    parser.
    """
    if not client_id.startswith("https://") or len(client_id) > MAX_URI_CHARS or _UNFIT.search(client_id):
        return False
    try:
        parts = urlsplit(client_id)
        fit = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    # Dot segments and userinfo are read differently by different URL parsers; the URL is the client's identity, so it
    # must be unambiguous.
    dotted = any(unquote(step) in (".", "..") for step in parts.path.split("/"))
    return fit and "@" not in parts.netloc and "#" not in client_id and parts.path not in ("", "/") and not dotted


def read_document(url: str, status: int, body: bytes) -> OAuthClient:
    """Parse a client metadata document. Its `client_id` must be identical to its URL.

    Raises ErrorPageResponse if the document is invalid.
    """
    if status != 200:
        raise ErrorPageResponse(f"The client's metadata document could not be loaded: HTTP {status}.")
    result = _read(body)
    # Otherwise any host could publish a document in the name of another client.
    if result is None or result.client_id != url:
        raise ErrorPageResponse("The client's metadata document is invalid, or its client_id differs from its URL.")
    # A public document cannot contain a secret, and private_key_jwt is not supported; such a client is bound by PKCE.
    if result.token_endpoint_auth_method not in (None, AUTH_NONE):
        raise ErrorPageResponse(
            "The client's metadata document has an unsupported token_endpoint_auth_method: expected none."
        )
    try:
        uris = validate_redirect_uris(result.redirect_uris)
    except OAuthErrorResponse as unfit:
        raise ErrorPageResponse(f"The client's metadata document is invalid: {unfit}") from None
    return OAuthClient(
        id=url,
        redirect_uris=uris,
        name=sanitize_display_name(result.client_name),
        kind="document",
        device_grant=DEVICE_CODE in result.grant_types,
    )


def parse_registration(body: bytes, grant_types: Sequence[str]) -> tuple[OAuthClient, str | None]:
    """Parse a registration request and return the client and its secret, or None for a public client.

    `grant_types` are the supported ones. Only a client for the device grant may have no redirect URI.

    Raises OAuthErrorResponse with `invalid_client_metadata` or `invalid_redirect_uri`.
    """
    result = _read(body)
    if result is None:
        raise OAuthErrorResponse(
            "invalid_client_metadata", "The body must be client metadata: a JSON object with redirect_uris."
        )
    uses_code = "authorization_code" in result.grant_types or DEVICE_CODE not in result.grant_types
    if not set(result.grant_types) <= set(grant_types) or (uses_code and result.response_types != ("code",)):
        raise OAuthErrorResponse(
            "invalid_client_metadata",
            f"grant_types must be among {', '.join(grant_types)}, and response_types must be code.",
        )
    method = result.token_endpoint_auth_method or CLIENT_SECRET_BASIC
    if method not in (AUTH_NONE, CLIENT_SECRET_BASIC, CLIENT_SECRET_POST):
        raise OAuthErrorResponse(
            "invalid_client_metadata",
            f"token_endpoint_auth_method must be {AUTH_NONE}, {CLIENT_SECRET_BASIC} or {CLIENT_SECRET_POST}.",
        )
    uris = validate_redirect_uris(result.redirect_uris) if uses_code or result.redirect_uris else ()
    secret = None if method == AUTH_NONE else secrets.token_urlsafe(32)
    client = OAuthClient(
        # The prefix separates registered clients from configured ones and from metadata URLs, so no registration can
        # claim their IDs.
        id=f"dcr-{secrets.token_urlsafe(16)}",
        redirect_uris=uris,
        name=sanitize_display_name(result.client_name),
        kind="registered",
        secret=None if secret is None else digest(secret),
        method=method,
        device_grant=DEVICE_CODE in result.grant_types,
    )
    return client, secret


def registration_response(client: OAuthClient, secret: str | None, now: float) -> dict[str, Any]:
    """Return the body of a successful registration response (RFC 7591, section 3.2.1)."""
    secret_members = {"client_secret": secret, "client_secret_expires_at": 0} if secret is not None else {}
    return {
        "client_id": client.id,
        "client_id_issued_at": int(now),
        **secret_members,
        "redirect_uris": list(client.redirect_uris),
        "client_name": client.name,
        "grant_types": [
            *(["authorization_code"] if client.redirect_uris else []),
            "refresh_token",
            *([DEVICE_CODE] if client.device_grant else []),
        ],
        "response_types": ["code"] if client.redirect_uris else [],
        "token_endpoint_auth_method": client.method,
    }


RedirectKind = Literal["web", "loopback", "application"]


def validate_redirect_uris(uris: Sequence[str], *, configured: bool = False) -> tuple[str, ...]:
    """Return the redirect URIs of a client as a tuple. Raises OAuthErrorResponse if one of them is not allowed.

    `configured` means that the operator listed them; an application may then use any scheme that is not dangerous.
    """
    if not 0 < len(uris) <= MAX_REDIRECT_URIS:
        raise OAuthErrorResponse("invalid_redirect_uri", f"redirect_uris must contain 1 to {MAX_REDIRECT_URIS} URIs.")
    for uri in uris:
        if redirect_kind(uri, configured=configured) is None:
            raise OAuthErrorResponse(
                "invalid_redirect_uri",
                "A redirect URI must be https, http on a loopback address, or have a scheme that is a reverse domain "
                "name, such as com.example.app:/callback (RFC 8252, 7.1). The operator can register other schemes.",
            )
    return tuple(uris)


def redirect_kind(uri: str, *, configured: bool = False) -> RedirectKind | None:
    """Return the kind of a redirect URI, or None if browsers must not be redirected to it.

    Registration, metadata documents and the authorization endpoint all use this function, so that no path is weaker.
    """
    if len(uri) > MAX_URI_CHARS or _UNFIT.search(uri) or "#" in uri:
        return None
    parts = _split(uri)
    if parts is None or "@" in parts.netloc or _SCHEME.fullmatch(parts.scheme) is None:
        return None
    scheme, host = parts.scheme, parts.hostname or ""
    if scheme in ("http", "https"):
        if not _HOST.fullmatch(host):
            return None
        # Plain http is acceptable only where the code never leaves the machine (RFC 8252, section 8.3).
        return "loopback" if is_loopback_name(host) else "web" if scheme == "https" else None
    # Even the operator cannot allow these: browsers would run the code as a script or open a local file.
    if scheme in _NEVER or scheme.startswith(_NEVER_PREFIXES):
        return None
    is_known = scheme in KNOWN_SCHEMES or _REVERSE_DOMAIN.fullmatch(scheme) is not None
    return "application" if is_known or configured else None


def destination(uri: str) -> str:
    """Describe the target of a redirect URI for the user.

    The description names the part that decides who receives the code: the host of a web URL, the scheme of an
    application. Hosts are ASCII; internationalized names are in their `xn--` form.
    """
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https"):
        return f"an application on this device, by the scheme {parts.scheme}:"
    if is_loopback_name(parts.hostname or ""):
        return "an application on this computer"
    return f"{parts.hostname}:{parts.port}" if parts.port not in (None, 443) else parts.hostname or ""


def matches_redirect_uri(client: OAuthClient, uri: str) -> bool:
    """Return whether a redirect URI is registered for a client.

    URIs are compared as strings, except that loopback URIs may use any port (RFC 8252, section 7.3).
    """
    fit = redirect_kind(uri, configured=client.kind == "configured") is not None
    return fit and is_among(uri, client.redirect_uris)


def is_among(uri: str, registered: Iterable[str]) -> bool:
    """Return whether a redirect URI is in `registered`, ignoring the port of loopback addresses."""
    return any(uri == item or _same_but_port(uri, item) for item in registered)


def _same_but_port(uri: str, registered: str) -> bool:
    requested, other = _split(uri), _split(registered)
    if (
        requested is None
        or other is None
        or requested.scheme != "http"
        or not is_loopback_name(requested.hostname or "")
    ):
        return False
    return (requested.scheme, requested.hostname, requested.path, requested.query) == (
        other.scheme,
        other.hostname,
        other.path,
        other.query,
    )


def verify_client_authentication(client: OAuthClient, form: Mapping[str, str], basic: tuple[str, str] | None) -> bool:
    """Return whether a client authenticated with the method that it registered."""
    # Many libraries send an empty password for public clients; any other password is a mistake or an attack.
    if client.secret is None:
        return basic is None or basic[1] == ""
    secret = basic[1] if basic is not None else form.get("client_secret", "")
    # Compare digests in constant time: a timing difference would reveal a prefix of the secret.
    return hmac.compare_digest(digest(secret), client.secret)


def sanitize_display_name(name: str | None) -> str:
    """Return a third-party name that is safe to display: one line, of limited length, without bidirectional
    controls.
    """
    printable = "".join(char if char.isprintable() else " " for char in (name or "")[: 4 * MAX_NAME_CHARS])
    return " ".join(printable.split())[:MAX_NAME_CHARS]


def _split(uri: str) -> SplitResult | None:
    try:
        parts = urlsplit(uri)
        return parts if parts.port != 0 else None
    except ValueError:
        return None


def _read(body: bytes) -> _ClientDocument | None:
    """Decode a client metadata document, or return None if it is too large or invalid."""
    if len(body) > MAX_DOCUMENT_BYTES:
        return None
    try:
        document = decode_bounded(body)
        present = (
            {name: value for name, value in document.items() if value is not None}
            if isinstance(document, dict)
            else document
        )
        return msgspec.convert(present, _ClientDocument)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
