"""Authentication towards upstreams: whose credential is used, and how it is added to requests.

Each kind defines which calls may share a connection and how requests on that connection are authenticated. A
principal's credential is never used on another principal's connection.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Protocol

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from portico.auth.errors import AuthorizationError
from portico.auth.grants import Grant
from portico.auth.oauth import OAuth
from portico.auth.token_storage import MemoryStorage, TokenStorage
from portico.auth.tokens import Token
from portico.auth.url_policy import resource_covers
from portico.caching import LruCache
from portico.protocol.client_features import ElicitResult, ElicitUrlParams, InputRequest, InputRequiredResult
from portico.protocol.errors import MissingClientCapability, ToolError
from portico.protocol.jsonrpc import object_decoder
from portico.protocol.methods import INPUT_REQUIRED_METHODS
from portico.rpc.call import Call
from portico.rpc.client_requests import validate_client_request
from portico.rpc.error_ids import log_failure
from portico.transports.http_client.base import AuthenticatedTransport
from portico.transports.http_client.connection import HttpClientResponse
from portico.transports.http_client.oauth import OAuthTransport
from portico.transports.http_client.pool import HeaderItems, HttpConnectionPool, HttpUrl
from portico_gateway.credentials.connect_pages import AccountConnector
from portico_gateway.credentials.upstream_accounts import UpstreamAccount
from portico_gateway.credentials.vault_store import CredentialKey

# How long a call waits for a user who is connecting an account.
# Shorter than the usual client timeout of a minute; a user who needs longer calls the tool again.
CONNECT_WAIT_SECONDS = 45.0
# Tokens are held in memory only. A caller whose token was evicted repeats the request, which brings it along.
MAX_SUBJECT_TOKENS = 10_000
# Key of the connect request among the input requests of a call.
CONNECT_REQUEST_KEY = "portico.connect"

log = logging.getLogger("portico.access")


class UpstreamAuth(Protocol):
    """Authentication of calls to an upstream."""

    # Whether the credential depends on the caller.
    is_per_user: bool

    def sharing_key(self, call: Call) -> str | None:
        """Return the key that calls on one connection have in common; None if all calls may share one.

        Raises ToolError if the caller cannot use the upstream.
        """

    def make_sender(self, call: Call) -> AuthenticatedTransport:
        """Return the transport for a new connection, shared by calls with the same sharing key."""

    async def prepare_call(self, call: Call) -> Call | InputRequiredResult:
        """Return the call to forward, or a request for user input that comes first. Raises ToolError."""


class SharedCredential:
    """Base class for a credential that all callers share."""

    is_per_user = False

    def sharing_key(self, call: Call) -> str | None:
        return None

    async def prepare_call(self, call: Call) -> Call | InputRequiredResult:
        return call


class StaticHeaderAuth(SharedCredential):
    """A configured header."""

    def __init__(self, header: str, value: str) -> None:
        self._headers = ((header, value),)

    def make_sender(self, call: Call) -> AuthenticatedTransport:
        return _HeaderSender(lambda: self._headers)


class ClientCredentialsAuth(SharedCredential):
    """Access token of the gateway itself, from a grant without a user."""

    def __init__(self, alias: str, url: str, grant: Grant, scopes: tuple[str, ...]) -> None:
        self._alias, self._url = alias, url
        self._grant = grant
        self._scopes = scopes

    def make_sender(self, call: Call) -> AuthenticatedTransport:
        return _TokenSender(self._alias, self._url, self._grant, self._scopes)


class _SubjectTokens:
    """Latest token of each caller, by identity, client and scopes: fewer scopes never obtain a token with more."""

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._tokens: LruCache[str, str] = LruCache(MAX_SUBJECT_TOKENS)

    def remember(self, call: Call) -> str:
        """Store the caller's token and return its key. Raises ToolError if the call has no bearer token."""
        principal, token = require_principal(call, self._alias), _require_token(call, self._alias)
        scopes = getattr(call.principal, "scopes", None)
        identity = [principal, getattr(call.principal, "client_id", None), None if scopes is None else sorted(scopes)]
        key = sha256(msgspec.json.encode(identity)).hexdigest()
        # The latest token replaces the previous one: clients renew their tokens, and an exchange should use the one
        # that lives longest.
        self._tokens[key] = token
        return key

    def latest(self, key: str) -> str:
        """Return the latest token for a key. Raises ToolError if it was evicted."""
        token = self._tokens.get(key)
        if token is None:
            raise ToolError(
                (f"{self._alias}: the caller's token is no longer cached; try again."), error_type="PermissionError"
            )
        return token


class TokenExchangeAuth:
    """Token for the caller, in exchange for the caller's token: RFC 8693, or an ID-JAG."""

    is_per_user = True

    def __init__(
        self, alias: str, url: str, grant: Callable[[Callable[[], str]], Grant], scopes: tuple[str, ...]
    ) -> None:
        self._alias, self._url = alias, url
        self._grant = grant
        self._scopes = scopes
        self._subjects = _SubjectTokens(alias)

    def sharing_key(self, call: Call) -> str | None:
        return self._subjects.remember(call)

    def make_sender(self, call: Call) -> AuthenticatedTransport:
        # The grant asks for the caller's token when it is needed, so that a long-lived connection uses the current
        # one.
        grant = self._grant(partial(self._subjects.latest, self._subjects.remember(call)))
        return _TokenSender(self._alias, self._url, grant, self._scopes)

    async def prepare_call(self, call: Call) -> Call | InputRequiredResult:
        return call


class TokenPassthroughAuth:
    """The caller's own token, forwarded only if its audience includes the upstream."""

    is_per_user = True

    def __init__(self, alias: str, url: str) -> None:
        self._alias, self._url = alias, url
        self._subjects = _SubjectTokens(alias)

    def sharing_key(self, call: Call) -> str | None:
        claims = getattr(call.principal, "claims", None) or {}
        token_audience = claims.get("aud")
        audiences = token_audience if isinstance(token_audience, list) else [token_audience]
        # 2026-07-28, Authorization: a server must not forward a token that was not issued for the upstream.
        if not any(isinstance(audience, str) and resource_covers(audience, self._url) for audience in audiences):
            raise ToolError(
                f"Your token was not issued for {self._alias}: its audience does not include it, so it is not "
                "forwarded.",
                error_type="PermissionError",
            )
        return self._subjects.remember(call)

    def make_sender(self, call: Call) -> AuthenticatedTransport:
        key = self._subjects.remember(call)
        # Evaluated for each request, for the same reason: the caller's token changes while the connection stays.
        return _HeaderSender(lambda: (("Authorization", f"Bearer {self._subjects.latest(key)}"),))

    async def prepare_call(self, call: Call) -> Call | InputRequiredResult:
        return call


class ConnectedAccountAuth:
    """Each user's own account, from the token vault. Users without a connected account get a connect link."""

    is_per_user = True

    def __init__(self, account: UpstreamAccount, connector: Callable[[], AccountConnector | None]) -> None:
        self.account = account
        self._find = connector

    @property
    def _connector(self) -> AccountConnector:
        result = self._find()
        if result is None:
            raise ToolError(
                f"{self.account.alias} requires each user's own account, but this server has no login "
                "configured; ask its operator to add [auth.proxy] or [auth.login].",
                error_type="ToolExecutionError",
            )
        return result

    # The principal is qualified by its issuer, so equal subjects of two issuers have separate accounts.
    def credential_key(self, call: Call) -> CredentialKey:
        return CredentialKey(require_principal(call, self.account.alias), self.account.alias)

    def sharing_key(self, call: Call) -> str | None:
        return self.credential_key(call).principal

    def make_sender(self, call: Call) -> AuthenticatedTransport:
        return _VaultSender(self._connector, self.account, self.credential_key(call))

    async def is_connected(self, call: Call) -> bool:
        return await self._connector.vault.get_token(self.account, self.credential_key(call)) is not None

    def connect_url(self, call: Call) -> str:
        """Return the link where the caller can connect the account."""
        return self._connector.connect_url(self.credential_key(call))

    async def wait_until_connected(self, call: Call) -> bool:
        """Wait a limited time until the caller has connected the account. Return whether it is connected."""
        return await self._connector.vault.wait_until_connected(
            self.account, self.credential_key(call), CONNECT_WAIT_SECONDS
        )

    async def prepare_call(self, call: Call) -> Call | InputRequiredResult:
        slot, connector = self.credential_key(call), self._connector
        call, answer = _strip_connect_response(call)
        if answer is not None and answer.action != "accept":
            raise ToolError(
                f"{self.account.alias} was not connected, so the call was not forwarded.", error_type="PermissionError"
            )
        # Check the vault even after an answer: the user may have connected in another window, and the client's
        # "accept" proves nothing.
        if await connector.vault.get_token(self.account, slot) is not None:
            return call
        if answer is not None and await connector.vault.wait_until_connected(self.account, slot, CONNECT_WAIT_SECONDS):
            return call
        return self._connect_request(call, connector.connect_url(slot), again=answer is not None)

    def _connect_request(self, call: Call, link: str, *, again: bool) -> InputRequiredResult:
        name = self.account.title or self.account.alias
        params = ElicitUrlParams(message=f"Connect your account at {name} to use it here.", url=link)
        try:
            # Asked once. A second request in the same call would look like a loop to the user, so the link is in the
            # error instead.
            if again or call.method not in INPUT_REQUIRED_METHODS:
                raise MissingClientCapability({})
            validate_client_request(call, "elicitation/create", params)
        except MissingClientCapability:
            # The client cannot be asked to open a URL, so the link is returned in an error.
            raise not_connected_error(self.account, link) from None
        return InputRequiredResult(input_requests={CONNECT_REQUEST_KEY: InputRequest("elicitation/create", params)})


def not_connected_error(account: UpstreamAccount, link: str) -> ToolError:
    """Return the error for a caller whose account is not connected."""
    name = account.title or account.alias
    return ToolError(
        f"Your account at {name} is not connected. Open {link} in a browser, log in, and try again.",
        error_type="PermissionError",
        details={"upstream": account.alias, "url": link},
    )


def require_principal(call: Call, alias: str) -> str:
    """Return the identity of the caller, identical in every process. Raises ToolError for anonymous calls."""
    if call.principal is None:
        raise ToolError(f"{alias} requires an authenticated caller.", error_type="PermissionError")
    principal = call.principal
    return str(getattr(principal, "identity", None) or getattr(principal, "id", None) or repr(principal))


def _require_token(call: Call, alias: str) -> str:
    """Return the caller's bearer token. Raises ToolError if there is none."""
    scheme, _, token = (call.headers or {}).get(b"authorization", b"").decode("latin-1").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        # A DPoP-bound token cannot be used, since the client's key is required for each request.
        raise ToolError(f"{alias} requires the bearer token of your login, but the request has none.")
    return token.strip()


def _strip_connect_response(call: Call) -> tuple[Call, ElicitResult | None]:
    """Return the call without the response to our own connect request, and that response if there is one."""
    # A substring search avoids decoding the params of every call; a false positive is handled below.
    if CONNECT_REQUEST_KEY.encode() not in bytes(call.params):
        return call, None
    members = object_decoder.decode(call.params)
    answers = object_decoder.decode(members.pop("inputResponses", Raw(b"{}")))
    response = answers.pop(CONNECT_REQUEST_KEY, None)
    if response is None:
        return call, None
    if answers:
        members["inputResponses"] = Raw(msgspec.json.encode(answers))
    try:
        answer = msgspec.json.decode(response, type=ElicitResult)
    except msgspec.DecodeError:
        # An answer that cannot be read must not count as consent.
        answer = ElicitResult("cancel")
    return replace(call, params=Raw(msgspec.json.encode(members)), read=None), answer


# Transports


class _HeaderSender:
    """Adds headers to each request."""

    auth_generation = 0

    def __init__(self, headers: Callable[[], HeaderItems]) -> None:
        self._headers = headers

    async def send(
        self, pool: HttpConnectionPool, method: str, url: HttpUrl, headers: HeaderItems, body: bytes, operation: str
    ) -> HttpClientResponse:
        return await pool.send(method, url, (*headers, *self._headers()), body)

    async def close(self) -> None:
        """Do nothing: no resources are held."""


class _TokenSender:
    """Obtains tokens without user interaction. Failures are raised as ToolError with an error ID."""

    auth_generation = 0

    def __init__(self, alias: str, url: str, grant: Grant, scopes: tuple[str, ...]) -> None:
        self._alias = alias
        oauth = OAuth(url, grant, clock=time.time, storage=TokenStorage(MemoryStorage()), scopes=scopes)
        self._authorizer = OAuthTransport(oauth, _reject_interaction)

    async def send(
        self, pool: HttpConnectionPool, method: str, url: HttpUrl, headers: HeaderItems, body: bytes, operation: str
    ) -> HttpClientResponse:
        try:
            return await self._authorizer.send(pool, method, url, headers, body, operation)
        except AuthorizationError as failure:
            error_id = log_failure(log, f"{self._alias}: cannot obtain a token", failure)
            raise ToolError(
                f"Authorization at {self._alias} failed (error id {error_id}).", error_type="PermissionError"
            ) from None

    async def close(self) -> None:
        await self._authorizer.close()


class _VaultSender:
    """Sends requests with the token of one principal."""

    auth_generation = 0

    def __init__(self, connector: AccountConnector, account: UpstreamAccount, slot: CredentialKey) -> None:
        self._connector = connector
        self._account = account
        self._slot = slot

    async def send(
        self, pool: HttpConnectionPool, method: str, url: HttpUrl, headers: HeaderItems, body: bytes, operation: str
    ) -> HttpClientResponse:
        refused: str | None = None
        while True:
            token = await self._token(refused)
            header = ("Authorization", f"Bearer {token.access_token}")
            answer = await pool.send(method, url, (*headers, header), body)
            # Only 401 means that the token was not accepted (RFC 6750, section 3.1); with 403 another token would not
            # help.
            if answer.status != 401:
                return answer
            pool.release(url, answer)
            if refused is not None:
                # A renewed token was rejected as well, so the user must connect the account again.
                await self._connector.vault.discard_token(self._slot, token)
                raise not_connected_error(self._account, self._connector.connect_url(self._slot))
            refused = token.access_token

    async def _token(self, refused: str | None) -> Token:
        try:
            token = await self._connector.vault.get_token(self._account, self._slot, refused)
        except AuthorizationError as failure:
            error_id = log_failure(log, f"{self._account.alias}: cannot obtain a token", failure)
            raise ToolError(
                f"Your account at {self._account.alias} is temporarily unavailable (error id {error_id}).",
                error_type="PermissionError",
            ) from None
        if token is None:
            raise not_connected_error(self._account, self._connector.connect_url(self._slot))
        return token

    async def close(self) -> None:
        """Do nothing: no resources are held."""


async def _reject_interaction(url: str, redirect_uri: str) -> str:
    """Raise AuthorizationError: a grant for the gateway itself must not need a browser."""
    raise AuthorizationError("the grant requires user interaction, which is not available here")
