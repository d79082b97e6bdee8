"""The params of a call on the way in: under the upstream's own name, and otherwise byte for byte the same."""

from __future__ import annotations

from msgspec import Raw

from portico.protocol import jsonrpc
from portico.protocol.methods import is_bare
from portico.protocol.tools import CallToolParams
from portico.rpc.call import Call
from portico.transports.request_meta import is_envelope


def spliced(call: Call, inward: str) -> Raw | None:
    """The params of a tool's call that has a name, arguments, and in `_meta` what a client says of itself; None for any
    other. The connection to the upstream says anew who is asking."""
    typed = None if call.read is None or call.read[0] is not call.params else call.read[1]
    if type(typed) is not CallToolParams or not is_bare(call.params, typed):
        return None
    if not is_envelope(bytes(typed.meta), remember=call.progress_token is None):
        return None
    return Raw(b'{"name":%b,"arguments":%b}' % (jsonrpc.encode(inward), bytes(typed.arguments)))
