"""Which calls are made again after a failure: those that were not done, or do no harm when they are done twice."""

from __future__ import annotations

from portico.protocol.errors import BadStatus, Closed, ConnectFailed, Error, SessionLost

# A server that is overwhelmed, or a proxy that cannot reach it.
_TEMPORARY = frozenset({429, 502, 503, 504})


def may_repeat(failure: Error, repeatable: bool) -> bool:
    # What was never sent, or turned away at the door, was not done.
    if isinstance(failure, ConnectFailed | SessionLost):
        return True
    if isinstance(failure, BadStatus):
        return repeatable and failure.status in _TEMPORARY
    return repeatable and isinstance(failure, Closed)


def about(failure: Error, method: str) -> Error:
    """Every failure says what it is the failure of."""
    if isinstance(failure, Closed | ConnectFailed) and method not in str(failure):
        return type(failure)(f"{method}: {failure}")
    return failure


def not_repeated(failure: Error, method: str) -> Error:
    if not isinstance(failure, Closed):
        return failure
    return type(failure)(f"{method} was not repeated, for it may have been heard: {failure}")
