"""Console authentication: a browser signs in with a one-time token or a login, and must use our own page.

Two credentials are required with every request. Scripts cannot read the cookie, but browsers send it to every port of a
machine, where other users may listen. The page stores the session key, which other ports cannot read, but scripts can.
Only the combination is accepted.
"""

from __future__ import annotations

import hmac
import re
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from portico.auth.principal import Principal, StaticTokens
from portico.caching import LruCache
from portico.protocol.errors import ToolError, UsageError
from portico.transports.http_server.application import is_local_peer
from portico.transports.http_server.headers import LOOPBACK_HOSTS
from portico.transports.http_server.messages import JSON_HEADERS, TEXT_HEADERS, HeaderPairs, HttpRequest, HttpResponse

if TYPE_CHECKING:
    from portico.server.context.context import Context

# A custom header cannot be set by a cross-origin page without a CORS preflight, and the key is in the page's memory,
# not in a cookie. Together with the cookie it prevents cross-site request forgery.
SESSION_KEY_HEADER = b"portico-console"
# Unused login links expire after this time.
LOGIN_TOKEN_TTL_SECONDS = 24 * 3600.0
SESSION_TTL_SECONDS = 24 * 3600.0
MAX_TOKEN_BYTES = 16 * 1024
# An evicted token ends its session at the next request; the user signs in again.
MAX_REMEMBERED_TOKENS = 1000
# Browsers reject longer cookies, including name and attributes.
MAX_COOKIE_BYTES = 3800

# Only the sandbox for apps may be framed; all other files may not.
# Trusted types and no inline scripts: text of servers is shown everywhere in the console, so an injected script must
# not run even if one place forgets to escape.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; media-src data: blob:; "
    "font-src 'self'; connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; frame-src 'self'; require-trusted-types-for 'script'"
)
# Headers of every response; API responses have no others.
BASE_SECURITY_HEADERS: HeaderPairs = (
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
)
SECURITY_HEADERS: HeaderPairs = (
    *BASE_SECURITY_HEADERS,
    (b"content-security-policy", _POLICY.encode()),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)
_PRIVATE: HeaderPairs = (*JSON_HEADERS, (b"cache-control", b"no-store"), *SECURITY_HEADERS)
# Proxy headers: a proxy makes a remote request look like a local one.
_PROXY_HEADERS = (b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip", b"forwarded", b"via")
_COOKIE = re.compile(rb"(?:^|;)\s*([!-:>-~]+)=([!-:<-~]*)")

Identify = Callable[[HttpRequest], Awaitable[Any]]
"""The principal that a request shows; None if it shows none that is good."""


class ConsoleAccess(Struct, frozen=True):
    """Who may use the console: `local`, browsers on this machine with a printed link; `scope:NAME`, users whose tokens
    have that scope.
    """

    scope: str | None = None

    @classmethod
    def parse(cls, text: str) -> ConsoleAccess | None:
        """Parse the value of --console; None means that the console is disabled."""
        # An unknown value is an error instead of a default: a typo must not open the console to more users.
        if text == "off":
            return None
        if text == "local":
            return cls()
        name, mark, scope = text.partition(":")
        if name != "scope" or not mark or not re.fullmatch(r"[!#-\[\]-~]+", scope):
            raise UsageError(f"--console must be off, local or scope:NAME, got {text!r}")
        return cls(scope)


# The owner of this process, who opened a link that it printed. No issuer can have this name.
# The issuer contains a space, which no URL of an issuer can.
OWNER = Principal("owner", issuer="portico console")


class BrowserSession(Struct, frozen=True, forbid_unknown_fields=True):
    """A signed-in browser: of the owner of this process (`OWNER`), or of the principal of its token."""

    id: str
    until: float
    principal: Principal


def visitor_of(ctx: Context) -> Principal | None:
    """Return the signed-in principal, or None for the owner.

    The owner is signed in as `OWNER`, or is the program that created the console and calls it in process. Raises
    ToolError for HTTP requests without a session.
    """
    principal: Principal | None = ctx.principal
    if principal == OWNER:
        return None
    # An HTTP request reaches this point only with a session. The check remains, because without it a mistake in the
    # routes would make every visitor the owner.
    if principal is None and ctx.client_address is not None:
        raise ToolError("Sign in first.", error_type="PermissionError")
    return principal


class ConsoleAuthenticator:
    """Creates login links, exchanges their tokens for sessions, and authenticates requests."""

    def __init__(
        self,
        access: ConsoleAccess,
        secret: bytes,
        mark_used: Callable[[str, float], Awaitable[bool]],
        login_hint: str = "",
    ) -> None:
        self.access = access
        # How to get a new link, shown to users without one.
        self.login_hint = login_hint
        # The server's own tokens are accepted as well.
        self.tokens: StaticTokens | None = None
        self.identify: Identify | None = None
        self.secret = secret
        # Marks a token as used; False if it was already used, in any process.
        self._spend = mark_used
        # Session keys after logout, until their sessions would have expired.
        self._logged_out_keys: dict[bytes, float] = {}
        # The bearer tokens of sessions, by session key, to check for revocation.
        self._shown: LruCache[bytes, bytes] = LruCache(MAX_REMEMBERED_TOKENS)

    # Links

    def create_login_token(self) -> str:
        """Create a one-time login token."""
        return self._sign("token", f"{secrets.token_urlsafe(12)}.{int(time.time() + LOGIN_TOKEN_TTL_SECONDS)}")

    def login_url(self, url: str) -> str:
        """Return a login link.

        The token is in the fragment, so that it appears in no log or Referer header, and link previews do not use it
        up.
        """
        return f"{url}#token={self.create_login_token()}"

    def _sign(self, purpose: str, text: str) -> str:
        return f"{text}.{self._signature(purpose, text)}"

    def _signature(self, purpose: str, text: str) -> str:
        # `what` separates the uses: a signed login token can never be presented as a cookie or a session key.
        digest = hmac.digest(self.secret, f"portico console {purpose}\n{text}".encode(), "sha256")
        return urlsafe_b64encode(digest[:24]).decode()

    @property
    def _cookie_kind(self) -> str:
        """Return the signature context of cookies. It includes the access mode, so that changing it ends existing
        sessions.
        """
        return "cookie" if self.access.scope is None else f"cookie scope:{self.access.scope}"

    def _verify(self, purpose: str, signed: str) -> str | None:
        text, _, signature = signed.rpartition(".")
        # compare_digest takes constant time, so a signature cannot be guessed byte by byte.
        good = signed.isascii() and hmac.compare_digest(signature.encode(), self._signature(purpose, text).encode())
        return text if good else None

    # Checks before the body is read

    def check_page_request(self, request: HttpRequest) -> HttpResponse | None:
        """Return the rejection of a page request, or None: with local access other machines see no console."""
        # 404 instead of 403: with local access, other users must not learn that the console exists.
        if self.access.scope is None and not _is_local(request):
            return HttpResponse(404, TEXT_HEADERS, b"Not found\n")
        return None

    def check_post_request(self, request: HttpRequest) -> HttpResponse | None:
        """Return the rejection of a request with side effects, or None: only our own page may send it."""
        return self.check_page_request(request) or _check_origin(request) or _check_content_type(request)

    def check_api_request(self, request: HttpRequest) -> HttpResponse | None:
        """Return the rejection of an API request, or None."""
        return self.check_post_request(request) or self.check_session(request)

    def check_session(self, request: HttpRequest) -> HttpResponse | None:
        """Authenticate the session of a request; return the rejection, or None."""
        visitor = self.get_session(request)
        if visitor is None:
            return self.unauthorized_response()
        request.principal, request.until = visitor.principal, visitor.until
        return None

    def unauthorized_response(self) -> HttpResponse:
        """Return the response for a request without a session."""
        error = {
            "code": -32600,
            "message": "Sign in first",
            "data": {"how": self.login_hint, "scope": self.access.scope},
        }
        body = msgspec.json.encode({"jsonrpc": "2.0", "id": None, "error": error})
        return HttpResponse(401, _PRIVATE, body)

    def get_session(self, request: HttpRequest) -> BrowserSession | None:
        """Return the session of a request if both the cookie and the key are valid."""
        result = dict(_COOKIE.findall(request.headers.get(b"cookie", b""))).get(_cookie_name(request))
        # Two Cookie headers could be combined differently by a proxy and by this server.
        if result is None or b"cookie" in request.headers.duplicates:
            return None
        text = self._verify(self._cookie_kind, result.decode("latin-1"))
        if text is None:
            return None
        try:
            visitor = msgspec.json.decode(urlsafe_b64decode(text), type=BrowserSession)
        except msgspec.DecodeError:
            # Signed by a release whose sessions had no named owner.
            return None
        key = request.headers.get(SESSION_KEY_HEADER, b"")
        # Both the cookie and the key are needed: the cookie alone would be sent by any page of the same site.
        if not hmac.compare_digest(key, self._signature("key", visitor.id).encode()) or visitor.until <= time.time():
            return None
        return None if key in self._logged_out_keys else visitor

    # Signing in and out

    async def login(self, request: HttpRequest) -> HttpResponse:
        """Exchange a token for a session."""
        try:
            token = msgspec.json.decode(request.body, type=_LoginRequest).token
        except msgspec.DecodeError:
            return _json_error(400, "a login must be an object with a token")
        bearer = b"Bearer " + token.encode() if _is_token(token) else b""
        visitor = await self._create_session(token, bearer, request) if bearer else None
        if visitor is None:
            return _json_error(401, "the token is invalid or was already used")
        try:
            text = urlsafe_b64encode(msgspec.json.encode(visitor)).decode()
        except (TypeError, ValueError):
            return _json_error(403, "the claims of this token cannot be stored in a cookie")
        cookie = self._sign(self._cookie_kind, text)
        if len(cookie) > MAX_COOKIE_BYTES:
            # Access rules may use any claim, so none is omitted.
            return _json_error(403, "the claims of this token do not fit into a cookie")
        # HttpOnly hides the cookie from scripts, and SameSite=Strict keeps links of other sites from using it.
        about = f"Path=/console; Max-Age={int(visitor.until - time.time())}; HttpOnly; SameSite=Strict"
        about += "; Secure" if request.secure else ""
        headers = (*_PRIVATE, (b"set-cookie", b"%b=%b; %b" % (_cookie_name(request), cookie.encode(), about.encode())))
        key = self._signature("key", visitor.id)
        if visitor.principal != OWNER:
            self._shown[key.encode()] = bearer
        return HttpResponse(200, headers, msgspec.json.encode({"key": key}))

    async def _create_session(self, token: str, bearer: bytes, request: HttpRequest) -> BrowserSession | None:
        principal, ends = await self._identify_bearer(bearer, request)
        # Only a link signs in the owner: a token grants access to the endpoint only.
        # With `scope:NAME` there are no links: everyone, including the operator, signs in with a token.
        if principal is None:
            if self.access.scope is not None or not await self._redeem_login_token(token):
                return None
            principal = OWNER
        until = time.time() + SESSION_TTL_SECONDS
        # A session never outlives the token with which it was opened.
        return BrowserSession(secrets.token_urlsafe(12), min(until, ends or until), principal)

    async def _identify_bearer(self, bearer: bytes, request: HttpRequest) -> tuple[Principal | None, float | None]:
        """Return the principal of a token and its expiry."""
        if self.access.scope is None:
            return (None if self.tokens is None else self.tokens.verify(bearer)), None
        if self.identify is None:
            return None, None
        # The token is checked exactly as the endpoint would check it, with the same issuers, audience and
        # revocations.
        headers = type(request.headers)({**request.headers, b"authorization": bearer})
        bearer_request = msgspec.structs.replace(request, headers=headers, query="", body=b"", principal=None)
        principal = await self.identify(bearer_request)
        if not isinstance(principal, Principal) or principal == OWNER or principal.missing_scopes({self.access.scope}):
            return None, None
        return principal, bearer_request.until

    async def is_token_still_valid(self, request: HttpRequest) -> bool:
        """Return whether the visitor's token is still valid for the same principal.

        The token is known to the process in which the visitor signed in, which receives all requests of the page.
        """
        if request.principal == OWNER:
            return True
        if request.principal is None:
            return False
        bearer = self._shown.get(request.headers.get(SESSION_KEY_HEADER, b""))
        principal = None if bearer is None else (await self._identify_bearer(bearer, request))[0]
        # A token may be reissued for another user by a broken issuer; the session belongs to the first.
        return principal is not None and principal.identity == request.principal.identity

    async def _redeem_login_token(self, token: str) -> bool:
        text = self._verify("token", token)
        if text is None:
            return False
        expires = float(text.rpartition(".")[2])
        # The signature is checked first, so that forged tokens do not fill the store of used ones.
        return expires > time.time() and await self._spend(f"console {text}", expires)

    def logout(self, request: HttpRequest) -> HttpResponse:
        """End the session of this browser."""
        now = time.time()
        if self.get_session(request) is not None:
            remaining = {key: until for key, until in self._logged_out_keys.items() if until > now}
            self._logged_out_keys = {
                **remaining,
                request.headers.get(SESSION_KEY_HEADER, b""): now + SESSION_TTL_SECONDS,
            }
            self._shown.pop(request.headers.get(SESSION_KEY_HEADER, b""), None)
        expired_cookie = b"%b=; Path=/console; Max-Age=0; HttpOnly; SameSite=Strict" % _cookie_name(request)
        return HttpResponse(204, ((b"set-cookie", expired_cookie), (b"cache-control", b"no-store"), *SECURITY_HEADERS))


def _is_token(text: str) -> bool:
    return 0 < len(text) <= MAX_TOKEN_BYTES and text.isascii() and text.isprintable() and " " not in text


class _LoginRequest(Struct):
    token: str


def _json_error(status: int, text: str) -> HttpResponse:
    return HttpResponse(status, _PRIVATE, msgspec.json.encode({"error": text}))


def _is_local(request: HttpRequest) -> bool:
    """Return whether a request comes from this machine under a loopback name. Other names may be DNS rebinding."""
    # A reverse proxy connects from this machine for clients anywhere, so its headers disqualify a request.
    if not is_local_peer(request.peer) or any(name in request.headers for name in _PROXY_HEADERS):
        return False
    host = request.headers.get(b"host", b"").decode("latin-1").strip(" \t").lower()
    # An IPv6 literal in brackets contains colons, and only what follows the bracket is a port.
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    return name.removeprefix("[").removesuffix("]").removesuffix(".") in LOOPBACK_HOSTS


def _check_origin(request: HttpRequest) -> HttpResponse | None:
    """Return a rejection unless the request comes from the console's own page.

    CORS settings may allow other pages to use the server, but not the console. Another port of the same machine is the
    same site, so the cookie alone would admit it.
    """
    headers = request.headers
    site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
    own = b"%b://%b" % (b"https" if request.secure else b"http", headers.get(b"host", b"").strip(b" \t"))
    if site not in (None, b"same-origin") or (origin is not None and origin.lower() != own.lower()):
        return _json_error(403, "the console accepts requests from its own page only")
    return None


def _check_content_type(request: HttpRequest) -> HttpResponse | None:
    """Return a rejection unless the body is JSON: HTML forms cannot send it, so other pages need a CORS preflight."""
    kind = request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    return None if kind == b"application/json" else _json_error(415, "the body must be application/json")


def _cookie_name(request: HttpRequest) -> bytes:
    """Return the cookie name for the port: browsers share cookies between all ports of a machine."""
    host = request.headers.get(b"host", b"").decode("latin-1").strip(" \t")
    port = host.rpartition(":")[2] if not host.endswith("]") else ""
    return f"portico_console_{port if port.isdecimal() else ('443' if request.secure else '80')}".encode()
