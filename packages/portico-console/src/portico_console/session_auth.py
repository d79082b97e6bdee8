"""Who may use the console: a browser that has shown a one-time token, or a login, and comes from our own page.

Two things prove it with every request. The cookie is out of reach for scripts; but browsers send it to every port of a
machine, where others may listen. The key is kept by the page, which other ports cannot read; but scripts can. Only
both together are good.
"""

from __future__ import annotations

import hmac
import re
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from portico.auth.principal import BearerTokens, Principal
from portico.protocol.errors import ToolError, UsageError
from portico.transports.http_server.application import is_near
from portico.transports.http_server.headers import LOOPBACK
from portico.transports.http_server.messages import JSON, TEXT, Answer, Pairs, Request

if TYPE_CHECKING:
    from portico.server.context.context import Context

KEY_HEADER = b"portico-console"
# A link that was not opened is no good after this.
TOKEN_SECONDS = 24 * 3600.0
SESSION_SECONDS = 24 * 3600.0
LONGEST_TOKEN = 16 * 1024
MOST_SHOWN = 1000
# Browsers keep no cookie that is longer, with its name and all that is said of it.
LONGEST_COOKIE = 3800

# Of frames there is that of apps: all other files may not be shown in one.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; media-src data: blob:; "
    "font-src 'self'; connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; frame-src 'self'; require-trusted-types-for 'script'"
)
# What every answer says; one of the endpoint nothing else.
APART: Pairs = (
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
)
SAFE: Pairs = (
    *APART,
    (b"content-security-policy", _POLICY.encode()),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)
_PRIVATE: Pairs = (*JSON, (b"cache-control", b"no-store"), *SAFE)
# What a proxy says, which makes a request from afar look like one from here.
_FORWARDED = (b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip", b"forwarded", b"via")
_COOKIE = re.compile(rb"(?:^|;)\s*([!-:>-~]+)=([!-:<-~]*)")

Identify = Callable[[Request], Awaitable[Any]]
"""The principal that a request shows; None if it shows none that is good."""


class ConsoleAccess(Struct, frozen=True):
    """Who is let in: `local`, browsers on this machine with a link that the command has printed; or `scope:NAME`,
    people whose tokens have that scope."""

    scope: str | None = None

    @classmethod
    def read(cls, text: str) -> ConsoleAccess | None:
        """None: there is to be no console."""
        if text == "off":
            return None
        if text == "local":
            return cls()
        name, mark, scope = text.partition(":")
        if name != "scope" or not mark or not re.fullmatch(r"[!#-\[\]-~]+", scope):
            raise UsageError(f"--console is off, local or scope:NAME, not {text!r}")
        return cls(scope)


# The owner of this process, who has opened a link that it has printed. No issuer has such a name.
OWNER = Principal("owner", issuer="portico console")


class PageVisitor(Struct, frozen=True, forbid_unknown_fields=True):
    """A browser that has signed in: as the owner of this process (`OWNER`), or as the principal of its token."""

    id: str
    until: float
    principal: Principal


def visitor_of(ctx: Context) -> Principal | None:
    """Return the principal that has signed in to the console; None for its owner.

    The owner is a principal too, or the program that has made the console and calls it inside of its process. Raises
    ToolError for a caller over HTTP that has not signed in.
    """
    principal: Principal | None = ctx.principal
    if principal == OWNER:
        return None
    if principal is None and ctx.address is not None:
        raise ToolError("Sign in first.", kind="PermissionError")
    return principal


class ConsoleGate:
    """Gives out links, exchanges what they carry for a session, and knows the requests of one."""

    def __init__(
        self, access: ConsoleAccess, secret: bytes, spend: Callable[[str, float], Awaitable[bool]], how: str = ""
    ) -> None:
        self.access = access
        # How to get a new link, for people who have none.
        self.how = how
        # The server's own tokens are good as well.
        self.tokens: BearerTokens | None = None
        self.identify: Identify | None = None
        self.secret = secret
        # Whether something is used for the first time, in all processes.
        self._spend = spend
        # The keys of those who have left, until their sessions would have ended.
        self._left: dict[bytes, float] = {}
        # What those have shown who came with a token, by their keys: it may be taken back from them.
        self._shown: OrderedDict[bytes, bytes] = OrderedDict()

    # Links

    def token(self) -> str:
        """A one-time token."""
        return self._signed("token", f"{secrets.token_urlsafe(12)}.{int(time.time() + TOKEN_SECONDS)}")

    def link(self, url: str) -> str:
        """Behind the #, so that it is in no log and in no Referer, and nothing happens when a program looks at the
        link before its owner does."""
        return f"{url}#token={self.token()}"

    def _signed(self, what: str, text: str) -> str:
        return f"{text}.{self._signature(what, text)}"

    def _signature(self, what: str, text: str) -> str:
        digest = hmac.digest(self.secret, f"portico console {what}\n{text}".encode(), "sha256")
        return urlsafe_b64encode(digest[:24]).decode()

    @property
    def _cookie_kind(self) -> str:
        """Who was let in on other terms, before this port was served again, is not let in on these."""
        return "cookie" if self.access.scope is None else f"cookie scope:{self.access.scope}"

    def _verified(self, what: str, signed: str) -> str | None:
        text, _, signature = signed.rpartition(".")
        good = signed.isascii() and hmac.compare_digest(signature.encode(), self._signature(what, text).encode())
        return text if good else None

    # Judging, before a body is read

    def refuse_visit(self, request: Request) -> Answer | None:
        """Why a browser does not even get the page: for other machines there is no console."""
        if self.access.scope is None and not _is_local(request):
            return Answer(404, TEXT, b"Not found\n")
        return None

    def refuse_post(self, request: Request) -> Answer | None:
        """The same for what does something: only our own page may ask for it."""
        return self.refuse_visit(request) or _refuse_foreign(request) or _refuse_kind(request)

    def refuse_call(self, request: Request) -> Answer | None:
        return self.refuse_post(request) or self.refuse_unknown(request)

    def refuse_unknown(self, request: Request) -> Answer | None:
        """The part of it that is about who, and not about from where."""
        visitor = self.visitor(request)
        if visitor is None:
            return self.unknown()
        request.principal, request.until = visitor.principal, visitor.until
        return None

    def unknown(self) -> Answer:
        error = {"code": -32600, "message": "Sign in first", "data": {"how": self.how, "scope": self.access.scope}}
        body = msgspec.json.encode({"jsonrpc": "2.0", "id": None, "error": error})
        return Answer(401, _PRIVATE, body)

    def visitor(self, request: Request) -> PageVisitor | None:
        """Whose browser a request comes from, if both the cookie and the key are good."""
        found = dict(_COOKIE.findall(request.headers.get(b"cookie", b""))).get(_cookie_name(request))
        if found is None or b"cookie" in request.headers.repeated:
            return None
        text = self._verified(self._cookie_kind, found.decode("latin-1"))
        if text is None:
            return None
        try:
            visitor = msgspec.json.decode(urlsafe_b64decode(text), type=PageVisitor)
        except msgspec.DecodeError:
            # A release that knew no owner by name has signed it.
            return None
        key = request.headers.get(KEY_HEADER, b"")
        if not hmac.compare_digest(key, self._signature("key", visitor.id).encode()) or visitor.until <= time.time():
            return None
        return None if key in self._left else visitor

    # Signing in and out

    async def login(self, request: Request) -> Answer:
        try:
            token = msgspec.json.decode(request.body, type=_Login).token
        except msgspec.DecodeError:
            return _says(400, "a login is an object with a token")
        bearer = b"Bearer " + token.encode() if _is_token(token) else b""
        visitor = await self._welcome(token, bearer, request) if bearer else None
        if visitor is None:
            return _says(401, "this token is not good here, or was used before")
        try:
            text = urlsafe_b64encode(msgspec.json.encode(visitor)).decode()
        except (TypeError, ValueError):
            return _says(403, "what this token says of you cannot be kept in a cookie")
        cookie = self._signed(self._cookie_kind, text)
        if len(cookie) > LONGEST_COOKIE:
            # Rules may go by any of it, so that nothing is left out.
            return _says(403, "this token says more of you than fits into a cookie")
        about = f"Path=/console; Max-Age={int(visitor.until - time.time())}; HttpOnly; SameSite=Strict"
        about += "; Secure" if request.secure else ""
        headers = (*_PRIVATE, (b"set-cookie", b"%b=%b; %b" % (_cookie_name(request), cookie.encode(), about.encode())))
        key = self._signature("key", visitor.id)
        if visitor.principal != OWNER:
            self._shown[key.encode()] = bearer
            if len(self._shown) > MOST_SHOWN:
                self._shown.popitem(last=False)
        return Answer(200, headers, msgspec.json.encode({"key": key}))

    async def _welcome(self, token: str, bearer: bytes, request: Request) -> PageVisitor | None:
        principal, ends = await self._identified(bearer, request)
        # Only a link is for the owner: who has a token has it for what it may do at the endpoint.
        if principal is None:
            if self.access.scope is not None or not await self._is_link(token):
                return None
            principal = OWNER
        until = time.time() + SESSION_SECONDS
        return PageVisitor(secrets.token_urlsafe(12), min(until, ends or until), principal)

    async def _identified(self, bearer: bytes, request: Request) -> tuple[Principal | None, float | None]:
        """Whom a token is good for here, and until when."""
        if self.access.scope is None:
            return (None if self.tokens is None else self.tokens.verify(bearer)), None
        if self.identify is None:
            return None, None
        headers = type(request.headers)({**request.headers, b"authorization": bearer})
        shown = msgspec.structs.replace(request, headers=headers, query="", body=b"", principal=None)
        principal = await self.identify(shown)
        if not isinstance(principal, Principal) or principal == OWNER or principal.lacks({self.access.scope}):
            return None, None
        return principal, shown.until

    async def stands(self, request: Request) -> bool:
        """Whether the token that a visitor came with is still good for the same person. It is known where they have
        signed in, which is the process that all requests of the page are sent to."""
        if request.principal == OWNER:
            return True
        if request.principal is None:
            return False
        bearer = self._shown.get(request.headers.get(KEY_HEADER, b""))
        principal = None if bearer is None else (await self._identified(bearer, request))[0]
        return principal is not None and principal.identity == request.principal.identity

    async def _is_link(self, token: str) -> bool:
        text = self._verified("token", token)
        if text is None:
            return False
        expires = float(text.rpartition(".")[2])
        return expires > time.time() and await self._spend(f"console {text}", expires)

    def logout(self, request: Request) -> Answer:
        """From now on this browser is unknown."""
        now = time.time()
        if self.visitor(request) is not None:
            kept = {key: until for key, until in self._left.items() if until > now}
            self._left = {**kept, request.headers.get(KEY_HEADER, b""): now + SESSION_SECONDS}
            self._shown.pop(request.headers.get(KEY_HEADER, b""), None)
        gone = b"%b=; Path=/console; Max-Age=0; HttpOnly; SameSite=Strict" % _cookie_name(request)
        return Answer(204, ((b"set-cookie", gone), (b"cache-control", b"no-store"), *SAFE))


def _is_token(text: str) -> bool:
    return 0 < len(text) <= LONGEST_TOKEN and text.isascii() and text.isprintable() and " " not in text


class _Login(Struct):
    token: str


def _says(status: int, text: str) -> Answer:
    return Answer(status, _PRIVATE, msgspec.json.encode({"error": text}))


def _is_local(request: Request) -> bool:
    """From this machine, and by one of its own names: another name may have been made to lead here."""
    if not is_near(request.peer) or any(name in request.headers for name in _FORWARDED):
        return False
    host = request.headers.get(b"host", b"").decode("latin-1").strip(" \t").lower()
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    return name.removeprefix("[").removesuffix("]").removesuffix(".") in LOOPBACK


def _refuse_foreign(request: Request) -> Answer | None:
    """Other pages may be allowed to talk to this server; the console is for its own. Another port of the same machine
    is the same site, so that the cookie alone would let it in."""
    headers = request.headers
    site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
    own = b"%b://%b" % (b"https" if request.secure else b"http", headers.get(b"host", b"").strip(b" \t"))
    if site not in (None, b"same-origin") or (origin is not None and origin.lower() != own.lower()):
        return _says(403, "the console is for its own page alone")
    return None


def _refuse_kind(request: Request) -> Answer | None:
    """A form cannot say this, so that a page elsewhere has to ask first, and is told no."""
    kind = request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    return None if kind == b"application/json" else _says(415, "the body must be application/json")


def _cookie_name(request: Request) -> bytes:
    """One for each port: browsers keep the cookies of all ports of a machine together."""
    host = request.headers.get(b"host", b"").decode("latin-1").strip(" \t")
    port = host.rpartition(":")[2] if not host.endswith("]") else ""
    return f"portico_console_{port if port.isdecimal() else ('443' if request.secure else '80')}".encode()
