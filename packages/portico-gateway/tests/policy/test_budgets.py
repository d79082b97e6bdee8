"""Monthly budgets: calls and estimated tokens, over all processes and restarts."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from portico import Client, Context, Server, ToolError, UsageError
from portico.auth.principal import Principal
from portico.protocol import jsonrpc
from portico.protocol.errors import ProtocolError, TooManyRequests
from portico.protocol.meta import ClientCapabilities
from portico.rpc.call import Call, CallbackReply, Reply
from portico.server.policy import settings as access_settings
from portico.server.policy.interfaces import PolicyContext, QualifiedName
from portico.store.database import Database
from portico_gateway import Gateway
from portico_gateway.policy import budgets, shared_limit_store
from portico_gateway.policy.limiter import PolicyLimiter
from portico_gateway.policy.settings import parse_limits
from portico_gateway.policy.shared_limit_store import current_month, month_end

ANN, BOB = Principal("ann"), Principal("bob")
TIMEOUT_SECONDS = 60.0


def limited(server: Server, *limits: dict[str, Any]) -> Server:
    access_settings.apply(server, access_settings.read({"limit": list(limits)}))
    return server


def house(name: str = "house") -> Server:
    server = Server(name)

    @server.tool
    def echo(text: str = "") -> str:
        """Return the text."""
        return text

    @server.tool
    async def nested(ctx: Context) -> str:
        """Call another."""
        await ctx.call_tool("echo", {"text": "x" * 8000})
        return "done"

    @server.resource("data://text")
    def text() -> str:
        """Return a text."""
        return "text"

    return server


async def allowed(client: Client, times: int, **arguments: Any) -> int:
    results = [await client.call_tool("echo", arguments, raise_on_error=False) for _ in range(times)]
    return sum(not result.is_error for result in results)


def context(principal: Principal = ANN) -> PolicyContext:
    call = Call(method="tools/call", principal=principal, reply=Reply())
    return PolicyContext(call, "tool", QualifiedName("house", "echo"))


async def begin(limiter: PolicyLimiter, passage: PolicyContext) -> bool:
    try:
        waiting = limiter.on_component(passage)
        if waiting is not None:
            await waiting
    except (ToolError, TooManyRequests):
        return False
    return True


def end(limiter: PolicyLimiter, passage: PolicyContext, response_bytes: int = 0) -> None:
    limiter.on_response(passage)
    passage.call.reply.response_bytes = response_bytes
    passage.call.reply.close()


async def count(limiter: PolicyLimiter, times: int, response_bytes: int = 0) -> int:
    done = 0
    for _ in range(times):
        passage = context()
        if await begin(limiter, passage):
            end(limiter, passage, response_bytes)
            done += 1
    return done


def limiter(url: str, **keys: Any) -> PolicyLimiter:
    limits = parse_limits([{"tool": "*", "name": "budget", **keys}])
    return PolicyLimiter(limits, budget_store=lambda: url)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'portico.db'}"
    response: str = request.getfixturevalue("postgres_url")
    return response


async def test_calls_beyond_the_budget_get_the_time_of_the_reset() -> None:
    server = limited(house(), {"calls_per_month": 3})
    async with Client(server, principal=ANN) as ann, Client(server, principal=BOB) as bob:
        assert await allowed(ann, 3) == 3
        result = await ann.call_tool("echo", raise_on_error=False)
        assert result.is_error
        about = (result.meta or {})["portico/error"]
        assert about["error_type"] == "ApiLimitExceeded" and about["retryable"]
        assert about["budget"] == "calls" and about["limit"] == 3
        resets_at = datetime.fromisoformat(about["resets_at"])
        assert (resets_at.day, resets_at.hour, resets_at.tzinfo) == (1, 0, UTC)
        assert 0 < about["retry_after"] <= 31 * 86400
        assert f"budget of 3 calls is used up. It resets at {about['resets_at']}" in result.text
        # Each principal has its own budget.
        assert await allowed(bob, 3) == 3


async def test_lists_are_free_and_other_methods_get_a_protocol_error() -> None:
    server = limited(house(), {"calls_per_month": 2})
    async with Client(server, principal=ANN) as client:
        await client.list_tools()
        await client.read_resource("data://text")
        assert await allowed(client, 2) == 1
        with pytest.raises(ProtocolError) as caught:
            await client.read_resource("data://text")
        assert caught.value.code == TooManyRequests.code
        await client.list_tools()
        # A client that ignores the errors gets protocol errors, too.
        with pytest.raises(ProtocolError):
            await allowed(client, 30)


async def test_tokens_of_arguments_and_results_count() -> None:
    server = limited(house(), {"tokens_per_month": 1000})
    async with Client(server, principal=ANN) as client:
        # Each call has about 1,000 bytes of arguments and 1,000 of result, or more with structured content.
        done = await allowed(client, 10, text="x" * 1000)
        assert 1 < done <= 2
        about = ((await client.call_tool("echo", raise_on_error=False)).meta or {})["portico/error"]
        assert about["budget"] == "tokens"


async def test_result_of_a_nested_call_counts_once() -> None:
    server = limited(house(), {"tokens_per_month": 100_000, "tool": "house.*"})
    async with Client(server, principal=ANN) as client:
        for _ in range(5):
            await client.call_tool("nested")
        policy = server.policy
        assert policy is not None and isinstance(policy.rate_limiter, PolicyLimiter)
        ledger = policy.rate_limiter._ledger
        assert ledger is not None
        account = next(iter(ledger._held.values()))
        account.settle()
        async with Database(budget_file()) as database:
            spent = await database.read(lambda tx: tx.fetch_one(float, "select sum(spent) from portico_quota_month"))
            # Five small results; the inner results would add at least 2,000 tokens each.
            assert 0 < spent - account.reserved < 2000


def budget_file() -> str:
    return os.path.join(os.environ["PORTICO_DATA"], "budgets.db")


async def test_call_may_cost_more() -> None:
    server = limited(house(), {"calls_per_month": 10, "tool": "*", "cost": {"house.echo": 4}})
    async with Client(server, principal=ANN) as client:
        assert await allowed(client, 5) == 2
        await client.read_resource("data://text")


async def test_budgets_of_upstreams_count_in_a_gateway() -> None:
    gateway = limited(Gateway({"one": house(), "two": house()}), {"calls_per_month": 2, "tool": "one.*"})
    async with Client(gateway, principal=ANN) as client:
        await client.list_tools()
        results = [(await client.call_tool("one_echo", raise_on_error=False)).is_error for _ in range(3)]
        assert results == [False, False, True]
        assert not (await client.call_tool("two_echo", raise_on_error=False)).is_error


async def test_budget_survives_a_restart_and_a_change_of_the_file() -> None:
    first = limited(house(), {"calls_per_month": 5, "name": "free"})
    async with Client(first, principal=ANN) as client:
        assert await allowed(client, 3) == 3
    second = limited(house(), {"rate": "100/s"}, {"calls_per_month": 5, "name": "free"})
    async with Client(second, principal=ANN) as client:
        assert await allowed(client, 1) == 1
        # Changed while it runs: more budget, of which four are spent.
        limited(second, {"calls_per_month": 6, "name": "free"})
        async with asyncio.timeout(TIMEOUT_SECONDS):
            assert await allowed(client, 5) == 2
    # Another server in the same data directory has its own budget.
    async with Client(limited(house("other"), {"calls_per_month": 5, "name": "free"}), principal=ANN) as client:
        assert await allowed(client, 9) == 5


async def test_processes_never_make_more_calls_than_the_budget(url: str) -> None:
    item, two, three = (limiter(url, calls_per_month=500) for _ in range(3))
    async with item.lifespan(), two.lifespan(), three.lifespan():
        done = sum(await asyncio.gather(count(item, 250), count(two, 250), count(three, 250)))
        # Up to a hundredth may be reserved by a process that does not need it any more.
        assert 485 <= done <= 500
    async with limiter(url, calls_per_month=500).lifespan():
        pass
    last = limiter(url, calls_per_month=500)
    async with last.lifespan():
        # Closing returned the rest.
        assert done + await count(last, 100) == 500


SPEND = """
import asyncio, sys
from test_budgets import count, limiter

async def run():
    own = limiter(sys.argv[1], calls_per_month=300)
    async with own.lifespan():
        print(await count(own, 120))

asyncio.run(run())
"""


def test_several_worker_processes_share_a_budget(tmp_path: Path) -> None:
    words = (sys.executable, "-c", SPEND, f"sqlite:///{tmp_path / 'portico.db'}")
    workers = [subprocess.Popen(words, cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    done = sum(int(worker.communicate(timeout=TIMEOUT_SECONDS)[0]) for worker in workers)
    assert 285 <= done <= 300


async def test_killed_process_loses_at_most_a_hundredth(url: str) -> None:
    killed = limiter(url, calls_per_month=1000)
    lifespan = killed.lifespan()
    await lifespan.__aenter__()
    assert await count(killed, 1) == 1
    # No return: the next process sees the reservation as spent.
    other = limiter(url, calls_per_month=1000)
    async with other.lifespan():
        assert 985 <= await count(other, 1100) <= 999
    await lifespan.__aexit__(None, None, None)


async def test_idle_reservations_are_returned(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "EXHAUSTED_RETRY_SECONDS", 0.0)
    item, two = limiter(url, calls_per_month=200), limiter(url, calls_per_month=200)
    async with item.lifespan(), two.lifespan():
        assert await count(item, 1) == 1
        assert item._ledger is not None
        await item._ledger.return_unused(idle_seconds=-1.0)
        assert await count(two, 250) == 199
        assert await count(item, 1) == 0


async def test_concurrent_calls_do_not_exceed_the_budget(url: str) -> None:
    own = limiter(url, calls_per_month=20)
    async with own.lifespan(), asyncio.timeout(TIMEOUT_SECONDS):
        assert sum(await asyncio.gather(*(begin(own, context()) for _ in range(50)))) == 20


async def test_tokens_of_all_processes_count(url: str) -> None:
    item, two = limiter(url, tokens_per_month=10_000), limiter(url, tokens_per_month=10_000)
    async with item.lifespan(), two.lifespan():
        # 250 tokens each: one process learns of the other's debt with its next reservation.
        done = await count(item, 20, 1000) + await count(two, 30, 1000)
        assert 39 <= done <= 42


async def test_without_its_store_a_process_counts_alone_and_reports_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budgets, "EXHAUSTED_RETRY_SECONDS", 0.0)
    url = f"sqlite:///{tmp_path / 'portico.db'}"
    own = limiter(url, calls_per_month=20)
    async with own.lifespan():
        assert own._ledger is not None and own._ledger._store is not None
        store = own._ledger._store
        assert await count(own, 5) == 5
        store._local_only_until = float("inf")
        assert await count(own, 10) == 10
        store._local_only_until = 0.0
        assert await count(own, 10) == 5
    other = limiter(url, calls_per_month=20)
    async with other.lifespan():
        assert await count(other, 1) == 0


async def test_new_month_has_the_whole_budget(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = limiter(url, calls_per_month=5)
    async with own.lifespan():
        assert await count(own, 9) == 5
        now = month_end(current_month(datetime.now(UTC).timestamp())) + 1
        monkeypatch.setattr(budgets.time, "time", lambda: now)
        monkeypatch.setattr(shared_limit_store, "current_month", lambda _: current_month(now))
        assert await count(own, 9) == 5


@pytest.mark.parametrize(
    "moment, month, end",
    [
        ("2026-01-01T00:00:00Z", 202601, "2026-02-01T00:00:00Z"),
        ("2026-12-31T23:59:59Z", 202612, "2027-01-01T00:00:00Z"),
        ("2028-02-29T12:00:00Z", 202802, "2028-03-01T00:00:00Z"),
    ],
)
def test_months_are_calendar_months_in_utc(moment: str, month: int, end: str) -> None:
    assert current_month(datetime.fromisoformat(moment).timestamp()) == month
    assert month_end(month) == datetime.fromisoformat(end).timestamp()


async def test_ended_calls_are_bounded_and_busy_replies_are_not_forgotten() -> None:
    own = limiter("unused", tokens_per_month=10**9)
    for _ in range(1000):
        passage = context()
        assert await begin(own, passage)
        own.on_response(passage)  # the reply never closes
    ledger = own._ledger
    assert ledger is not None
    account = next(iter(ledger._held.values()))
    assert len(account.unsettled) <= budgets.MAX_UNSETTLED_CALLS + 1


async def test_names_of_callers_are_not_stored(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'portico.db'}"
    own = limiter(url, calls_per_month=5)
    async with own.lifespan():
        passage = context(Principal("ann'; drop table portico_quota_month; --"))
        assert await begin(own, passage)
    assert b"drop table" not in (tmp_path / "portico.db").read_bytes()


async def test_budget_file_needs_a_writable_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PORTICO_DATA", str(tmp_path / "file" / "data"))
    with pytest.raises(UsageError, match="cannot store monthly budgets"):
        async with Client(limited(house(), {"calls_per_month": 5})):
            pass


@pytest.mark.parametrize(
    "table, words",
    [
        ({"calls_per_month": 0}, "calls_per_month must be between 1 and"),
        ({"tokens_per_month": -5}, "tokens_per_month must be between 1 and"),
        ({"tokens_per_month": 10**13}, "tokens_per_month must be between 1 and"),
        ({"tokens_per_month": "5"}, "tokens_per_month"),
        ({"tokens_per_mont": 5}, "tokens_per_month"),
        ({"calls_per_month": 5, "cost": 6}, "between 0 and 5"),
    ],
)
def test_mistakes_in_budgets(table: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_limits([table])


async def test_results_of_tasks_count_in_every_process_and_for_listeners(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'portico.db'}"
    capabilities = ClientCapabilities(extensions={"io.modelcontextprotocol/tasks": {}})

    def make_server() -> Server:
        server = Server("house", store=store)

        @server.tool(task=True)
        async def slow() -> str:
            return "x" * 40_000

        return limited(server, {"tokens_per_month": 1_000_000})

    def call_of(method: str, params: dict[str, Any], **members: Any) -> Call:
        return Call(
            method=method,
            params=Raw(jsonrpc.encode(params)),
            id=1,
            protocol_version="2026-07-28",
            capabilities=capabilities,
            principal=ANN,
            **members,
        )

    async def spent() -> float:
        async with Database(store) as database:
            return await database.read(
                lambda tx: tx.fetch_one(
                    float, "select sum(spent) from portico_quota_month where month = ?", [current_month(time.time())]
                )
            )

    first = make_server()
    async with first.lifespan():
        created = await first(call_of("tools/call", {"name": "slow", "arguments": {}}))
        completed = asyncio.Event()

        def notify(method: str, params: Any) -> None:
            if getattr(params, "status", "") == "completed":
                completed.set()

        params = {"notifications": {"taskIds": [created.task_id]}}
        listening = asyncio.ensure_future(first(call_of("subscriptions/listen", params, reply=CallbackReply(notify))))
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await completed.wait()
        listening.cancel()
    listened = await spent()
    assert 10_000 < listened < 40_000
    # The principal has called nothing in this process.
    second = make_server()
    async with second.lifespan():
        reply = CallbackReply(lambda method, params: None)
        task = await second(call_of("tasks/get", {"taskId": created.task_id}, reply=reply))
        reply.response_bytes = len(jsonrpc.encode(task))
        reply.close()
    assert await spent() >= listened + 10_000
