"""Transcript of the messages between client and server in one test."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from portico.testing.recording.file import Recorder, Sender


class TranscriptMessage(NamedTuple):
    """A message and its sender."""

    sender: Sender
    message: Any


class Transcript(list[TranscriptMessage]):
    """The messages in the order in which they were sent."""

    def record(self, direction: str, data: bytes) -> None:
        """Append a message; use it as the client's message callback."""
        # The callback reports the direction as seen by the client.
        self.append(TranscriptMessage("client" if direction == "sent" else "server", msgspec.json.decode(data)))

    @property
    def methods(self) -> list[str]:
        """Return the methods of all requests and notifications of both sides, in order."""
        return [line.message["method"] for line in self if "method" in line.message]

    def params_of(self, method: str) -> list[Any]:
        """Return the params of every message with this method, from either side."""
        return [line.message.get("params") for line in self if line.message.get("method") == method]

    def save(self, path: str) -> None:
        """Write the transcript in the format of `portico record`, for `portico replay` and `@pytest.mark.recording`."""
        # Redacts secrets, as `portico record` does.
        recorder = Recorder(path)
        for line in self:
            recorder.write(line.sender, msgspec.json.encode(line.message))
        recorder.close()
