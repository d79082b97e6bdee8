"""The client's side of authorization: from a request that is refused to one that is not.

    auth = OAuth("https://example.com/mcp", AuthorizationCode("http://127.0.0.1:8976/callback"), clock=time.time)

    attempt = auth.attempt("tools/call forecast")
    while True:
        headers = hold(attempt.headers("POST", url))
        answer = post(url, headers)
        if not hold(attempt.again(answer)):
            break

`hold` is the driver of `conversation.py`. Only one conversation of an OAuth may be held at a time: a driver that sends
several requests at once takes a lock around `hold`, and none around the request. A request that waited for it then
finds the token that the other got.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from portico._options import explained
from portico.auth.assertions import ALGORITHM, Prover
from portico.auth.challenges import Demand, demand
from portico.auth.errors import DiscoveryFailed, GrantDenied, ScopeRejected, TokenRejected, quoted
from portico.auth.flow import Conversation, Fetched
from portico.auth.grants import Ask, Grant
from portico.auth.metadata import DiscoveredServer, MetadataSearch, discover
from portico.auth.token_storage import Credentials
from portico.auth.tokens import Token
from portico.auth.url_policy import check_url, same_origin
from portico.protocol.errors import UsageError

OFFLINE = "offline_access"

# For one operation: once because the token lacks the scopes, once more because people click in haste.
_STEP_UPS = 2
# A refusal that says nothing about what was refused.
_PASSING = ("", "server_error", "temporarily_unavailable", "slow_down")
# For one request, whatever the reasons: the user is not asked without end.
_TRIES = 6


class OAuth:
    """The tokens for one server, and all that it takes to have one.

    `scopes` are asked for in addition to those of a challenge, and instead of those in the server's metadata. `dpop`:
    None binds tokens to a key where the server asks for that, True insists on it, False never does.
    """

    @explained
    def __init__(
        self,
        server: str,
        grant: Grant,
        *,
        clock: Callable[[], float],
        credentials: Credentials | None = None,
        scopes: Iterable[str] = (),
        dpop: bool | None = None,
        dpop_digest: bool = False,
        revision: str | None = None,
        tolerate_slash: bool = False,
    ) -> None:
        check_url(server)
        self._search = MetadataSearch(server, revision, tolerate_slash)
        self._grant = grant
        self.clock = clock
        self._credentials = Credentials() if credentials is None else credentials
        self._scopes = tuple(scopes)
        self._dpop = dpop
        self._dpop_digest = dpop_digest
        self._found: DiscoveredServer | None = None
        self._token: Token | None = None
        self.prover: Prover | None = None
        self._recalled = False
        self._step_ups: dict[tuple[str, frozenset[str]], int] = {}

    @property
    def server(self) -> str:
        return self._search.server

    @property
    def token(self) -> Token | None:
        """The token in use, whether or not it still works."""
        if not self._recalled:
            self._recalled = True
            self._adopt(self._fit(self._credentials.last_token(self.server)))
        return self._token

    def attempt(self, operation: str = "") -> Attempt:
        """One request, with as many tries as it takes, up to a bound. `operation` names what it does, for counting."""
        return Attempt(self, operation)

    def authorize(self, answer: Fetched | None = None) -> Conversation[Token]:
        """A new token, whatever there is already: what a login command wants. `answer` is a refusal that led here."""
        asked = Demand() if answer is None else demand(answer)
        return (yield from self._obtain((yield from self._discover(asked)), asked))

    def forget(self) -> None:
        """Log out, as far as this machine goes."""
        if self.token is not None:
            self._credentials.forget_token(self.token)
        self._adopt(None)

    # For attempts.

    def current(self) -> Conversation[Token | None]:
        """The token to send now. One that ran out is renewed first, if it is known already where."""
        token = self.token
        if token is None or not token.expired(self.clock()):
            return token
        found = self._found
        if token.refresh_token is None or found is None:
            return None  # the refusal will say where to turn
        if (found.server.issuer, found.resource) != (token.issuer, token.resource):
            return None
        return (yield from self._refresh(found, token))

    def renew(self, asked: Demand, refused: set[str], tried: set[str]) -> Conversation[Token | None]:
        """A token in place of those that were refused, by what was not tried yet. None: all was."""
        found = yield from self._discover(asked)
        # Another process may have logged in, or refreshed, in the meantime.
        held = self._fit(self._credentials.token(found.server.issuer, found.resource))
        if held is not None and held.access_token not in refused and not held.expired(self.clock()):
            self._adopt(held)
            return held
        if held is not None and held.refresh_token is not None and "refresh" not in tried:
            tried.add("refresh")
            refreshed = yield from self._refresh(found, held)
            if refreshed is not None:
                return refreshed
        if "grant" in tried:
            return None
        tried.add("grant")
        return (yield from self._obtain(found, asked))

    def step_up(self, operation: str, asked: Demand, steps: int) -> Conversation[Token]:
        """A token with more scopes: those challenged, and all that were asked for before."""
        had = () if self._token is None else (*self._token.asked, *self._token.scope.split())
        key = operation, frozenset(asked.scopes)
        tries = self._step_ups.get(key, 0)
        # If there is nothing to ask for that was not asked for already, asking twice is nagging.
        if steps >= _STEP_UPS or tries >= (_STEP_UPS if set(asked.scopes) - set(had) else _STEP_UPS - 1):
            raise ScopeRejected(
                f"{quoted(self.server)} wants the scopes {quoted(' '.join(asked.scopes))} for "
                f"{quoted(operation or 'this request')}, and refused the token that we got with them"
                + (f": {quoted(asked.error_description)}" if asked.error_description else "")
                + ". The account may lack the permission; the operator of the server can tell."
            )
        self._step_ups[key] = tries + 1
        found = yield from self._discover(asked)
        return (yield from self._obtain(found, asked))

    def settled(self, operation: str) -> None:
        """An operation went through: whatever was tried for it is history."""
        for key in [key for key in self._step_ups if key[0] == operation]:
            del self._step_ups[key]

    def _discover(self, asked: Demand) -> Conversation[DiscoveredServer]:
        # Afresh each time. Where a server's tokens come from may change, and this is how one learns of it.
        prefer = self.token.issuer if self.token is not None else None
        self._found = yield from discover(self._search, asked, prefer)
        return self._found

    def _obtain(self, found: DiscoveredServer, asked: Demand) -> Conversation[Token]:
        prover = self._prover_for(found, asked)
        token = yield from self._grant.token(self._ask(found, self._choose(found, asked), prover))
        self.prover = prover  # with the nonces that it learned on the way
        return self._keep(token)

    def _refresh(self, found: DiscoveredServer, held: Token) -> Conversation[Token | None]:
        """The token, renewed. None: the refresh token is of no use any more, and forgotten."""
        kept = self._credentials.token(held.issuer, held.resource)
        if kept is not None and kept.access_token != held.access_token and not kept.expired(self.clock()):
            self._adopt(kept)
            return kept
        self._adopt(held)
        try:
            token = yield from self._grant.refresh(self._ask(found, held.asked, self.prover), held)
        except GrantDenied as error:
            if error.error in _PASSING:
                raise
            kept = self._credentials.token(held.issuer, held.resource)
            if kept is not None and kept.refresh_token != held.refresh_token:
                self._adopt(kept)  # another process was quicker, and used it up
                return kept
            self._keep(msgspec.structs.replace(held, refresh_token=None))
            return None
        return self._keep(token)

    def _choose(self, found: DiscoveredServer, asked: Demand) -> tuple[str, ...]:
        """Which scopes to ask for (2026-07-28, Scope Selection Strategy; and Step-Up Authorization Flow)."""
        scopes = [*(asked.scopes or (() if self._scopes else found.scopes)), *self._scopes]
        if self._token is not None and self._token.resource == found.resource:
            # What was granted stays granted: a challenge names what is missing, not what is had.
            scopes = [*self._token.asked, *self._token.scope.split(), *scopes]
        # Not the resource's to ask for, and of use only where the authorization server has it.
        scopes = [scope for scope in dict.fromkeys(scopes) if scope != OFFLINE]
        # With no scope at all the issuer's default applies. To name this one alone would turn the default off.
        if scopes and self._grant.offline and OFFLINE in (found.server.scopes_supported or ()):
            scopes.append(OFFLINE)
        return tuple(scopes)

    def _prover_for(self, found: DiscoveredServer, asked: Demand) -> Prover | None:
        wanted = self._dpop if self._dpop is not None else asked.dpop_only or found.dpop_required
        if not wanted:
            return None
        if ALGORITHM not in (found.server.dpop_signing_alg_values_supported or ()):
            raise DiscoveryFailed(
                f"Tokens for {quoted(self.server)} are to be bound to a key (DPoP, {ALGORITHM}), and "
                f"{quoted(found.server.issuer)} does not say that it can do that."
            )
        return self.prover or Prover(self.clock, digest=self._dpop_digest)

    def _fit(self, token: Token | None) -> Token | None:
        """A token from the store, if it is of the type that is wanted now."""
        unfit = token is not None and self._dpop is not None and self._dpop != (token.type == "DPoP")
        return None if unfit else token

    def _ask(self, found: DiscoveredServer, scopes: tuple[str, ...], prover: Prover | None) -> Ask:
        return Ask(
            server=self.server,
            found=found,
            scopes=scopes,
            credentials=self._credentials,
            clock=self.clock,
            prover=prover,
        )

    def _keep(self, token: Token) -> Token:
        self._credentials.keep_token(self.server, token)
        self._adopt(token)
        return token

    def _adopt(self, token: Token | None) -> None:
        self._token = token
        if token is None or token.key is None:
            self.prover = None
        elif self.prover is None or self.prover.key != token.key:
            self.prover = Prover(self.clock, token.key, digest=self._dpop_digest)


class Attempt:
    """One request, and how often it was tried."""

    def __init__(self, oauth: OAuth, operation: str) -> None:
        self._oauth = oauth
        self._operation = operation
        self._url = oauth.server
        self._sent: Token | None = None
        self._nonce: str | None = None
        self._tries = 0
        self._steps = 0
        self._refused: set[str] = set()
        self._tried: set[str] = set()

    def headers(self, method: str, url: str, body: bytes | None = None) -> Conversation[dict[str, str]]:
        """What to send along with the request; nothing while there is no token."""
        if not same_origin(url, self._oauth.server):
            raise UsageError(f"a token for {self._oauth.server} is not to be sent to {url}")
        self._url = url
        self._sent = token = yield from self._oauth.current()
        if token is None:
            return {}
        if token.type == "Bearer":
            return {"Authorization": f"Bearer {token.access_token}"}
        prover = self._oauth.prover
        assert prover is not None
        self._nonce = prover.nonce(url)
        proof = prover.proof(method, url, token.access_token, body)
        return {"Authorization": f"DPoP {token.access_token}", "DPoP": proof}

    def again(self, answer: Fetched) -> Conversation[bool]:
        """Whether to send the request again, after whatever it takes. It wants to see every answer, also the good ones.

        False leaves the answer to the caller; what cannot be mended is raised.
        """
        if (prover := self._oauth.prover) is not None:
            prover.note(self._url, answer)
        if answer.status not in (401, 403):
            self._oauth.settled(self._operation)
            return False
        asked = demand(answer)
        if answer.status == 403 and asked.error != "insufficient_scope":
            return False  # forbidden, and no token would change that
        self._tries += 1
        if self._tries > _TRIES:
            raise TokenRejected(f"{quoted(self._oauth.server)} refused {_TRIES} tokens in a row.")
        if asked.error == "use_dpop_nonce" and prover is not None and prover.nonce(self._url) != self._nonce:
            return True
        if self._sent is not None:
            self._refused.add(self._sent.access_token)
        token = self._oauth.token
        if token is not None and token.access_token not in self._refused and not token.expired(self._oauth.clock()):
            return True  # while this request was on its way, another one got a new token
        if asked.error == "insufficient_scope":
            yield from self._oauth.step_up(self._operation, asked, self._steps)
            self._steps += 1
            return True
        if (yield from self._oauth.renew(asked, self._refused, self._tried)) is None:
            raise TokenRejected(
                f"{quoted(self._oauth.server)} refuses the token that its authorization server has just given for it"
                + (f": {quoted(asked.error_description)}" if asked.error_description else "")
                + ". The operator of the two has to look into it: mostly the audience or the issuer is not what the "
                "server expects."
            )
        return True
