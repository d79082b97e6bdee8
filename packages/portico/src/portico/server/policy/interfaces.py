"""What stands between a request and what it asks for: what decides, what counts and what records.

A server knows no rules. It knows whose everything is that it offers, and asks those that were given to it with
`server.protect(…)`: the AccessGuard what a caller may see and do, the Meter whether it is too often. The Witness takes
note.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple, Protocol

from msgspec import Raw, Struct

from portico.rpc.call import Call

Kind = Literal["tool", "prompt", "resource", "template"]

# The client name of the browser console. Its calls have no address, like those on stdio; an audit records them all the
# same, because a user made them in a browser.
CONSOLE_CLIENT_NAME = "portico-console"


class Owned(NamedTuple):
    """Whose something is, and what its owner calls it: never the name that a client is shown.

    The owner is an upstream's alias, a mount's prefix or name, a service's name, or else the server's name. Empty:
    there is no such thing.
    """

    owner: str
    name: str


class Decision(Struct, frozen=True):
    """Whether a caller may do something, and the rule that says so."""

    allowed: bool
    rule: str = ""
    # What rules that are only tried out would have said.
    shadow: tuple[str, ...] = ()


class Sight(NamedTuple):
    """What a caller can see of what there is."""

    # The same for all who see the same.
    view: Hashable
    sees: Callable[[Kind, Owned], bool]


class Passage(Struct, eq=False):
    """One request on its way through a protected server."""

    call: Call
    # What it is about, as soon as that is known; for a list and the like there is none.
    kind: Kind | None = None
    owned: Owned | None = None
    decision: Decision | None = None
    # Whether the person has agreed to it; and the round that it comes with, if that was asked before.
    agreed: bool = False
    round: Any = None
    # Whether it goes on with what was counted already, and whether it was counted by what it is about; the call that it
    # is part of; and what the meter holds for it.
    later: bool = False
    reached: bool = False
    parent: Passage | None = None
    held: tuple[Any, ...] = ()
    # Which upstream or mount it was passed on to, and which task runs it with which arguments.
    upstream: str = ""
    job: str = ""
    arguments: Raw | None = None
    # When it began, in nanoseconds since 1970: for the witness.
    began: int = 0


class AccessGuard(Protocol):
    """Decides what a caller may see and do. Pure, and quick: it is asked for every call."""

    def sight(self, call: Call) -> Sight:
        """What the sender of a call can see."""
        ...

    def decide(self, call: Call, kind: Kind, owned: Owned, arguments: bytes | Raw) -> Decision:
        """Whether a call may be made."""
        ...

    def require(self, call: Call, kind: Kind, owned: Owned, arguments: bytes | Raw) -> list[str]:
        """What the person has to agree to before an allowed call is made. Raises what it is refused with otherwise,
        such as InsufficientScope."""
        ...


class Meter(Protocol):
    """Counts what is asked."""

    def enter(self, passage: Passage) -> Awaitable[None] | None:
        """Count a request, whatever it is about; what is returned has to be waited for. Raises what one too many is
        refused with."""
        ...

    def reach(self, passage: Passage) -> Awaitable[None] | None:
        """Count it again as soon as it is known what it is about, and that it may be had."""
        ...

    def leave(self, passage: Passage) -> None:
        """A request is over."""
        ...


class Witness(Protocol):
    """Takes note of what was asked, and of what came of it. One with a `lifespan` is open as long as its server."""

    def begins(self, passage: Passage) -> None:
        """Before anything is done. May raise what the request is refused with."""
        ...

    def ended(self, passage: Passage, result: Any, failure: BaseException | None) -> None:
        """A request was answered, or failed. Never raises."""
        ...

    def refused(self, status: int, reason: str, address: str | None) -> None:
        """A request was not let in by its transport: it has no credentials, or none that are good. Never raises."""
        ...


passed: ContextVar[list[Passage] | None] = ContextVar("portico_passed", default=None)
"""Where a middleware wants to know of it: the requests that came by a guard, a meter or a witness."""

current: ContextVar[Passage | None] = ContextVar("portico_passage", default=None)
"""The request that is on its way through a protected server in this task."""
