"""Lower bound: an application on granian's own interface that only handles the JSON."""

from bare import answer

HEADERS = [("content-type", "application/json")]


async def app(scope, protocol):
    protocol.response_bytes(200, HEADERS, answer(await protocol()))
