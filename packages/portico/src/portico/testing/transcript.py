"""What a client and a server have said in one test."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from portico.testing.recording.file import Side, TapeWriter


class TranscriptLine(NamedTuple):
    """One message, and who sent it."""

    sender: Side
    message: Any


class Transcript(list[TranscriptLine]):
    """The messages in their order."""

    def note(self, way: str, data: bytes) -> None:
        """What a Client calls for each message: its `trace`."""
        self.append(TranscriptLine("client" if way == "sent" else "server", msgspec.json.decode(data)))

    @property
    def methods(self) -> list[str]:
        """The methods of requests and notifications, of both sides, in their order."""
        return [line.message["method"] for line in self if "method" in line.message]

    def sent(self, method: str) -> list[Any]:
        """The params of every message of this method, from either side."""
        return [line.message.get("params") for line in self if line.message.get("method") == method]

    def save(self, path: str) -> None:
        """Write it as `portico record` does, for `portico replay` and `@pytest.mark.recording`."""
        tape = TapeWriter(path)
        for line in self:
            tape.write(line.sender, msgspec.json.encode(line.message))
        tape.close()
