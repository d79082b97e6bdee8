"""The numbers of several workers as those of one: Prometheus text, line by line."""

from __future__ import annotations

from collections.abc import Iterable

# What is not made of parts: how long the oldest is there.
_LARGEST = frozenset({"mcp_server_uptime_seconds"})


def total(texts: Iterable[str]) -> str:
    """Every series with the sum of its values, in the order in which they were first seen."""
    values: dict[str, float] = {}
    kinds: dict[str, str] = {}
    for text in texts:
        for line in text.splitlines():
            if line.startswith("# TYPE "):
                kinds.setdefault(line.split(" ")[2], line)
                continue
            series, _, said = line.rpartition(" ")
            try:
                value = float(said)
            except ValueError:
                continue
            largest = series in _LARGEST
            values[series] = max(values.get(series, 0.0), value) if largest else values.get(series, 0.0) + value
    return "\n".join(_lines(values, kinds)) + "\n"


def _lines(values: dict[str, float], kinds: dict[str, str]) -> list[str]:
    lines: list[str] = []
    last = ""
    for series in sorted(values, key=lambda one: list(kinds).index(_family(one, kinds))):
        family = _family(series, kinds)
        if family != last:
            lines.append(kinds[family])
            last = family
        lines.append(f"{series} {values[series]:.15g}")
    return lines


def _family(series: str, kinds: dict[str, str]) -> str:
    """What a series belongs to: that of a histogram has a word more in its name."""
    name = series.partition("{")[0]
    for end in ("", "_bucket", "_sum", "_count"):
        if name.endswith(end) and name.removesuffix(end) in kinds:
            return name.removesuffix(end)
    kinds[name] = f"# TYPE {name} untyped"
    return name
