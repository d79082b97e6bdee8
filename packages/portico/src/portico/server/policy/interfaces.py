"""Interfaces of policy hooks: access policy, rate limiter and audit hook.

A server has no rules itself. It knows the owner of every component that it offers, and consults the hooks that were set
with `server.set_policy(…)`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

from msgspec import Raw, Struct

from portico.rpc.call import Call, Kind as Kind, QualifiedName as QualifiedName

# Client name of the browser console. Its calls have no address, like those on stdio, but are audited all the same,
# because a user made them in a browser.
CONSOLE_CLIENT_NAME = "portico-console"

# Owner of the tool and the resource that read stored results. Access rules and views do not apply to them: a caller
# reads only results that it was given before.
RESULTS_OWNER = "portico/results"


class Decision(Struct, frozen=True):
    """Whether a caller may do something, and the rule that decided."""

    allowed: bool
    rule: str = ""
    # Decisions of rules in shadow mode, which are not enforced.
    dry_run_rules: tuple[str, ...] = ()


class Visibility(NamedTuple):
    """The components that a caller can see."""

    # Equal for callers who see the same components.
    cache_key: Hashable
    is_visible: Callable[[Kind, QualifiedName], bool]


class PolicyContext(Struct, eq=False):
    """State of one request on its way through a server with policy."""

    call: Call
    # The component, once known; None for lists and other methods.
    kind: Kind | None = None
    component: QualifiedName | None = None
    decision: Decision | None = None
    # Whether the user has consented, and the consent round that the call continues.
    has_consent: bool = False
    consent_round: Any = None
    # Whether it continues a call that was already counted, and whether it was counted for its component; the
    # call that it is part of; and what the rate limiter reserved for it.
    is_continuation: bool = False
    is_component_counted: bool = False
    parent: PolicyContext | None = None
    leases: tuple[Any, ...] = ()
    # The upstream or mount that it was forwarded to, and the task that runs it with its arguments.
    upstream: str = ""
    task_id: str = ""
    arguments: Raw | None = None
    # Start time in nanoseconds since 1970, for the audit hook.
    started_ns: int = 0


class ComponentOwners(Protocol):
    """The owners of a server's own components."""

    def local_qualified_name(self, kind: Kind, name: str) -> QualifiedName | None: ...
    def component_qualified_name(self, component: Any) -> QualifiedName: ...


class AccessPolicy(Protocol):
    """Decides what a caller may see and do. Must be pure and fast: it is consulted for every call."""

    def visibility(self, call: Call) -> Visibility:
        """Return the components that the caller can see."""
        ...

    def decide(self, call: Call, kind: Kind, component: QualifiedName, arguments: bytes | Raw) -> Decision:
        """Return whether a call is allowed."""
        ...

    def check_requirements(self, call: Call, kind: Kind, component: QualifiedName, arguments: bytes | Raw) -> list[str]:
        """Return the consent prompts for an allowed call. Raises if the call is rejected, such as InsufficientScope."""
        ...


class RequestLimiter(Protocol):
    """Counts and limits requests."""

    def on_request(self, context: PolicyContext) -> Awaitable[None] | None:
        """Count a request, whatever it is about.

        Return an awaitable if it has to wait. Raises if a limit is exceeded.
        """
        ...

    def on_component(self, context: PolicyContext) -> Awaitable[None] | None:
        """Count a request again once its component is known and allowed."""
        ...

    def on_response(self, context: PolicyContext) -> None:
        """Release what was reserved for a request that has ended."""
        ...


class AuditHook(Protocol):
    """Records requests and their outcomes. A hook with a `lifespan` is open while its server is."""

    def on_request(self, context: PolicyContext) -> None:
        """Record a request before it is handled. May raise to reject it."""
        ...

    def on_response(self, context: PolicyContext, result: Any, failure: BaseException | None) -> None:
        """Record the outcome of a request. Must not raise."""
        ...

    def on_rejected(self, status: int, reason: str, address: str | None) -> None:
        """Record a request that its transport rejected for missing or invalid credentials. Must not raise."""
        ...


# A context variable instead of an argument: middleware wraps handlers that know nothing of policy.
observed_requests: ContextVar[list[PolicyContext] | None] = ContextVar("portico_passed", default=None)
"Requests subject to policy in this context, collected for middleware that sets a list."

current_request: ContextVar[PolicyContext | None] = ContextVar("portico_passage", default=None)
"The request that this task is handling in a server with policy."
