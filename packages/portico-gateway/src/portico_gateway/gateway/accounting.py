"""Accounting for the calls to one upstream: concurrency limit, durations and errors, circuit breakers.

Concurrency: callers wait in turn; both the time and the number of waiting calls are limited. A quarter of the slots is
always left to other callers.

Circuit breakers: an upstream has one for all callers, and one for each caller with failures. An upstream may answer
each caller differently, depending on the credential, the forwarded headers and the arguments, so a failure counts for
the caller who had it. All callers are affected only if a connection cannot be opened, or if several independent callers
fail in a row.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Hashable
from types import TracebackType

from msgspec import Struct, field

from portico.caching import LruCache
from portico.protocol.errors import (
    ConnectError,
    ConnectionClosed,
    HttpStatusError,
    PorticoError,
    ProtocolError,
    RequestTimeout,
    ToolError,
)
from portico.rpc.call import Call
from portico.rpc.error_ids import log_failure
from portico.rpc.fair_queue import Caller, TurnQueue, get_caller_key
from portico.rpc.metrics import DURATION_BUCKETS_SECONDS

# Key of the gateway itself and of the single client of this process or terminal.
LOCAL = ""
# Owner of a slot that was taken while most slots were free.
# Compared by identity, so that no caller's key can equal it.
UNCOUNTED = "\0"
# Maximum time that a call waits in a queue.
# Clients give up after about a minute (the SDKs' default timeout is 60 s), so a call that waited longer would often
# run for no one.
MAX_WAIT_SECONDS = 30.0
# Low enough to stop calling a dead upstream within seconds, high enough to survive a single lost connection with its
# retries.
MAX_CONSECUTIVE_FAILURES = 5
# The breaker opens if at least MIN_WINDOW_CALLS calls were made in the last LOOK_SECONDS and half of them failed.
MIN_WINDOW_CALLS, LOOK_SECONDS = 20, 30.0
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 5.0, 60.0
# Limit for the Retry-After of an upstream.
# An upstream could otherwise disable itself for days with one header.
MAX_RETRY_AFTER_SECONDS = 300.0
# Maximum breakers of single callers. The least recently used is dropped, which costs one request to the upstream.
MAX_CALLER_BREAKERS = 1000
# Number of callers that fail, without a success of any caller in between, before the upstream itself is considered
# failing. One caller with a bad token or a hostile argument must not be able to open the breaker for all others.
MIN_INDEPENDENT_CALLERS = 3

log = logging.getLogger("portico.gateway")

CallerKey = tuple[Hashable, str]
"Identity of a caller as the upstream sees it (credential and forwarded headers), and the caller's own key."


def reserve(count: int) -> int:
    """Return the number of slots that a single caller cannot take."""
    # A quarter is always free for someone else: one caller with many slow calls cannot take the whole upstream.
    return max(1, count // 4) if count > 1 else 0


class FairQueue:
    """Queue of calls that wait for one of `places` slots.

    At most `limit` calls wait, and at most three quarters of them belong to one caller.
    """

    def __init__(self, places: int, limit: int, seconds: float) -> None:
        self._places = places
        self._limit = limit
        self._seconds = min(seconds, MAX_WAIT_SECONDS)
        self.turns: TurnQueue[tuple[str, asyncio.Future[None]]] = TurnQueue()

    def __len__(self) -> int:
        return self.turns.size

    def limit(self, owner: str, holders: Collection[str]) -> int:
        """Return the number of slots that a caller may hold: an equal share while other callers wait."""
        if owner == LOCAL:
            return self._places
        # Callers that hold slots or wait for them share equally; callers that do neither do not reduce the share.
        waiting = self.turns.owners
        if not waiting or waiting == {owner}:
            return self._places - reserve(self._places)
        return max(1, self._places // len({owner, *holders, *waiting}))

    async def wait(self, caller: Caller, passed_on: Callable[[], None]) -> None:
        """Wait for a turn.

        Raises asyncio.QueueFull or TimeoutError. `passed_on` is called if the turn came after the timeout.
        """
        # The queue has a reserve too, otherwise one caller could fill it and everyone else would be rejected with
        # QueueFull.
        most_of_one = self._limit if caller[0] == LOCAL else self._limit - reserve(self._limit)
        if len(self) >= self._limit or self.turns.waiting(caller[0]) >= most_of_one:
            raise asyncio.QueueFull
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.turns.add(caller, (caller[0], turn))
        try:
            async with asyncio.timeout(self._seconds):
                await turn
        except BaseException:
            # The turn may have been granted in the same loop iteration as the cancellation; hand it back.
            if not self.turns.discard(caller, (caller[0], turn)) and turn.done() and not turn.cancelled():
                passed_on()
            raise

    def has_turn(self, may: Callable[[str], bool]) -> bool:
        """Return whether a caller waits for whom `may` is true. The others wait for their own calls to finish."""
        return any(may(owner) for owner in self.turns.owners)

    def wake(self, may: Callable[[str], bool]) -> str | None:
        """Give the next turn to a caller for whom `may` is true. Return that caller, or None."""
        # A turn whose future is done belongs to a call that timed out or was cancelled; it is passed to the next one.
        while (waiting := self.turns.take_if(may)) is not None:
            owner, turn = waiting
            if not turn.done():
                turn.set_result(None)
                return owner
        return None


class ConcurrencyLimit:
    """Limit of concurrent calls to one upstream, with fair shares.

    The first quarter of the slots is not counted per caller, so an idle upstream costs one subtraction per call.
    """

    def __init__(self, limit: int, queue: int, seconds: float) -> None:
        self.free = self._limit = limit
        self._queue = FairQueue(limit, queue, seconds)
        self._turns = self._queue.turns
        self._uncounted = limit // 4
        # Counted slots that a caller may hold without a further check while no call waits.
        self._guaranteed = limit - reserve(limit) - self._uncounted
        self._in_flight: dict[str, int] = {}

    @property
    def busy(self) -> bool:
        """Return whether any call is in flight."""
        return self.free < self._limit

    def take(self, call: Call) -> str | None:
        """Take a slot if one is free for this caller. Return its owner for `release`, or None."""
        # Fast path for an upstream with little load: no caller key is computed and no dictionary is touched.
        if self.free > self._limit - self._uncounted:
            self.free -= 1
            return UNCOUNTED
        owner = get_caller_key(call)[0]
        if not self._turns.size and self.free and self._in_flight.get(owner, 0) < self._guaranteed:
            self._take_slot(owner)
            return owner
        # A call must not overtake the queue, or a busy caller would be served before callers that have waited.
        if not self._has_slot(owner) or self._queue.has_turn(self._has_slot):
            return None
        self._take_slot(owner)
        return owner

    async def acquire(self, call: Call) -> str:
        """Wait for a slot. Return its owner. Raises asyncio.QueueFull or TimeoutError."""
        caller = get_caller_key(call)
        try:
            await self._queue.wait(caller, lambda: self.release(caller[0]))
        finally:
            # The shares grow when fewer callers wait.
            self._wake_waiting()
        return caller[0]

    def release(self, owner: str) -> None:
        """Release a slot; the next waiting call takes it."""
        self.free += 1
        if owner is not UNCOUNTED:
            left = self._in_flight[owner] - 1
            if left:
                self._in_flight[owner] = left
            else:
                del self._in_flight[owner]
        if self._turns.size:
            self._wake_waiting()

    def _wake_waiting(self) -> None:
        """Give free slots to waiting callers. Each slot is held before its call resumes, so that no other call takes
        it.
        """
        while len(self._queue) and (woken := self._queue.wake(self._has_slot)) is not None:
            self._take_slot(woken)

    def _take_slot(self, owner: str) -> None:
        self.free -= 1
        self._in_flight[owner] = self._in_flight.get(owner, 0) + 1

    def _has_slot(self, owner: str) -> bool:
        limit = self._queue.limit(owner, self._in_flight)
        # The uncounted slots may all belong to this caller, so they are deducted from its share.
        return self.free > 0 and self._in_flight.get(owner, 0) < max(1, limit - self._uncounted)


class CallStats(Struct):
    """Statistics of the calls to an upstream: errors, total duration and a histogram by the buckets of the metrics."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(DURATION_BUCKETS_SECONDS) + 1))
    seconds: float = 0.0
    errors: int = 0

    @property
    def calls(self) -> int:
        return sum(self.counts)


class AccountedCall:
    """Context manager for one call that holds a slot: records the duration and errors, and releases the slot.

    Circuit breakers are updated separately, by each request: a call may consist of several requests.
    """

    __slots__ = ("_owner", "_places", "_started_at", "_tally")

    def __init__(self, tally: CallStats, places: ConcurrencyLimit, owner: str) -> None:
        self._tally, self._places, self._owner = tally, places, owner
        self._started_at = time.perf_counter()

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        seconds, tally = time.perf_counter() - self._started_at, self._tally
        # Prometheus buckets are inclusive upper bounds (`le`), which is what bisect_left computes.
        tally.counts[bisect_left(DURATION_BUCKETS_SECONDS, seconds)] += 1
        tally.seconds += seconds
        # A successful call does not pay for creating the union.
        if failure is not None and isinstance(failure, PorticoError | ToolError):
            tally.errors += 1
        self._places.release(self._owner)


def describe(failure: PorticoError) -> str:
    """Return a description of a failure for clients.

    Addresses, commands and stderr appear in the operator's log only.
    """
    status = getattr(failure, "http_status", 0)
    # The text for clients is chosen from a fixed set: an upstream's message could contain internal addresses, or
    # instructions for the model.
    if status >= 300:
        return f"the upstream returned HTTP status {status}"
    if isinstance(failure, ConnectError):
        return "the connection could not be opened"
    if isinstance(failure, RequestTimeout):
        return "the request timed out"
    if isinstance(failure, ConnectionClosed):
        return "the upstream closed the connection"
    return "the upstream refused the connection" if isinstance(failure, ProtocolError) else "the connection failed"


def is_answer(failure: PorticoError) -> bool:
    """Return whether a working upstream rejected a single request: a redirect, or a 4xx without Retry-After."""
    # These say nothing about the upstream's health: a 404 or 403 for one request must not open the breaker.
    return isinstance(failure, HttpStatusError) and 300 <= failure.http_status < 500 and failure.retry_after is None


class CircuitBreaker:
    """Rejects calls for a while after transport failures, timeouts and overload."""

    def __init__(self, mask: Callable[[str], str] = str, explain: Callable[[PorticoError], str] = describe) -> None:
        self._mask = mask
        self._explain = explain
        # Description of the last failure, for the operator and for clients.
        self.failure = ""
        self._described = ""
        self.since: float | None = None
        self._until = 0.0
        self._pause = FIRST_PAUSE_SECONDS
        self._in_a_row = 0
        # Bounded: a busy upstream records thousands of results per window, and two hundred are enough to judge it.
        self._recent: deque[tuple[float, bool]] = deque(maxlen=200)

    @property
    def is_open(self) -> bool:
        """Return whether calls are rejected now."""
        return self.since is not None and time.monotonic() < self._until

    @property
    def was_used(self) -> bool:
        """Return whether any request has succeeded or failed."""
        return bool(self._recent)

    @property
    def retry_after(self) -> float:
        """Return the seconds until the next attempt."""
        return max(0.0, self._until - time.monotonic()) if self.since is not None else 0.0

    def check(self, alias: str) -> None:
        """Raise ToolError while the upstream must not be called."""
        if self.is_open:
            raise self.unavailable_error(alias)

    def unavailable_error(self, alias: str) -> ToolError:
        """Return the error for a call that is rejected."""
        seconds = max(1, round(self.retry_after))
        since = time.strftime("%H:%M:%S", time.localtime(self.since))
        return ToolError(
            f"{alias} is unavailable since {since}: {self._described}. The next attempt is in {seconds} s.",
            error_type="ToolExecutionError",
            details={"upstream": alias, "retry_after": seconds},
            retryable=True,
        )

    def record_success(self) -> None:
        """Close the breaker and reset the back-off."""
        self._in_a_row = 0
        self._pause = FIRST_PAUSE_SECONDS
        # One success closes the breaker: the next failure starts with the shortest pause again.
        self.since, self.failure = None, ""
        self._recent.append((time.monotonic(), True))

    def record_failure(
        self, failure: PorticoError, error_id: str = "", *, open_immediately: bool = False, honour: bool = True
    ) -> None:
        """Count a failure, and open the breaker if there are too many.

        `open_immediately` opens it for this one; `honour` applies the Retry-After of the upstream.
        """
        now = time.monotonic()
        # Retry-After of one caller's response applies to that caller; when several callers fail, the shared breaker
        # uses its own pauses.
        wish: float | None = getattr(failure, "retry_after", None) if honour else None
        self.failure = self._mask(str(failure))
        self._described = self._explain(failure) + (f" (error id {error_id})" if error_id else "")
        self._in_a_row += 1
        self._recent.append((now, False))
        recent = [good for moment, good in self._recent if now - moment < LOOK_SECONDS]
        often = len(recent) >= MIN_WINDOW_CALLS and recent.count(False) * 2 >= len(recent)
        if wish is not None:
            self._open_until(now + min(wish, MAX_RETRY_AFTER_SECONDS))
        elif open_immediately or often or self._in_a_row >= MAX_CONSECUTIVE_FAILURES or self.since is not None:
            # Jitter keeps several gateways from retrying at the same moment.
            self._open_until(now + min(self._pause * random.uniform(0.8, 1.2), MAX_PAUSE_SECONDS))
            self._pause = min(2 * self._pause, MAX_PAUSE_SECONDS)

    def _open_until(self, moment: float) -> None:
        if self.since is None:
            self.since = time.time()
        self._until = moment


class UpstreamHealth:
    """Circuit breakers of one upstream.

    `share` returns the credential and the forwarded headers of a call. With `varies`, these differ between callers, so
    that even the gateway's own requests do not predict the result for other callers.
    """

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
        self.shared = CircuitBreaker(mask)
        self._share = share
        self._mask = mask
        self._varies = varies
        self._callers: LruCache[CallerKey, CircuitBreaker] = LruCache(MAX_CALLER_BREAKERS)
        # Time of each caller's last failure, and the number of failures, since any caller's last success.
        self._failing: dict[str, float] = {}
        self._failures = 0

    def reveal_failures(self) -> None:
        """Include the full text of failures in errors. Used if the caller is the operator."""
        self._explain = self._describe_fully
        self.shared = CircuitBreaker(self._mask, self._explain)

    def _describe_fully(self, failure: PorticoError) -> str:
        return self._mask(str(failure))

    @property
    def refused_callers(self) -> int:
        """Return the number of callers whose breaker is open."""
        return sum(caller.is_open for caller in self._callers.values())

    @property
    def was_used(self) -> bool:
        """Return whether any request has succeeded or failed."""
        return self.shared.was_used or bool(self._callers)

    @property
    def is_well(self) -> bool:
        """Return whether there are no failures, neither of the upstream nor of a caller, so that checks can be
        skipped.
        """
        return self.shared.since is None and not self._callers

    def breaker_of(self, call: Call | None) -> CircuitBreaker:
        """Return the breaker that applies to this caller: its own, or the shared one."""
        if self.shared.is_open or call is None or not self._callers:
            return self.shared
        return self._callers.get(self._key(call), self.shared)

    def check(self, call: Call) -> None:
        """Raise ToolError while the upstream must not be called for this caller."""
        if not self.is_well:
            self.breaker_of(call).check(self.alias)

    def record_success(self, call: Call) -> None:
        """Record a successful request of a caller."""
        self.shared.record_success()
        if self._failures:
            self._failing.clear()
            self._failures = 0
        if self._callers:
            self._callers.pop(self._key(call), None)

    def record_failure(self, call: Call, failure: PorticoError, *, opening: bool = False) -> ToolError:
        """Record and log a failure; `opening` means that a new connection failed. Return the error for the client."""
        error_id = log_failure(log, self.alias, self._mask(str(failure)))
        if is_answer(failure) and not opening:
            return self._refusal_of(failure, error_id)
        # A connection that cannot be opened fails for everyone. Other failures may be caused by the caller's
        # credential or headers, so they are counted for this caller first.
        breaker = self.shared
        if not isinstance(failure, ConnectError) and not self._is_own(call):
            breaker = self._callers.setdefault(self._key(call), CircuitBreaker(self._mask, self._explain))
            self._note_failing(get_caller_key(call)[0], failure, error_id)
        breaker.record_failure(failure, error_id, open_immediately=opening)
        # The status with Retry-After tells the client when to come back; other failures get a plain error.
        if isinstance(failure, HttpStatusError) or breaker.is_open:
            return breaker.unavailable_error(self.alias)
        return self._refusal_of(failure, error_id)

    def describe_failure(self, failure: PorticoError) -> ToolError:
        """Log a failure that is already recorded. Return the error for the client."""
        return self._refusal_of(failure, log_failure(log, self.alias, self._mask(str(failure))))

    def _refusal_of(self, failure: PorticoError, error_id: str) -> ToolError:
        message = f"{self.alias}: {self._explain(failure)} (error id {error_id})."
        return ToolError(
            message, error_type="ToolExecutionError", details={"upstream": self.alias, "error_id": error_id}
        )

    def _is_own(self, call: Call) -> bool:
        """Return whether a failure of this call affects all callers.

        True for calls of the gateway itself or of the local client, at an upstream that does not distinguish callers.
        """
        return not self._varies and call.principal is None and call.address is None

    def _key(self, call: Call) -> CallerKey:
        return self._share(call), get_caller_key(call)[0]

    def _note_failing(self, caller: str, failure: PorticoError, error_id: str) -> None:
        """Open the shared breaker after failures of several callers.

        Callers are distinguished by principal or address, since a client can vary its headers at will.
        """
        now = time.monotonic()
        recent = {key: at for key, at in self._failing.items() if now - at < LOOK_SECONDS}
        self._failures = self._failures + 1 if recent else 1
        self._failing = {**recent, caller: now}
        if len(self._failing) >= MIN_INDEPENDENT_CALLERS and self._failures >= MAX_CONSECUTIVE_FAILURES:
            self.shared.record_failure(failure, error_id, open_immediately=True, honour=False)
            self._failing, self._failures = {}, 0
