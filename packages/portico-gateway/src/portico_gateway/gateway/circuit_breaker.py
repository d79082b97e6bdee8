"""Circuit breakers of an upstream: one for all callers, and one for each caller that has failures of its own.

An upstream answers each caller differently: by credential, by forwarded headers, by what the call asks for. So a
failure counts for the caller who had it. All callers are affected only by a connection that cannot be made, and by
failures that several independent callers have in a row.
"""

from __future__ import annotations

import logging
import random
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable

from portico.protocol.errors import BadStatus, Closed, ConnectFailed, Error, ProtocolError, TimedOut, ToolError
from portico.rpc.call import Call
from portico.rpc.error_ids import log_failure
from portico.rpc.fair_queue import caller_of

MOST_IN_A_ROW = 5
# Of so many in the last while, half failed.
LEAST_LOOKED_AT, LOOK_SECONDS = 20, 30.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 5.0, 60.0
# The longest Retry-After that is honoured.
MAX_RETRY_AFTER_SECONDS = 300.0
# Breakers of single callers; the least recently used are dropped, which costs a request to the upstream.
MAX_CALLER_BREAKERS = 1000
# Callers that fail without a success of any caller in between, after which a failure is the upstream's and not theirs.
MIN_INDEPENDENT_CALLERS = 3
# Before the last lines of a child process, in a failure.
SAID_LAST = "; it said last:\n"

log = logging.getLogger("portico.gateway")

CallerKey = tuple[Hashable, str]
"""What an upstream sees of a caller (credential and forwarded headers), and which caller it is."""


def describe(failure: Error) -> str:
    """Return what clients are told of a failure. Addresses, commands and stderr are for the operator's log."""
    status = getattr(failure, "status", 0)
    if status >= 300:
        return f"it answered with the HTTP status {status}"
    if isinstance(failure, ConnectFailed):
        return "no connection can be made"
    if isinstance(failure, TimedOut):
        return "it did not answer in time"
    if isinstance(failure, Closed):
        return "it closed the connection"
    return "it refused the connection" if isinstance(failure, ProtocolError) else "the connection failed"


def is_answer(failure: Error) -> bool:
    """Whether an upstream that works refused a single request: with a redirect, or a 4xx without Retry-After."""
    return isinstance(failure, BadStatus) and 300 <= failure.status < 500 and failure.retry_after is None


class Breaker:
    """Refuses calls for a while after failures of the transport, deadlines and overload."""

    def __init__(self, mask: Callable[[str], str] = str, explain: Callable[[Error], str] = describe) -> None:
        self._mask = mask
        self._explain = explain
        # For the operator, and for clients.
        self.failure = ""
        self._described = ""
        self.since: float | None = None
        self._until = 0.0
        self._pause = FIRST_PAUSE_SECONDS
        self._in_a_row = 0
        self._recent: deque[tuple[float, bool]] = deque(maxlen=200)

    @property
    def is_open(self) -> bool:
        """Whether calls are refused for now."""
        return self.since is not None and time.monotonic() < self._until

    @property
    def was_used(self) -> bool:
        """Whether any request has succeeded or failed."""
        return bool(self._recent)

    @property
    def retry_after(self) -> float:
        return max(0.0, self._until - time.monotonic()) if self.since is not None else 0.0

    def check(self, alias: str) -> None:
        """Raise ToolError while the upstream must not be called."""
        if self.is_open:
            raise self.refusal(alias)

    def refusal(self, alias: str) -> ToolError:
        seconds = max(1, round(self.retry_after))
        since = time.strftime("%H:%M:%S", time.localtime(self.since))
        return ToolError(
            f"{alias} does not answer since {since}: {self._described}. It is tried again in {seconds} s.",
            kind="ToolExecutionError",
            details={"upstream": alias, "retry_after": seconds},
            retryable=True,
        )

    def succeeded(self) -> None:
        self._in_a_row = 0
        self._pause = FIRST_PAUSE_SECONDS
        self.since, self.failure = None, ""
        self._recent.append((time.monotonic(), True))

    def failed(self, failure: Error, error_id: str = "", *, at_once: bool = False, honour: bool = True) -> None:
        """Count a failure. `at_once`: open the breaker for it. `honour`: wait as long as its Retry-After asks for."""
        now = time.monotonic()
        wish: float | None = getattr(failure, "retry_after", None) if honour else None
        self.failure = self._mask(str(failure))
        self._described = self._explain(failure) + (f" (error id {error_id})" if error_id else "")
        self._in_a_row += 1
        self._recent.append((now, False))
        recent = [good for moment, good in self._recent if now - moment < LOOK_SECONDS]
        often = len(recent) >= LEAST_LOOKED_AT and recent.count(False) * 2 >= len(recent)
        if wish is not None:
            self._pause_until(now + min(wish, MAX_RETRY_AFTER_SECONDS))
        elif at_once or often or self._in_a_row >= MOST_IN_A_ROW or self.since is not None:
            self._pause_until(now + min(self._pause * random.uniform(0.8, 1.2), LONGEST_PAUSE_SECONDS))
            self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)

    def _pause_until(self, moment: float) -> None:
        if self.since is None:
            self.since = time.time()
        self._until = moment


class UpstreamHealth:
    """The breakers of one upstream. `share` returns the credential and the forwarded headers of a call; `varies` says
    that these differ between callers, so that even the gateway's own requests say nothing about other callers."""

    def __init__(
        self,
        alias: str,
        share: Callable[[Call], Hashable],
        mask: Callable[[str], str] = str,
        *,
        varies: bool = False,
    ) -> None:
        self.alias = alias
        self._explain = describe
        self.shared = Breaker(mask)
        self._share = share
        self._mask = mask
        self._varies = varies
        self._callers: OrderedDict[CallerKey, Breaker] = OrderedDict()
        # When each caller failed last, and how many failures there were, since any caller's last success.
        self._failing: dict[str, float] = {}
        self._failures = 0

    def reveal_failures(self) -> None:
        """Put the full text of failures into the errors for callers: the caller is the operator."""
        self._explain = self._describe_fully
        self.shared = Breaker(self._mask, self._explain)

    def _describe_fully(self, failure: Error) -> str:
        return self._mask(str(failure))

    @property
    def refused_callers(self) -> int:
        """How many callers have a breaker that is open."""
        return sum(one.is_open for one in self._callers.values())

    @property
    def was_used(self) -> bool:
        """Whether any request has succeeded or failed."""
        return self.shared.was_used or bool(self._callers)

    @property
    def is_well(self) -> bool:
        """Whether neither the upstream nor any caller has failures, so that nothing has to be checked."""
        return self.shared.since is None and not self._callers

    def breaker_of(self, call: Call | None) -> Breaker:
        """Return the breaker that refuses this caller, or the shared one."""
        if self.shared.is_open or call is None or not self._callers:
            return self.shared
        return self._callers.get(self._key(call), self.shared)

    def check(self, call: Call) -> None:
        """Raise ToolError while the upstream must not be called for this caller."""
        if not self.is_well:
            self.breaker_of(call).check(self.alias)

    def succeeded(self, call: Call) -> None:
        self.shared.succeeded()
        if self._failures:
            self._failing.clear()
            self._failures = 0
        if self._callers:
            self._callers.pop(self._key(call), None)

    def failed(self, call: Call, failure: Error, *, opening: bool = False) -> ToolError:
        """Count a failure and log it; `opening`: of a new connection. Returns the error for the client."""
        error_id = log_failure(log, self.alias, self._mask(str(failure)))
        if is_answer(failure) and not opening:
            return self._refusal_of(failure, error_id)
        breaker = self.shared
        if not isinstance(failure, ConnectFailed) and not self._is_own(call):
            breaker = self._breaker_for(self._key(call))
            self._note_failing(caller_of(call)[0], failure, error_id)
        breaker.failed(failure, error_id, at_once=opening)
        if isinstance(failure, BadStatus) or breaker.is_open:
            return breaker.refusal(self.alias)
        return self._refusal_of(failure, error_id)

    def _refusal_of(self, failure: Error, error_id: str) -> ToolError:
        what = f"{self.alias}: {self._explain(failure)} (error id {error_id})."
        return ToolError(what, kind="ToolExecutionError", details={"upstream": self.alias, "error_id": error_id})

    def _is_own(self, call: Call) -> bool:
        """Whether a failure of this call is one for all: of the gateway itself or of the local client, at an upstream
        to which all callers look the same."""
        return not self._varies and call.principal is None and call.address is None

    def _key(self, call: Call) -> CallerKey:
        return self._share(call), caller_of(call)[0]

    def _breaker_for(self, key: CallerKey) -> Breaker:
        breaker = self._callers.setdefault(key, Breaker(self._mask, self._explain))
        self._callers.move_to_end(key)
        while len(self._callers) > MAX_CALLER_BREAKERS:
            self._callers.popitem(last=False)
        return breaker

    def _note_failing(self, caller: str, failure: Error, error_id: str) -> None:
        """Open the shared breaker for failures of several callers. Callers are told apart by principal or address, for
        a client can send any number of headers."""
        now = time.monotonic()
        recent = {one: at for one, at in self._failing.items() if now - at < LOOK_SECONDS}
        self._failures = self._failures + 1 if recent else 1
        self._failing = {**recent, caller: now}
        if len(self._failing) >= MIN_INDEPENDENT_CALLERS and self._failures >= MOST_IN_A_ROW:
            self.shared.failed(failure, error_id, at_once=True, honour=False)
            self._failing, self._failures = {}, 0
