"""Clients of the face: configured, registered (RFC 7591), or named by the URL of their own metadata document."""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec
from msgspec import Struct

from portico.auth.client_registration import BASIC, NONE, POST
from portico.auth.url_policy import names_loopback
from portico.protocol.json_depth import decode_bounded
from portico_gateway.authserver.errors import GrantRefused, PageRefused
from portico_gateway.credentials.encryption import digest

LONGEST_DOCUMENT = 32 * 1024
LONGEST_URI = 2048
LONGEST_NAME = 100
MOST_REDIRECT_URIS = 20

# Schemes that run or show something in the browser or the operating system: a code sent there goes astray, comes back
# as a script, or starts an installation. Those that begin with `ms-` or `web+` are refused as well.
_NEVER = frozenset(
    {"javascript", "data", "vbscript", "file", "blob", "about", "filesystem", "view-source", "ws", "wss", "ftp"}
    | {"search", "shell", "jar", "mailto", "tel", "sms", "ssh", "telnet", "ldap", "smb", "intent", "market", "itms"}
    | {"chrome", "edge", "res", "mk", "mhtml", "hcp", "steam", "itms-apps", "itms-services", "microsoft-edge"}
)
_NEVER_PREFIXES = ("ms-", "web+", "search-", "chrome-", "moz-")
# RFC 8252, 7.1: the scheme of an application is a domain name of its author, reversed. These clients have others.
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
_HOST = re.compile(r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*\.?|[0-9a-f:.]+")
_UNFIT = re.compile(r"[^\x21-\x7e]|[\\<>\"^`{|}]")


class KnownClient(Struct, frozen=True, kw_only=True):
    """A client, however it became known. What it says of itself is for people to read, and no proof."""

    id: str
    redirect_uris: tuple[str, ...]
    name: str = ""
    kind: Literal["configured", "registered", "document"] = "configured"
    # The digest of its secret; None: it has none, and PKCE alone ties a code to it.
    secret: str | None = None
    method: str = NONE

    @property
    def host(self) -> str | None:
        """Where its document is, which is the one thing about it that was verified."""
        return urlsplit(self.id).hostname if self.kind == "document" else None


class _ClientDocument(Struct, frozen=True):
    """The members that matter of a client's metadata (RFC 7591, section 2)."""

    redirect_uris: list[str]
    client_id: str | None = None
    client_name: str | None = None
    grant_types: tuple[str, ...] = ("authorization_code",)
    response_types: tuple[str, ...] = ("code",)
    token_endpoint_auth_method: str | None = None


def is_document_url(client_id: str) -> bool:
    """Whether a client id is the URL of a document: https, with a path and nothing that reads in two ways."""
    if not client_id.startswith("https://") or len(client_id) > LONGEST_URI or _UNFIT.search(client_id):
        return False
    try:
        parts = urlsplit(client_id)
        fit = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    dotted = any(unquote(step) in (".", "..") for step in parts.path.split("/"))
    return fit and "@" not in parts.netloc and "#" not in client_id and parts.path not in ("", "/") and not dotted


def read_document(url: str, status: int, body: bytes) -> KnownClient:
    """The client that a document describes. Its `client_id` is its own address, to the letter."""
    if status != 200:
        raise PageRefused(f"The client's document was answered with HTTP {status}.")
    found = _read(body)
    if found is None or found.client_id != url:
        raise PageRefused("The client's document cannot be read, or is about another client.")
    if found.token_endpoint_auth_method not in (None, NONE):
        raise PageRefused("The client's document asks for a way to authenticate that we do not have: only none.")
    try:
        uris = checked_redirect_uris(found.redirect_uris)
    except GrantRefused as unfit:
        raise PageRefused(f"The client's document is no good: {unfit}") from None
    return KnownClient(id=url, redirect_uris=uris, name=shown(found.client_name), kind="document")


def read_registration(body: bytes) -> tuple[KnownClient, str | None]:
    """A client that registers itself, and its secret if it wants one."""
    found = _read(body)
    if found is None:
        raise GrantRefused(
            "invalid_client_metadata", "The body is no client metadata: a JSON object with redirect_uris."
        )
    if not set(found.grant_types) <= {"authorization_code", "refresh_token"} or found.response_types != ("code",):
        raise GrantRefused("invalid_client_metadata", "Only authorization_code and refresh_token are granted here.")
    method = found.token_endpoint_auth_method or BASIC
    if method not in (NONE, BASIC, POST):
        raise GrantRefused("invalid_client_metadata", f"Clients authenticate with {NONE}, {BASIC} or {POST}.")
    uris = checked_redirect_uris(found.redirect_uris)
    secret = None if method == NONE else secrets.token_urlsafe(32)
    client = KnownClient(
        id=f"dcr-{secrets.token_urlsafe(16)}",
        redirect_uris=uris,
        name=shown(found.client_name),
        kind="registered",
        secret=None if secret is None else digest(secret),
        method=method,
    )
    return client, secret


def registration_answer(client: KnownClient, secret: str | None, now: float) -> dict[str, Any]:
    """What a client is told that registered (RFC 7591, section 3.2.1)."""
    given = {"client_secret": secret, "client_secret_expires_at": 0} if secret is not None else {}
    return {
        "client_id": client.id,
        "client_id_issued_at": int(now),
        **given,
        "redirect_uris": list(client.redirect_uris),
        "client_name": client.name,
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": client.method,
    }


RedirectKind = Literal["web", "loopback", "application"]


def checked_redirect_uris(uris: Sequence[str], *, configured: bool = False) -> tuple[str, ...]:
    """Return the redirect URIs of a client. Raises GrantRefused for one that no browser may be sent to.

    `configured`: the operator has listed them, so that an application may have any scheme that is not dangerous.
    """
    if not 0 < len(uris) <= MOST_REDIRECT_URIS:
        raise GrantRefused("invalid_redirect_uri", f"A client has 1 to {MOST_REDIRECT_URIS} redirect URIs.")
    for uri in uris:
        if redirect_kind(uri, configured=configured) is None:
            raise GrantRefused(
                "invalid_redirect_uri",
                "A redirect URI must be https, http on a loopback address, or have a scheme that is a reverse domain "
                "name, such as com.example.app:/callback (RFC 8252, 7.1). The operator can register other schemes.",
            )
    return tuple(uris)


def redirect_kind(uri: str, *, configured: bool = False) -> RedirectKind | None:
    """Return what a redirect URI leads to, or None if no browser may be sent there. Registration, client documents and
    the authorization endpoint all decide by this."""
    if len(uri) > LONGEST_URI or _UNFIT.search(uri) or "#" in uri:
        return None
    parts = _split(uri)
    if parts is None or "@" in parts.netloc or _SCHEME.fullmatch(parts.scheme) is None:
        return None
    scheme, host = parts.scheme, parts.hostname or ""
    if scheme in ("http", "https"):
        if not _HOST.fullmatch(host):
            return None
        return "loopback" if names_loopback(host) else "web" if scheme == "https" else None
    if scheme in _NEVER or scheme.startswith(_NEVER_PREFIXES):
        return None
    known = scheme in KNOWN_SCHEMES or _REVERSE_DOMAIN.fullmatch(scheme) is not None
    return "application" if known or configured else None


def destination(uri: str) -> str:
    """Return where a redirect URI leads, in words for the user. A host is named where it decides who gets the answer;
    of an application the scheme does, and what stands behind it is its own business. Hosts are ASCII: names in other
    scripts have their `xn--` form."""
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https"):
        return f"an application on this device, by the scheme {parts.scheme}:"
    if names_loopback(parts.hostname or ""):
        return "an application on this computer"
    return f"{parts.hostname}:{parts.port}" if parts.port not in (None, 443) else parts.hostname or ""


def redirects_to(client: KnownClient, uri: str) -> bool:
    """Whether a redirect URI is one of the client's: the same text; on its own machine any port (RFC 8252, 7.3)."""
    fit = redirect_kind(uri, configured=client.kind == "configured") is not None
    return fit and is_among(uri, client.redirect_uris)


def is_among(uri: str, registered: Iterable[str]) -> bool:
    """Whether a redirect URI is one of these; on a loopback address the port may differ."""
    return any(uri == one or _same_but_port(uri, one) for one in registered)


def _same_but_port(uri: str, registered: str) -> bool:
    one, other = _split(uri), _split(registered)
    if one is None or other is None or one.scheme != "http" or not names_loopback(one.hostname or ""):
        return False
    return (one.scheme, one.hostname, one.path, one.query) == (other.scheme, other.hostname, other.path, other.query)


def authenticated(client: KnownClient, form: Mapping[str, str], basic: tuple[str, str] | None) -> bool:
    """Whether a client has shown itself in the way that it registered for."""
    if client.secret is None:
        return basic is None or basic[1] == ""
    given = basic[1] if basic is not None else form.get("client_secret", "")
    return hmac.compare_digest(digest(given), client.secret)


def shown(name: str | None) -> str:
    """A name that another party chose, fit for a page: one line, bounded, no marks that turn text around."""
    kept = "".join(char if char.isprintable() else " " for char in (name or "")[: 4 * LONGEST_NAME])
    return " ".join(kept.split())[:LONGEST_NAME]


def _split(uri: str) -> SplitResult | None:
    try:
        parts = urlsplit(uri)
        return parts if parts.port != 0 else None
    except ValueError:
        return None


def _read(body: bytes) -> _ClientDocument | None:
    if len(body) > LONGEST_DOCUMENT:
        return None
    try:
        said = decode_bounded(body)
        present = {name: value for name, value in said.items() if value is not None} if isinstance(said, dict) else said
        return msgspec.convert(present, _ClientDocument)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
