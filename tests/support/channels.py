"""Send one message through a Channel, as transports do, and return the response."""

from __future__ import annotations

from portico.rpc.call import Handler
from portico.rpc.channel import Channel
from portico.rpc.dispatcher import PeerInfo

TIMEOUT_SECONDS = 10.0
NOTIFICATION = b'{"jsonrpc":"2.0","method":'


async def knock(
    data: bytes, handler: Handler, *, principal: object = None, batches: bool = False, revision: str | None = None
) -> bytes | None:
    """Return the response to a message, or None. Subscriptions end, as when the stream ends."""
    messages: list[bytes] = []
    channel = Channel(handler, messages.append, peer=PeerInfo(principal=principal))
    channel.batching_enabled, channel.protocol_version = batches, revision
    at_once = channel.receive(data)
    await channel.shutdown(TIMEOUT_SECONDS)
    replies = [message for message in messages if not message.startswith(NOTIFICATION)]
    if at_once is not None:
        replies.append(at_once)
    assert len(replies) <= 1, replies
    return replies[0] if replies else None
