"""How often one address may ask something of our pages, under any name."""

from __future__ import annotations

import time
from collections import OrderedDict
from math import ceil

from portico.rpc.networks import network_of
from portico.rpc.rate_limit import Rate
from portico.transports.http_server.custom_routes import Page
from portico.transports.http_server.messages import TEXT, Answer, Request

# So many in a minute, and at once: a whole office may come from one address, and a login asks for little.
REGISTRATIONS, LOGINS, TOKENS = 60.0, 120.0, 600.0
MOST_ADDRESSES = 10_000


class AddressPace:
    """Counts what each address asks of one page."""

    def __init__(self, each_minute: float) -> None:
        self._rate = Rate(60.0 / each_minute, each_minute)
        # Until when each has used up what it may have, those that were here last at the end.
        self._due: OrderedDict[str, float] = OrderedDict()

    def wait(self, address: str) -> float:
        """Count one; the seconds after which to come again if it is one too many."""
        network = network_of(address)
        taken = self._rate.take(self._due.get(network, 0.0), time.monotonic())
        self._due[network] = taken.due
        self._due.move_to_end(network)
        if len(self._due) > MOST_ADDRESSES:
            self._due.popitem(last=False)
        return taken.wait

    def around(self, page: Page) -> Page:
        async def answer(request: Request) -> Answer:
            seconds = self.wait(request.peer)
            if seconds > 0:
                return Answer(429, (*TEXT, (b"retry-after", b"%d" % ceil(seconds))), b"Too many requests\n")
            return await page(request)

        return answer
