"""Rate limits per client address, for routes that need no authentication."""

from __future__ import annotations

import time
from math import ceil

from portico.rpc.identity import client_network
from portico.rpc.rate_limit import RateLimit, RateLimiter
from portico.transports.http_server.custom_routes import RouteFunction
from portico.transports.http_server.messages import TEXT_HEADERS, HttpRequest, HttpResponse

# Requests per minute, and burst. Generous: a whole office may share one address, and a login needs few requests.
REGISTRATIONS_PER_MINUTE, LOGINS_PER_MINUTE, TOKENS_PER_MINUTE = 60.0, 120.0, 600.0


class IpRateLimiter:
    """Limits the requests of each client address to one route."""

    def __init__(self, requests_per_minute: float) -> None:
        self._limiter = RateLimiter(RateLimit(60.0 / requests_per_minute, requests_per_minute))

    def acquire(self, address: str) -> float:
        """Count one request. Return 0, or the seconds after which to retry if the limit is exceeded."""
        return self._limiter.take(client_network(address), time.monotonic())

    def wrap(self, page: RouteFunction) -> RouteFunction:
        async def answer(request: HttpRequest) -> HttpResponse:
            seconds = self.acquire(request.peer)
            if seconds > 0:
                return HttpResponse(
                    429, (*TEXT_HEADERS, (b"retry-after", b"%d" % ceil(seconds))), b"Too many requests\n"
                )
            return await page(request)

        return answer
