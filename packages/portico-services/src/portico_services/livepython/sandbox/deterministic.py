"""Time and chance in the jail, for scripts that must be able to be run again: both come from the server."""

from __future__ import annotations

import datetime as datetimes
import os
import random
import time
from collections.abc import Callable
from typing import Any

# A clock that is looked at moves on, so that a loop that only looks at it comes to an end.
TICK_SECONDS = 1e-6


class ScriptClock:
    """The time as the server last told it."""

    def __init__(self, at: float) -> None:
        self._begun = self._now = at

    def set(self, at: float) -> None:
        self._now = max(self._now, at)

    def time(self) -> float:
        self._now += TICK_SECONDS
        return self._now

    def monotonic(self) -> float:
        return self.time() - self._begun

    def sleep(self, seconds: float) -> None:
        _sleep(seconds)
        self.set(self._now + seconds)

    def install(self) -> None:
        """In the place of every clock that Python has."""
        local, written = time.localtime, time.strftime

        def at(known: Callable[..., Any]) -> Callable[..., Any]:
            return lambda seconds=None: known(self.time() if seconds is None else seconds)

        def write(form: str, when: Any = None) -> str:
            return written(form, local(self.time()) if when is None else when)

        for name in ("localtime", "gmtime", "ctime"):
            setattr(time, name, at(getattr(time, name)))
        _put(time, sleep=self.sleep, time=self.time, time_ns=lambda: int(self.time() * 1e9), strftime=write)
        for name in ("monotonic", "perf_counter"):
            _put(time, **{name: self.monotonic, f"{name}_ns": lambda: int(self.monotonic() * 1e9)})
        _put(datetimes, datetime=_datetime_by(self))


_sleep = time.sleep
_Datetime = datetimes.datetime


def _put(module: Any, **members: Any) -> None:
    for name, member in members.items():
        setattr(module, name, member)


def _datetime_by(clock: ScriptClock) -> type:
    """`datetime` by this clock: the one of C looks at another."""

    class DatetimeKind(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, _Datetime)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, _Datetime)

    class Clocked(_Datetime, metaclass=DatetimeKind):
        @classmethod
        def now(cls, tz: datetimes.tzinfo | None = None) -> Any:
            return cls.fromtimestamp(clock.time(), tz)

        @classmethod
        def utcnow(cls) -> Any:
            return cls.fromtimestamp(clock.time(), datetimes.UTC).replace(tzinfo=None)

        @classmethod
        def today(cls) -> Any:
            return cls.now()

    Clocked.__name__ = Clocked.__qualname__ = "datetime"
    Clocked.__module__ = "datetime"
    return Clocked


def install_chance(seed: str) -> None:
    """All that is random here comes from one seed."""
    source = random.Random(seed)
    random.seed(source.getrandbits(64))

    class Seeded(random.Random):
        def seed(self, a: Any = None, version: int = 2) -> None:
            super().seed(source.getrandbits(64) if a is None else a, version)

    Seeded.__name__ = Seeded.__qualname__ = "Random"
    own = Seeded()
    for name in dir(random):
        # The functions of the module are methods of one of these.
        if getattr(getattr(random, name), "__self__", None) is random._inst:
            setattr(random, name, getattr(own, name))
    bytes_of = lambda size, flags=0: source.randbytes(size)  # noqa: E731
    _put(random, Random=Seeded, _inst=own, _urandom=bytes_of)
    _put(os, urandom=bytes_of, getrandom=bytes_of)
