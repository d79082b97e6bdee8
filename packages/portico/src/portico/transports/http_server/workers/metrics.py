"""The numbers of several workers as those of one: Prometheus text, line by line."""

from __future__ import annotations

from collections.abc import Callable, Iterable

# Gauges of which every worker has its own opinion of the same thing, and no part of it. All others are summed.
_MERGED: dict[str, Callable[[Iterable[float]], float]] = {
    "mcp_server_uptime_seconds": max,
    # An upstream is up if all workers that have tried it could reach it.
    "portico_upstream_up": min,
    "portico_upstream_retry_after_seconds": max,
    "portico_upstream_tools": max,
    "portico_gateway_configuration_not_applied": max,
    "portico_gateway_clashes": max,
    "portico_gateway_held": max,
}


def total(texts: Iterable[str]) -> str:
    """Return every series with its values merged, by their sum unless _MERGED has another way."""
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
            if series in values:
                merge = _MERGED.get(series.partition("{")[0])
                values[series] = values[series] + value if merge is None else merge((values[series], value))
            else:
                values[series] = value
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
