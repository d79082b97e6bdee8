"""Custom routes, on the listener and through ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from portico import Server, UsageError
from portico.auth.principal import Principal
from portico.transports.http_server import custom_routes
from portico.transports.http_server.custom_routes import MAX_FORM_BYTES, CustomRoute, CustomRoutes
from portico.transports.http_server.headers import Headers
from portico.transports.http_server.messages import HttpRequest, HttpResponse

TEXT = ((b"content-type", b"text/plain"),)


async def hello(request: HttpRequest) -> HttpResponse:
    return HttpResponse(200, TEXT, f"{request.method} {request.path}?{request.query} {request.principal}".encode())


async def form(request: HttpRequest) -> HttpResponse:
    return HttpResponse(303, ((b"location", b"/hello"), (b"set-cookie", b"a=b")), b"got " + request.body)


@pytest.fixture
def paged(server: Server) -> Server:
    server.custom_routes += [
        CustomRoute("GET", "/hello", hello),
        CustomRoute("POST", "/form", form),
        CustomRoute("GET", "/below/", hello, prefix=True),
        CustomRoute("GET", "/inside", hello, guarded=True),
    ]
    return server


async def test_custom_route_matches_path_and_prefix(paged: Server, serve: Callable[..., Any]) -> None:
    site = await serve(paged)
    assert (await site.request("GET", "/hello?a=1")).body == b"GET /hello?a=1 None"
    assert (await site.request("GET", "/below/deep/er")).body == b"GET /below/deep/er? None"
    head = await site.request("HEAD", "/hello")
    assert (head.status, head["content-length"]) == (200, "16")
    assert (await site.request("GET", "/hell")).status == 404
    wrong = await site.request("DELETE", "/hello")
    assert (wrong.status, wrong["allow"]) == (405, "GET")


@pytest.mark.parametrize("door", ["listener", "asgi"])
async def test_judge_hears_of_every_request(server: Server, serve: Callable[..., Any], door: str) -> None:
    """However often the same head has come: it goes by more than that."""
    heard: list[str] = []

    def judge(request: HttpRequest) -> HttpResponse | None:
        heard.append(request.peer)
        return HttpResponse(404) if len(heard) > 3 else None

    server.custom_routes += [CustomRoute("POST", "/judged", form, judge=judge)]
    statuses: list[int] = []
    if door == "asgi":
        application = server.http_app()
        statuses = [(await asked(application, "POST", "/judged", b"x"))[0] for _ in range(5)]
        await application.stop()
    else:
        raw = await (await serve(server)).connect()
        for _ in range(5):
            raw.send(b"POST /judged HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\n\r\nx")
            statuses.append((await raw.response()).status)
    assert statuses == [303, 303, 303, 404, 404]


async def test_form_needs_no_json_and_may_not_be_long(paged: Server, serve: Callable[..., Any]) -> None:
    site = await serve(paged)
    kind = {"content-type": "application/x-www-form-urlencoded"}
    answer = await site.request("POST", "/form", kind, b"a=1&b=2")
    assert (answer.status, answer["location"], answer["set-cookie"]) == (303, "/hello", "a=b")
    assert answer.body == b"got a=1&b=2"
    assert (await site.request("POST", "/form", kind, b"x" * (MAX_FORM_BYTES + 1))).status == 413


async def test_custom_route_is_public_unless_protected(paged: Server, serve: Callable[..., Any]) -> None:
    @paged.custom_route("/mine", authenticated=True)
    def mine(request: Any) -> str:
        return str(request.user.id)

    site = await serve(paged, token="secret")
    assert (await site.request("GET", "/hello", {"authorization": None})).status == 200
    assert (await site.request("GET", "/inside", {"authorization": None})).status == 401
    assert (await site.request("GET", "/mine", {"authorization": None})).status == 401
    assert (await site.request("GET", "/mine")).body == b"token"
    inside = await site.request("GET", "/inside")
    assert b"Principal(id='token'" in inside.body


async def test_other_hosts_and_origins_see_no_page(paged: Server, serve: Callable[..., Any]) -> None:
    site = await serve(paged)
    assert (await site.request("GET", "/hello", {"host": "evil.example"})).status == 403
    assert (await site.request("GET", "/hello", {"origin": "https://evil.example"})).status == 403


async def test_failed_custom_route_discloses_nothing(
    server: Server, serve: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(request: HttpRequest) -> HttpResponse:
        raise ValueError("a secret")

    server.custom_routes.append(CustomRoute("GET", "/broken", broken))
    site = await serve(server)
    answer = await site.request("GET", "/broken")
    assert (answer.status, answer.body) == (500, b"Internal error\n")
    caplog.clear()


async def test_disconnect_cancels_a_custom_route(server: Server, serve: Callable[..., Any], held: Any) -> None:
    async def slow(request: HttpRequest) -> HttpResponse:
        await held.body()
        return HttpResponse(200)

    server.custom_routes.append(CustomRoute("GET", "/slow", slow))
    site = await serve(server)
    raw = await site.connect()
    raw.send(site.bytes("GET", "/slow"))
    await held.has_started()
    raw.abort()
    await held.was_cancelled()


class Answer:
    """A writer that notes the status."""

    on_close: Any = None
    status: int | None = None

    def respond(self, response: HttpResponse) -> None:
        self.status = response.status


@pytest.mark.parametrize("others", ["192.0.2.2", "2001:db8:0:1::1"])
async def test_one_caller_leaves_custom_routes_to_others(monkeypatch: pytest.MonkeyPatch, others: str) -> None:
    monkeypatch.setattr(custom_routes, "MAX_CONCURRENT_REQUESTS", 8)
    go_on = asyncio.Event()

    async def slow(request: HttpRequest) -> HttpResponse:
        await go_on.wait()
        return HttpResponse(200)

    route = CustomRoute("GET", "/slow", slow)
    routes = CustomRoutes([route])

    def ask(peer: str, principal: Any = None) -> Answer:
        answer = Answer()
        request = HttpRequest("GET", "/slow", "", Headers(), peer=peer)
        request.principal = principal
        routes.dispatch(route, request, answer)  # type: ignore[arg-type]
        return answer

    # The addresses of one IPv6 network are one caller, and so is a principal at any address.
    item = [ask("2001:db8::1"), ask("2001:db8::2"), ask("2001:db8::3")]
    user = [ask(others, Principal("ada")), ask("192.0.2.9", Principal("ada")), ask("192.0.2.10", Principal("ada"))]
    other = ask(others)
    assert [answer.status for answer in (*item, *user, other)] == [None, None, 503, None, None, 503, None]
    go_on.set()
    async with asyncio.timeout(10):
        await routes._running.wait(10)
    assert [answer.status for answer in (*item[:2], *user[:2], other)] == [200] * 5
    assert not routes._running_by_caller


async def test_same_by_asgi(paged: Server) -> None:
    application = paged.http_app()
    assert await asked(application, "GET", "/hello") == (200, b"GET /hello? None")
    assert await asked(application, "POST", "/form", b"a=1") == (303, b"got a=1")
    assert await asked(application, "GET", "/outer/below/x", root="/outer") == (200, b"GET /below/x? None")
    assert (await asked(application, "GET", "/nowhere"))[0] == 404
    await application.stop()


async def asked(application: Any, method: str, path: str, body: bytes = b"", root: str = "") -> tuple[int, bytes]:
    """One request to an ASGI application."""
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "root_path": root,
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
        "client": ("127.0.0.1", 1),
    }
    messages: list[Any] = [{"type": "http.request", "body": body}]
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0) if messages else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    async with asyncio.timeout(10):
        await application(scope, receive, send)
    return sent[0]["status"], b"".join(item.get("body", b"") for item in sent[1:])


def test_page_is_at_a_path_that_nothing_else_has() -> None:
    for wrong in (CustomRoute("GET", "hello", hello), CustomRoute("GET", "/a", hello, prefix=True)):
        with pytest.raises(UsageError, match="cannot add a route at"):
            CustomRoutes([wrong])
    with pytest.raises(UsageError, match="already in use"):
        CustomRoutes([CustomRoute("GET", "/mcp", hello)], reserved={("POST", "/mcp")})
