"""OAuth flows as generators, without I/O.

A flow yields the requests it needs, receives their responses, and returns its result. `drive` is the asynchronous
driver; a synchronous one is the same loop without `await`.

A driver that cannot perform a request throws the error into the flow or lets it propagate.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec
from msgspec import Struct

from portico.auth.errors import AuthorizationError, InvalidRedirect, UnsafeUrl
from portico.auth.url_policy import MAX_RESPONSE_BYTES, check_url
from portico.protocol.errors import UsageError
from portico.protocol.json_depth import decode_bounded

HeaderItems = Sequence[tuple[str, str]]


class FetchRequest(Struct, frozen=True):
    """One HTTP request. `url_policy.check_redirect` checks redirects; `MAX_RESPONSE_BYTES` limits bodies."""

    method: str
    url: str
    headers: HeaderItems = ()
    body: bytes = b""

    def __repr__(self) -> str:
        return f"FetchRequest({self.method!r}, {self.url!r})"  # headers and body carry secrets


class FetchResponse(Struct, frozen=True):
    """HTTP response. HeaderItems are pairs, because a field may occur more than once."""

    status: int
    headers: HeaderItems = ()
    body: bytes = b""

    def header(self, name: str) -> str | None:
        """Return all fields of that name, joined as in RFC 9110, section 5.3, or None."""
        headers = [value for key, value in self.headers if key.lower() == name.lower()]
        return ", ".join(headers) if headers else None

    def json_object(self) -> dict[str, Any] | None:
        """Return the body if it is a JSON object, else None."""
        if len(self.body) > MAX_RESPONSE_BYTES:
            return None
        try:
            bounded = decode_bounded(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        return bounded if isinstance(bounded, dict) else None


class BrowserRequest(Struct, frozen=True):
    """Request to show a page to the user. The reply is the parameters of the redirect: see `parse_redirect`."""

    url: str
    redirect_uri: str


class DeviceCodeRequest(Struct, frozen=True):
    """Request to show a user code, which the user enters on another device (RFC 8628, section 3.3). No reply."""

    verification_uri: str
    user_code: str
    # The same page with the code filled in, for a link or a QR code.
    verification_uri_complete: str | None = None
    expires_in: float = 0.0


class WaitRequest(Struct, frozen=True):
    """Request to continue after a delay. No reply."""

    seconds: float


FlowRequest = FetchRequest | BrowserRequest | DeviceCodeRequest | WaitRequest
FlowResponse = FetchResponse | Mapping[str, str] | None

T = TypeVar("T")
AuthFlow = Generator[FlowRequest, FlowResponse, T]


async def drive(flow: AuthFlow[T], perform: Callable[[FlowRequest], Awaitable[FlowResponse]]) -> T:
    """Run a flow and return its result. `perform` answers each request that the flow yields.

    The flow can handle a failed fetch, for example repeat it, but not one that was refused as unsafe.
    """
    resume: Callable[[], FlowRequest] = partial(flow.send, None)
    while True:
        try:
            request = resume()
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        try:
            resume = partial(flow.send, await perform(request))
        except AuthorizationError as failure:
            if not isinstance(request, FetchRequest) or isinstance(failure, UnsafeUrl):
                raise
            resume = partial(flow.throw, failure)


async def drive_without_browser(flow: AuthFlow[T], fetch: Callable[[FetchRequest], Awaitable[FetchResponse]]) -> T:
    """Run a flow that only fetches. Raises UsageError if it asks for a browser."""

    async def perform(request: FlowRequest) -> FlowResponse:
        if not isinstance(request, FetchRequest):
            raise UsageError("this authorization flow requires a browser, which is not available here")
        return await fetch(request)

    return await drive(flow, perform)


def fetch(method: str, url: str, headers: HeaderItems = (), body: bytes = b"") -> AuthFlow[FetchResponse]:
    """Yield one HTTP request and return its response."""
    check_url(url)
    reply = yield FetchRequest(method, url, headers, body)
    if not isinstance(reply, FetchResponse):
        raise UsageError(f"the reply to a FetchRequest must be a FetchResponse, got {type(reply).__name__}")
    return reply


def post_form(url: str, form: Mapping[str, str], headers: HeaderItems = ()) -> AuthFlow[FetchResponse]:
    """Send a form by POST and return the response."""
    form_headers = (("Content-Type", "application/x-www-form-urlencoded"), ("Accept", "application/json"))
    return fetch("POST", url, (*form_headers, *headers), urlencode(form).encode())


def open_browser(url: str, redirect_uri: str) -> AuthFlow[Mapping[str, str]]:
    """Open a page in the browser and return the parameters of the redirect."""
    check_url(url)
    reply = yield BrowserRequest(url, redirect_uri)
    if not isinstance(reply, Mapping):
        raise UsageError(f"the reply to a BrowserRequest must be a mapping of parameters, got {type(reply).__name__}")
    return reply


def parse_redirect(target: str) -> dict[str, str]:
    """Return the parameters of a redirect, from its URL or query, decoded once and not normalized.

    Repeated parameters raise `InvalidRedirect` (RFC 6749, section 3.1): two parsers could choose different values.
    """
    query = urlsplit(target).query if "?" in target else target
    result: dict[str, str] = {}
    try:
        # Legitimate redirects have about five parameters.
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=64)
    except ValueError:
        raise InvalidRedirect("The redirect has too many parameters. Start again.") from None
    for name, value in pairs:
        if name in result:
            raise InvalidRedirect(f"The redirect has the parameter {name!r} twice. Start again.")
        result[name] = value
    return result
