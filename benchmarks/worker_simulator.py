"""Discrete-event simulation of many workers on many machines: throughput and saturation.

A process does one thing at a time. The processes of a machine take turns for its cores. Nothing here is measured: what
things cost is given.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import NamedTuple

Then = Callable[[], None]
# Beyond this a caller has waited too long: the queue grows, or is about to.
LATE_SECONDS = 0.1
NETWORK_SECONDS = 0.0005
# A queue that has grown to this share of all that came goes on growing.
MOST_WAITING = 0.02


@dataclass(frozen=True)
class Costs:
    """Seconds of CPU."""

    call: float  # that stands alone
    session: float  # in a session, where it is
    forwarded: float  # more, for a call that a worker of the same machine forwards: of both workers
    passing: float  # of a worker that sends a call on
    answering: float  # of the one that it is sent to
    publishing: float  # a change, for the worker where it happens
    hearing: float  # and for each other one
    telling: float  # and for each listener
    asking: float = 0.0  # of the program that asks, where it is on the same machine
    database_event: float = 0.0  # of the database, for a change
    database_listener: float = 0.0  # and for each worker that hears of it
    database_session: float = 0.0  # for a session that begins


@dataclass(frozen=True)
class Plan:
    """Topology and load."""

    machines: int = 1
    workers: int = 1  # of each machine
    cores: int = 2  # of each machine
    speed: float = 1.0  # what others leave of them
    sessions: float = 0.0  # the share of calls that are in a session
    kept: float = 0.0  # the share of those that come by a connection which their worker has already
    events: float = 0.0  # changes a second
    shards: int = 1  # parts of the bus: a worker hears one
    listeners: int = 0  # of each change, over all workers
    database_cores: int = 4


class Clock:
    """The event queue."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Then]] = []
        self._numbers = count()

    def after(self, seconds: float, then: Then) -> None:
        heapq.heappush(self._due, (self.now + seconds, next(self._numbers), then))

    def run(self, until: float) -> None:
        while self._due and self._due[0][0] <= until:
            self.now, _, then = heapq.heappop(self._due)
            then()


class Machine:
    """Cores shared by processes in turns."""

    def __init__(self, clock: Clock, cores: int, speed: float = 1.0) -> None:
        self._clock = clock
        self._free = cores
        self._speed = speed
        self._ready: deque[Process] = deque()

    def take_turn(self, process: Process) -> None:
        self._ready.append(process)
        self._go_on()

    def _go_on(self) -> None:
        while self._free and self._ready:
            self._free -= 1
            process = self._ready.popleft()
            seconds, then = process.work.popleft()
            self._clock.after(seconds / self._speed, partial(self._done, process, then))

    def _done(self, process: Process, then: Then) -> None:
        self._free += 1
        if process.work:
            self._ready.append(process)
        else:
            process.waits = True
        then()
        self._go_on()


@dataclass(eq=False)
class Process:
    """A process that handles one item at a time, in order."""

    machine: Machine
    number: int = 0
    work: deque[tuple[float, Then]] = field(default_factory=deque)
    waits: bool = True

    def do(self, seconds: float, then: Then) -> None:
        self.work.append((seconds, then))
        if self.waits:
            self.waits = False
            self.machine.take_turn(self)


class Fleet:
    """The workers of a plan and their database."""

    def __init__(self, plan: Plan, costs: Costs, seed: int = 1) -> None:
        self.plan, self.costs = plan, costs
        self.clock = Clock()
        self.chance = random.Random(seed)
        self.machines = [Machine(self.clock, plan.cores, plan.speed) for _ in range(plan.machines)]
        self.workers = [Process(machine, number) for number, machine in enumerate(self.machines * plan.workers)]
        self.database = Machine(self.clock, plan.database_cores)
        # Publishing a change holds one global lock in PostgreSQL while it is written down.
        self.notifying = Process(self.database)
        # The processes of the database, one for each worker that hears.
        self.backends = [Process(self.database) for _ in self.workers]

    def call(self, at: Process, owner: Process | None, then: Then) -> None:
        """Simulate a call at a worker, stateless or for the session of another worker."""
        costs = self.costs
        if owner is None:
            at.do(costs.call, then)
        elif owner is at:
            at.do(costs.session, then)
        elif owner.machine is at.machine:
            at.do(costs.forwarded / 2, lambda: owner.do(costs.forwarded / 2 + costs.session, then))
        else:
            self._send_on(at, owner, then)

    def _send_on(self, at: Process, owner: Process, then: Then) -> None:
        half = self.costs.passing / 2

        def arrive() -> None:
            owner.do(self.costs.answering, lambda: self.clock.after(NETWORK_SECONDS, come_back))

        def come_back() -> None:
            at.do(half, then)

        at.do(half, lambda: self.clock.after(NETWORK_SECONDS, arrive))

    def change(self) -> None:
        """Simulate a change at a worker and its delivery to all listeners."""
        costs, plan = self.costs, self.plan
        here = self.chance.choice(self.workers)
        shard = self.chance.randrange(plan.shards)
        hear = [one for one in self.workers if one.number % plan.shards == shard]
        notification = plan.listeners / max(1, len(hear)) * costs.telling

        def tell(one: Process) -> None:
            one.do((0 if one is here else costs.hearing) + notification, _nothing)

        def spread() -> None:
            for one in hear:
                self.backends[one.number].do(costs.database_listener, partial(tell, one))

        here.do(costs.publishing, lambda: self.notifying.do(costs.database_event, spread))


def closed(plan: Plan, costs: Costs, connections: int, seconds: float, sessions: int = 0) -> float:
    """Return calls per second of a closed-loop client on the same machine."""
    fleet = Fleet(plan, costs)
    asker = Process(fleet.machines[0])
    at = [fleet.chance.choice(fleet.workers) for _ in range(connections)]
    owners = [fleet.chance.choice(fleet.workers) for _ in range(sessions)]
    calls = 0

    def ask(number: int) -> None:
        owner = fleet.chance.choice(owners) if owners else None
        asker.do(costs.asking, lambda: fleet.call(at[number], owner, lambda: done(number)))

    def done(number: int) -> None:
        nonlocal calls
        calls += 1
        ask(number)

    for number in range(connections):
        ask(number)
    fleet.clock.run(seconds)
    return calls / seconds


class Answered(NamedTuple):
    """The 99th percentile of latency in seconds, and the number of pending calls at the end."""

    seconds: float
    waiting: int


def answered(plan: Plan, costs: Costs, rate: float, calls: int) -> Answered:
    """Simulate a number of calls that arrive at a rate."""
    fleet = Fleet(plan, costs)
    clock, chance = fleet.clock, fleet.chance
    took: list[float] = []
    came, end = 0, calls / rate

    def arrive() -> None:
        nonlocal came
        if clock.now > end:
            return
        came += 1
        clock.after(chance.expovariate(rate), arrive)
        began = clock.now
        at, owner = chance.choice(fleet.workers), None
        if chance.random() < plan.sessions:
            owner = at if chance.random() < plan.kept else chance.choice(fleet.workers)
        fleet.call(at, owner, lambda: took.append(clock.now - began))

    def change() -> None:
        clock.after(chance.expovariate(plan.events), change)
        fleet.change()

    arrive()
    if plan.events:
        change()
    clock.run(end)
    waiting = came - len(took)
    clock.run(end + LATE_SECONDS)
    took.sort()
    rank = int(0.99 * came)
    # Pending calls count as late.
    return Answered(took[rank] if rank < len(took) else float("inf"), waiting)


def saturation(plan: Plan, costs: Costs, calls: int = 20_000) -> float:
    """Return the highest rate at which latency and backlog stay within the limits."""
    workers = plan.machines * plan.workers
    calls = max(calls, 250 * workers)
    low, high = 0.0, min(plan.machines * plan.cores * plan.speed, workers) / min(costs.call, costs.session)
    for _ in range(8):
        middle = (low + high) / 2
        result = answered(plan, costs, middle, calls)
        if result.seconds <= LATE_SECONDS and result.waiting <= max(MOST_WAITING * calls, 4 * workers):
            low = middle
        else:
            high = middle
    return low


def _nothing() -> None:
    pass
