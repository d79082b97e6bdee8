"""Talking to authorization servers without touching a socket.

A conversation is a generator. What it yields is what it wants done, what it is sent is how that went, and what it
returns is what the talk was for. A driver does the rest, in ten lines and in any colour of function:

    def hold(conversation):
        reply = None
        while True:
            try:
                wanted = conversation.send(reply)
            except StopIteration as done:
                return done.value
            reply = fetch(wanted) if isinstance(wanted, Fetch) else visit(wanted)

A driver that cannot do what is wanted throws the error into the conversation, or just lets it fly.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec
from msgspec import Struct

from portico.auth.errors import RedirectRejected
from portico.auth.url_policy import MAX_BODY, check_url
from portico.protocol.errors import UsageError
from portico.protocol.json_depth import decode_bounded

Headers = Sequence[tuple[str, str]]


class Fetch(Struct, frozen=True):
    """One HTTP request. Redirects are for `addresses.check_redirect` to judge; the body is bounded by `MAX_BODY`."""

    method: str
    url: str
    headers: Headers = ()
    body: bytes = b""

    def __repr__(self) -> str:
        return f"Fetch({self.method!r}, {self.url!r})"  # the rest is secrets


class Fetched(Struct, frozen=True):
    """How it was answered. Headers are pairs, because a field may come more than once."""

    status: int
    headers: Headers = ()
    body: bytes = b""

    def header(self, name: str) -> str | None:
        """All fields of that name as one, as RFC 9110, section 5.3 joins them."""
        found = [value for key, value in self.headers if key.lower() == name.lower()]
        return ", ".join(found) if found else None

    def document(self) -> dict[str, Any] | None:
        """The body if it is a JSON object. Anything else, such as a page that says so politely, is None."""
        if len(self.body) > MAX_BODY:
            return None
        try:
            found = decode_bounded(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        return found if isinstance(found, dict) else None


class Visit(Struct, frozen=True):
    """Show this page to the user. The reply is what arrives at the redirect URI: see `redirect_parameters`."""

    url: str
    redirect_uri: str


Wanted = Fetch | Visit
Reply = Fetched | Mapping[str, str] | None

T = TypeVar("T")
Conversation = Generator[Wanted, Reply, T]


def fetch(method: str, url: str, headers: Headers = (), body: bytes = b"") -> Conversation[Fetched]:
    check_url(url)
    reply = yield Fetch(method, url, headers, body)
    if not isinstance(reply, Fetched):
        raise UsageError(f"the reply to a Fetch is a Fetched, not {type(reply).__name__}")
    return reply


def post_form(url: str, form: Mapping[str, str], headers: Headers = ()) -> Conversation[Fetched]:
    kind = (("Content-Type", "application/x-www-form-urlencoded"), ("Accept", "application/json"))
    return fetch("POST", url, (*kind, *headers), urlencode(form).encode())


def visit(url: str, redirect_uri: str) -> Conversation[Mapping[str, str]]:
    check_url(url)
    reply = yield Visit(url, redirect_uri)
    if not isinstance(reply, Mapping):
        raise UsageError(f"the reply to a Visit is a mapping of parameters, not {type(reply).__name__}")
    return reply


def redirect_parameters(target: str) -> dict[str, str]:
    """What a redirect carries, from its URL or its query, decoded once and normalised in no way.

    A parameter that comes twice is refused (RFC 6749, section 3.1): two readers would read two things.
    """
    query = urlsplit(target).query if "?" in target else target
    found: dict[str, str] = {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=64)
    except ValueError:
        raise RedirectRejected("The redirect carries more parameters than any answer has. Start again.") from None
    for name, value in pairs:
        if name in found:
            raise RedirectRejected(f"The redirect carries the parameter {name!r} twice. Start again.")
        found[name] = value
    return found
