"""Deterministic time and randomness in the sandbox, so that scripts can be replayed. Both come from the server."""

from __future__ import annotations

import datetime as datetimes
import os
import random
import time
from collections.abc import Callable
from typing import Any

# Reading the clock advances it, so that a loop that only polls the time terminates.
TICK_SECONDS = 1e-6


class ScriptClock:
    """The time that the server last reported."""

    def __init__(self, at: float) -> None:
        self._started_at = self._now = at

    def advance_to(self, at: float) -> None:
        # Never backwards: reading the clock has advanced it, possibly beyond the time of the next answer.
        self._now = max(self._now, at)

    def time(self) -> float:
        self._now += TICK_SECONDS
        return self._now

    def monotonic(self) -> float:
        return self.time() - self._started_at

    def sleep(self, seconds: float) -> None:
        _sleep(seconds)
        self.advance_to(self._now + seconds)

    def install(self) -> None:
        """Replace every clock of the standard library with this one."""
        # Saved before they are replaced below.
        local, written = time.localtime, time.strftime

        def at(function: Callable[..., Any]) -> Callable[..., Any]:
            return lambda seconds=None: function(self.time() if seconds is None else seconds)

        def write(form: str, when: Any = None) -> str:
            return written(form, local(self.time()) if when is None else when)

        for name in ("localtime", "gmtime", "ctime"):
            setattr(time, name, at(getattr(time, name)))
        _patch_module(time, sleep=self.sleep, time=self.time, time_ns=lambda: int(self.time() * 1e9), strftime=write)
        for name in ("monotonic", "perf_counter"):
            _patch_module(time, **{name: self.monotonic, f"{name}_ns": lambda: int(self.monotonic() * 1e9)})
        _patch_module(datetimes, datetime=_clock_datetime(self))


_sleep = time.sleep
_RealDatetime = datetimes.datetime


def _patch_module(module: Any, **members: Any) -> None:
    for name, member in members.items():
        setattr(module, name, member)


def _clock_datetime(clock: ScriptClock) -> type:
    """Return a `datetime` class that uses this clock; the C implementation reads the system clock."""

    # `isinstance` checks must accept real datetimes, such as those created by C code.
    class DatetimeKind(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, _RealDatetime)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, _RealDatetime)

    class ScriptDatetime(_RealDatetime, metaclass=DatetimeKind):
        @classmethod
        def now(cls, tz: datetimes.tzinfo | None = None) -> Any:
            return cls.fromtimestamp(clock.time(), tz)

        @classmethod
        def utcnow(cls) -> Any:
            return cls.fromtimestamp(clock.time(), datetimes.UTC).replace(tzinfo=None)

        @classmethod
        def today(cls) -> Any:
            return cls.now()

    ScriptDatetime.__name__ = ScriptDatetime.__qualname__ = "datetime"
    ScriptDatetime.__module__ = "datetime"
    return ScriptDatetime


def seed_random(seed: str) -> None:
    """Derive all randomness in this process from one seed."""
    # One source for everything: the order in which modules ask for randomness is the same in every replay.
    source = random.Random(seed)
    random.seed(source.getrandbits(64))

    class SeededRandom(random.Random):
        def seed(self, a: Any = None, version: int = 2) -> None:
            super().seed(source.getrandbits(64) if a is None else a, version)

    SeededRandom.__name__ = SeededRandom.__qualname__ = "Random"
    own = SeededRandom()
    for name in dir(random):
        # The functions of the module are bound methods of one hidden instance.
        if getattr(getattr(random, name), "__self__", None) is random._inst:
            setattr(random, name, getattr(own, name))
    bytes_of = lambda size, flags=0: source.randbytes(size)  # noqa: E731
    _patch_module(random, Random=SeededRandom, _inst=own, _urandom=bytes_of)
    _patch_module(os, urandom=bytes_of, getrandom=bytes_of)
