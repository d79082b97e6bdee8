"""Credentials towards upstreams: whose they are, and how they get onto a request.

Each kind says of a call what those have in common who may share a connection, and how requests on that connection are
sent. A credential of one principal is never on a connection of another.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Protocol

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from portico.auth.errors import AuthorizationFailed
from portico.auth.grants import Grant
from portico.auth.oauth import OAuth
from portico.auth.token_storage import Credentials, Memory
from portico.auth.tokens import Token
from portico.auth.url_policy import covers
from portico.protocol.client_features import ElicitResult, ElicitUrlParams, InputRequest, InputRequiredResult
from portico.protocol.errors import MissingCapability, ToolError
from portico.protocol.methods import ASKABLE
from portico.rpc.call import Call
from portico.rpc.client_requests import require
from portico.rpc.error_ids import log_failure
from portico.transports.http_client.base import RequestSender
from portico.transports.http_client.connection import Response
from portico.transports.http_client.oauth import Authorizer
from portico.transports.http_client.pool import Headers, Location, Pool
from portico_gateway.credentials.connect_pages import Connector
from portico_gateway.credentials.upstream_accounts import UpstreamAccount
from portico_gateway.credentials.vault_store import CredentialSlot

# How long a call waits for its person, who is on the way through the pages.
CONNECT_SECONDS = 45.0
MOST_SUBJECTS = 10_000
# What the question for a page is called among the questions of a call.
QUESTION = "portico.connect"

log = logging.getLogger("portico.access")

_members = msgspec.json.Decoder(dict[str, Raw])


class OutgoingAuth(Protocol):
    """How an upstream is told on whose behalf it is asked."""

    # Whether that is the one who asks us.
    personal: bool

    def share(self, call: Call) -> str | None:
        """What the calls on one connection have in common; None: all may share one. Raises ToolError."""

    def sender(self, call: Call) -> RequestSender:
        """For a connection that is made for this call, and used for those that may share it."""

    async def prepare(self, call: Call) -> Call | InputRequiredResult:
        """The call as it goes on; or a question to its client first. Raises ToolError."""


class _Everybody:
    """A credential of our own, the same for all."""

    personal = False

    def share(self, call: Call) -> str | None:
        return None

    async def prepare(self, call: Call) -> Call | InputRequiredResult:
        return call


class StaticAuth(_Everybody):
    """A header that was configured."""

    def __init__(self, header: str, value: str) -> None:
        self._headers = ((header, value),)

    def sender(self, call: Call) -> RequestSender:
        return _HeaderSender(lambda: self._headers)


class GrantAuth(_Everybody):
    """A token for ourselves, by a grant that needs no person."""

    def __init__(self, alias: str, url: str, grant: Grant, scopes: tuple[str, ...]) -> None:
        self._alias, self._url = alias, url
        self._grant = grant
        self._scopes = scopes

    def sender(self, call: Call) -> RequestSender:
        return _GrantSender(self._alias, self._url, self._grant, self._scopes)


class _Subjects:
    """The tokens that callers have shown last, by who they are and what they may do: one with fewer scopes is never
    taken for one with more."""

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._tokens: OrderedDict[str, str] = OrderedDict()

    def note(self, call: Call) -> str:
        who, token = principal_of(call, self._alias), _token_of(call, self._alias)
        scopes = getattr(call.principal, "scopes", None)
        said = [who, getattr(call.principal, "client_id", None), None if scopes is None else sorted(scopes)]
        key = sha256(msgspec.json.encode(said)).hexdigest()
        self._tokens[key] = token
        self._tokens.move_to_end(key)
        while len(self._tokens) > MOST_SUBJECTS:
            self._tokens.popitem(last=False)
        return key

    def latest(self, key: str) -> str:
        token = self._tokens.get(key)
        if token is None:
            raise ToolError(f"{self._alias} needs to know again who asks; try again.", kind="PermissionError")
        return token


class ExchangeAuth:
    """A token for the caller, in exchange for the one that they have shown: RFC 8693, or an ID-JAG."""

    personal = True

    def __init__(
        self, alias: str, url: str, grant: Callable[[Callable[[], str]], Grant], scopes: tuple[str, ...]
    ) -> None:
        self._alias, self._url = alias, url
        self._grant = grant
        self._scopes = scopes
        self._subjects = _Subjects(alias)

    def share(self, call: Call) -> str | None:
        return self._subjects.note(call)

    def sender(self, call: Call) -> RequestSender:
        grant = self._grant(partial(self._subjects.latest, self._subjects.note(call)))
        return _GrantSender(self._alias, self._url, grant, self._scopes)

    async def prepare(self, call: Call) -> Call | InputRequiredResult:
        return call


class SameAudienceAuth:
    """The caller's own token, where it was made for the upstream as well: its audience names it. No other passes."""

    personal = True

    def __init__(self, alias: str, url: str) -> None:
        self._alias, self._url = alias, url
        self._subjects = _Subjects(alias)

    def share(self, call: Call) -> str | None:
        claims = getattr(call.principal, "claims", None) or {}
        said = claims.get("aud")
        audiences = said if isinstance(said, list) else [said]
        if not any(isinstance(one, str) and covers(one, self._url) for one in audiences):
            raise ToolError(
                f"Your token is not for {self._alias}: its audience does not name it, so it is not passed on.",
                kind="PermissionError",
            )
        return self._subjects.note(call)

    def sender(self, call: Call) -> RequestSender:
        key = self._subjects.note(call)
        return _HeaderSender(lambda: (("Authorization", f"Bearer {self._subjects.latest(key)}"),))

    async def prepare(self, call: Call) -> Call | InputRequiredResult:
        return call


class UserAuth:
    """Each person's own account, out of the vault. Who has not connected it yet is sent to the connect page."""

    personal = True

    def __init__(self, account: UpstreamAccount, connector: Callable[[], Connector | None]) -> None:
        self.account = account
        self._find = connector

    @property
    def _connector(self) -> Connector:
        found = self._find()
        if found is None:
            raise ToolError(
                f"{self.account.alias} wants each person's own account, and this server has no login for people: its "
                "operator has to configure one.",
                kind="ToolExecutionError",
            )
        return found

    def slot(self, call: Call) -> CredentialSlot:
        return CredentialSlot(principal_of(call, self.account.alias), self.account.alias)

    def share(self, call: Call) -> str | None:
        return self.slot(call).principal

    def sender(self, call: Call) -> RequestSender:
        return _VaultSender(self._connector, self.account, self.slot(call))

    async def is_connected(self, call: Call) -> bool:
        return await self._connector.vault.token(self.account, self.slot(call)) is not None

    def link(self, call: Call) -> str:
        """Where the caller can connect their account."""
        return self._connector.link(self.slot(call))

    async def wait(self, call: Call) -> bool:
        """Wait until the caller has connected their account, but not for long. Returns whether they have."""
        return await self._connector.vault.wait(self.account, self.slot(call), CONNECT_SECONDS)

    async def prepare(self, call: Call) -> Call | InputRequiredResult:
        slot, connector = self.slot(call), self._connector
        call, answer = _without_answer(call)
        if answer is not None and answer.action != "accept":
            raise ToolError(f"{self.account.alias} was not connected, so it was not asked.", kind="PermissionError")
        if await connector.vault.token(self.account, slot) is not None:
            return call
        if answer is not None and await connector.vault.wait(self.account, slot, CONNECT_SECONDS):
            return call
        return self._question(call, connector.link(slot), again=answer is not None)

    def _question(self, call: Call, link: str, *, again: bool) -> InputRequiredResult:
        name = self.account.title or self.account.alias
        params = ElicitUrlParams(message=f"Connect your account at {name}, to use it from here.", url=link)
        try:
            if again or call.method not in ASKABLE:
                raise MissingCapability({})
            require(call, "elicitation/create", params)
        except MissingCapability:
            # Who cannot be asked can be told.
            raise refusal(self.account, link) from None
        return InputRequiredResult(input_requests={QUESTION: InputRequest("elicitation/create", params)})


def refusal(account: UpstreamAccount, link: str) -> ToolError:
    name = account.title or account.alias
    return ToolError(
        f"Your account at {name} is not connected. Open {link} in a browser, log in, and try again.",
        kind="PermissionError",
        details={"upstream": account.alias, "url": link},
    )


def principal_of(call: Call, alias: str) -> str:
    """Who asks, in every process the same."""
    if call.principal is None:
        raise ToolError(
            f"{alias} is used in the name of the person who asks, and that is not known.", kind="PermissionError"
        )
    principal = call.principal
    return str(getattr(principal, "identity", None) or getattr(principal, "id", None) or repr(principal))


def _token_of(call: Call, alias: str) -> str:
    scheme, _, token = (call.headers or {}).get(b"authorization", b"").decode("latin-1").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        # One that is bound to a key of the client's is of no use to us, and none of our business.
        raise ToolError(f"{alias} needs the token that you log in with, and there is none that can be used.")
    return token.strip()


def _without_answer(call: Call) -> tuple[Call, ElicitResult | None]:
    """The call as the upstream is to see it, and the answer to our own question, if it has one."""
    if QUESTION.encode() not in bytes(call.params):
        return call, None
    members = _members.decode(call.params)
    answers = _members.decode(members.pop("inputResponses", Raw(b"{}")))
    given = answers.pop(QUESTION, None)
    if given is None:
        return call, None
    if answers:
        members["inputResponses"] = Raw(msgspec.json.encode(answers))
    try:
        answer = msgspec.json.decode(given, type=ElicitResult)
    except msgspec.DecodeError:
        answer = ElicitResult("cancel")
    return replace(call, params=Raw(msgspec.json.encode(members)), read=None), answer


# On the way


class _HeaderSender:
    identity = 0

    def __init__(self, headers: Callable[[], Headers]) -> None:
        self._headers = headers

    async def send(
        self, pool: Pool, method: str, location: Location, headers: Headers, body: bytes, operation: str
    ) -> Response:
        return await pool.send(method, location, (*headers, *self._headers()), body)

    async def close(self) -> None:
        """There is nothing open."""


class _GrantSender:
    """The client's own way to a token, without a person. What goes wrong with it is told as such."""

    identity = 0

    def __init__(self, alias: str, url: str, grant: Grant, scopes: tuple[str, ...]) -> None:
        self._alias = alias
        oauth = OAuth(url, grant, clock=time.time, credentials=Credentials(Memory()), scopes=scopes)
        self._authorizer = Authorizer(oauth, _no_person)

    async def send(
        self, pool: Pool, method: str, location: Location, headers: Headers, body: bytes, operation: str
    ) -> Response:
        try:
            return await self._authorizer.send(pool, method, location, headers, body, operation)
        except AuthorizationFailed as failure:
            error_id = log_failure(log, f"{self._alias} gave no token", failure)
            raise ToolError(
                f"{self._alias} does not let us in (error id {error_id}).", kind="PermissionError"
            ) from None

    async def close(self) -> None:
        await self._authorizer.close()


class _VaultSender:
    """Requests in the name of one principal."""

    identity = 0

    def __init__(self, connector: Connector, account: UpstreamAccount, slot: CredentialSlot) -> None:
        self._connector = connector
        self._account = account
        self._slot = slot

    async def send(
        self, pool: Pool, method: str, location: Location, headers: Headers, body: bytes, operation: str
    ) -> Response:
        refused: str | None = None
        while True:
            token = await self._token(refused)
            shown = ("Authorization", f"Bearer {token.access_token}")
            answer = await pool.send(method, location, (*headers, shown), body)
            if answer.status != 401:
                return answer
            pool.give_back(location, answer)
            if refused is not None:
                # One that was just given, and is not taken either: its person has to look.
                await self._connector.vault.forget(self._slot, token)
                raise refusal(self._account, self._connector.link(self._slot))
            refused = token.access_token

    async def _token(self, refused: str | None) -> Token:
        try:
            token = await self._connector.vault.token(self._account, self._slot, refused)
        except AuthorizationFailed as failure:
            error_id = log_failure(log, f"{self._account.alias} gave no token", failure)
            raise ToolError(
                f"Your account at {self._account.alias} cannot be used now (error id {error_id}).",
                kind="PermissionError",
            ) from None
        if token is None:
            raise refusal(self._account, self._connector.link(self._slot))
        return token

    async def close(self) -> None:
        """There is nothing open."""


async def _no_person(url: str, redirect_uri: str) -> str:
    raise AuthorizationFailed("It wants to show a page to a person, and there is none here.")
