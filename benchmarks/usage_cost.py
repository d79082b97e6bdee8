"""Cost of usage: per call for a monthly budget, and per record for a report from the audit log.

    python benchmarks/usage_cost.py [--calls 200000] [--rounds 7]

Usage itself reads the audit log and costs nothing while calls are served. A budget is charged before and after each
call; the table compares it with a limiter whose only limit does not match. Prints the CPU time of the event loop, the
best of several rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

from portico.auth.principal import Principal
from portico.rpc.call import Call, Reply
from portico.server.policy.interfaces import PolicyContext, QualifiedName
from portico_gateway.audit.usage import UsageRecord, aggregate_usage
from portico_gateway.policy.limiter import PolicyLimiter
from portico_gateway.policy.settings import parse_limits

CASES: dict[str, dict[str, Any]] = {
    "limit that does not match": {"rate": "1/s", "tool": "other.*"},
    "rate": {"rate": "10000000/s", "tool": "*"},
    "calls_per_month": {"calls_per_month": 10**12, "tool": "*"},
    "tokens_per_month": {"tokens_per_month": 10**12, "tool": "*"},
    "both": {"calls_per_month": 10**12, "tokens_per_month": 10**12, "tool": "*"},
}


async def charge_ns(table: dict[str, Any], calls: int, store: str | None) -> float:
    """Return the time for charging one call, in nanoseconds."""
    limiter = PolicyLimiter(parse_limits([table]), budget_store=lambda: store)
    component = QualifiedName("house", "echo")
    principal = Principal("ann")
    async with limiter.lifespan():
        contexts = [
            PolicyContext(Call(method="tools/call", principal=principal, reply=Reply()), "tool", component)
            for _ in range(calls)
        ]
        began = time.thread_time_ns()
        for context in contexts:
            waiting = limiter.on_component(context)
            if waiting is not None:
                await waiting
            if context.leases:
                limiter.on_response(context)
            context.call.reply.closed = True
        return (time.thread_time_ns() - began) / calls


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name, table in CASES.items():
            store = str(Path(folder) / "budgets.db") if "month" in name or name == "both" else None
            times = [asyncio.run(charge_ns(table, arguments.calls, store)) for _ in range(arguments.rounds)]
            print(f"{name:<28} {min(times):8,.0f} ns per call")
    records = [
        UsageRecord(method="tools/call", owner="a", name=f"t{at % 50}", micros=at) for at in range(arguments.calls)
    ]
    began = time.thread_time_ns()
    aggregate_usage(records, "tool")
    print(f"{'report, without the store':<28} {(time.thread_time_ns() - began) / arguments.calls:8,.0f} ns per record")


if __name__ == "__main__":
    main()
