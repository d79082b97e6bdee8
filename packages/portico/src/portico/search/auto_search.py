"""A face that is put on when there are many tools: for all callers, or for none."""

from __future__ import annotations

from types import CoroutineType
from typing import Any

from portico.rpc.call import Call
from portico.search.tool_search_base import ServerFace
from portico.search.visible_tools import SeenTools

# From so many tools on, or bytes of their definitions: about four make a token.
MANY_TOOLS = 40
MANY_BYTES = 40_000


class AutoFace:
    """A Handler: the server itself while it has few tools, and the face once there are many.

    What counts is the whole catalogue, so that it does not depend on who asks; and a face that was put on stays on, so
    that a client's list does not come and go.
    """

    def __init__(self, face: ServerFace) -> None:
        self.face, self.name, self.desk, self.worn = face, face.name, face.desk, False
        self._start = face.start_server
        # As everybody taken together sees it.
        self._whole = SeenTools(getattr(face.server, "answer_unprotected", face.server))

    def __getattr__(self, name: str) -> Any:
        """What a Handler may offer besides answering is the face's, which is the server's."""
        return getattr(self.__dict__["face"], name)

    async def __call__(self, call: Call) -> Any:
        result = self.start(call)
        return await result if type(result) is CoroutineType else result

    def start(self, call: Call) -> Any:
        if self.worn:
            return self.face.start(call)
        return self._choose(call) if call.method in _DECISIVE or self._is_ours(call) else self._start(call)

    def _is_ours(self, call: Call) -> bool:
        """Another process has listed it, or this one before it was started anew."""
        return call.method == "tools/call" and call.typed().name in self.desk.registry.by_name

    async def _choose(self, call: Call) -> Any:
        self.worn = self.worn or await self._is_large(call)
        result = self.start(call) if self.worn else self._start(call)
        return await result if type(result) is CoroutineType else result

    async def _is_large(self, call: Call) -> bool:
        tools = (await self._whole.view(Call(method="tools/list", id=call.id, reply=call.reply))).tools
        return len(tools) >= MANY_TOOLS or sum(len(bytes(one.entry)) for one in tools) >= MANY_BYTES


_DECISIVE = frozenset({"tools/list", "server/discover"})
