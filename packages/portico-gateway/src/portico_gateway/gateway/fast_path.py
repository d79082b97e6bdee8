"""The shortest way to a server without sessions: a call that is like one before it goes on without ceremony."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Coroutine
from typing import Any

from msgspec import Raw

from portico.protocol.errors import ProtocolError, TransportError
from portico.rpc.call import Call
from portico.rpc.metrics import BUCKETS
from portico.rpc.observers import OBSERVERS
from portico.transports.http_client.streamable_http import BegunCall
from portico_gateway.gateway.connection import Lane
from portico_gateway.gateway.upstream import Answered, GatewayUpstream


def straight(upstream: GatewayUpstream, call: Call, inward: str, params: Raw) -> Coroutine[Any, Any, Answered] | None:
    """Send a tool's call at once; gives what comes to its answer. None where anything is out of the ordinary: the
    upstream is in trouble or has enough to do, no connection is idle, or the client asks to be asked in requests."""
    # One who logs in there has a connection of their own.
    lane = upstream.lanes.modern if upstream.is_plain else None
    if lane is None or call.reply.asks or not upstream.health.is_well:
        return None
    if OBSERVERS or (call.headers is not None and b"traceparent" in call.headers):
        return None
    owner = upstream.places.take(call)
    if owner is None:
        return None
    begun = lane.connection.begin(call, inward, bytes(params))
    if begun is None:
        upstream.places.give(owner)
        return None
    return _finished(upstream, lane, call, params, begun, owner)


async def _finished(
    upstream: GatewayUpstream, lane: Lane, call: Call, params: Raw, begun: BegunCall, owner: str
) -> Answered:
    lane.passing += 1
    tally, start = upstream.tally, time.perf_counter()
    try:
        result = await lane.connection.finish(begun, params)
    except (TransportError, ProtocolError) as failure:
        tally.errors += 1
        raise await upstream.failed(lane, call, failure) from None
    finally:
        lane.passing -= 1
        lane.used = time.monotonic()
        seconds = time.perf_counter() - start
        tally.counts[bisect_left(BUCKETS, seconds)] += 1
        tally.seconds += seconds
        upstream.places.give(owner)
    upstream.health.succeeded(call)
    return Answered(result, lane.revision)
