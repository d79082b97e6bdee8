"""Contents of resources that do not say where they come from.

Every revision wants a `uri` in them, and there are servers that leave it out: what was read is what was asked for. Ours
and other clients could do nothing with it otherwise.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from portico.protocol.jsonrpc import encode
from portico.rpc.call import Call


def located(call: Call, said: Raw) -> Raw:
    """The result of `resources/read`, with the address that was asked for where there is none."""
    if b'"uri"' in bytes(said):
        return said
    try:
        inside: dict[str, Any] = msgspec.json.decode(said)
        asked = msgspec.json.decode(call.params)
        contents = [{"uri": asked["uri"], **one} for one in inside["contents"]]
    except (ValueError, TypeError, KeyError, RecursionError):
        return said  # it is none, and is refused elsewhere
    return Raw(encode({**inside, "contents": contents}))
