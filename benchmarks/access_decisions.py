"""Measure access policy: one decision among a hundred rules, one list, one rate limit. `python
benchmarks/access_decisions.py`
"""

from __future__ import annotations

import time
from collections.abc import Callable

from portico.auth.principal import Principal
from portico.rpc.call import Call
from portico.server.policy.interfaces import PolicyContext, QualifiedName
from portico_gateway.policy.engine import PolicyEngine
from portico_gateway.policy.limiter import PolicyLimiter
from portico_gateway.policy.settings import parse_limits, parse_requirements, parse_rules

RULES = 100
TIMES = 200_000


def microseconds(fn: Callable[[], object], times: int = TIMES) -> float:
    """Return the best of five runs."""
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(times // 5):
            fn()
        best = min(best, (time.perf_counter() - began) / (times // 5))
    return best * 1e6


def main() -> None:
    tables = [{"principal": f"group:team{at}", "tool": f"upstream{at % 20}.tool{at}_*"} for at in range(RULES - 1)]
    rules = PolicyEngine(
        parse_rules([*tables, {"tool": "*.read_*"}]),
        parse_requirements([{"tool": "*.delete_*", "confirm": "Delete {arguments.repo}?"}]),
    )
    call = Call(method="tools/call", principal=Principal("ann", groups=frozenset({"team50"})))
    last, none = QualifiedName("upstream3", "read_x"), QualifiedName("upstream3", "write_x")
    names = iter(range(10**9))
    meter = PolicyLimiter(parse_limits([{"by": ["principal", "tool"], "rate": "100000000/s"}]))
    rows = {
        "allowed by the last rule": microseconds(lambda: rules.decide(call, "tool", last)),
        "matched by none": microseconds(lambda: rules.decide(call, "tool", none)),
        "what is required": microseconds(lambda: rules.check_requirements(call, "tool", last)),
        "in a list": microseconds(lambda: rules.visibility(call).is_visible("tool", last)),
        "a name for the first time": microseconds(
            lambda: rules.decide(call, "tool", QualifiedName("a", f"b{next(names)}")), 5000
        ),
        "a limit": microseconds(lambda: meter.on_component(PolicyContext(call, "tool", last))),
    }
    print(f"{RULES} rules; µs each")
    for name, found in rows.items():
        print(f"  {name:<28}{found:8.2f}")


if __name__ == "__main__":
    main()
