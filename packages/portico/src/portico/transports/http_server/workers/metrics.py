"""Aggregation of the metrics of several workers, as Prometheus text."""

from __future__ import annotations

from collections.abc import Callable, Iterable

# Gauges that describe the same thing in every worker, and must not be summed. All others are summed.
_MERGED: dict[str, Callable[[Iterable[float]], float]] = {
    "mcp_server_uptime_seconds": max,
    # An upstream is up if every worker that tried it could reach it.
    "portico_upstream_up": min,
    "portico_upstream_retry_after_seconds": max,
    "portico_upstream_tools": max,
    "portico_gateway_configuration_not_applied": max,
    "portico_gateway_name_conflicts": max,
    "portico_gateway_unapproved_entries": max,
}


def aggregate_metrics(texts: Iterable[str]) -> str:
    """Return every series with its values merged: summed unless `_MERGED` specifies otherwise."""
    values: dict[str, float] = {}
    kinds: dict[str, str] = {}
    for text in texts:
        for line in text.splitlines():
            if line.startswith("# TYPE "):
                kinds.setdefault(line.split(" ")[2], line)
                continue
            series, _, number = line.rpartition(" ")
            try:
                value = float(number)
            except ValueError:
                continue
            if series in values:
                merge = _MERGED.get(series.partition("{")[0])
                values[series] = values[series] + value if merge is None else merge((values[series], value))
            else:
                values[series] = value
    return "\n".join(_render(values, kinds)) + "\n"


def _render(values: dict[str, float], kinds: dict[str, str]) -> list[str]:
    lines: list[str] = []
    last = ""
    for series in sorted(values, key=lambda series_name: list(kinds).index(_metric_family(series_name, kinds))):
        family = _metric_family(series, kinds)
        if family != last:
            lines.append(kinds[family])
            last = family
        lines.append(f"{series} {values[series]:.15g}")
    return lines


def _metric_family(series: str, kinds: dict[str, str]) -> str:
    """Return the metric family of a series. Series of histograms have a suffix."""
    name = series.partition("{")[0]
    for end in ("", "_bucket", "_sum", "_count"):
        if name.endswith(end) and name.removesuffix(end) in kinds:
            return name.removesuffix(end)
    kinds[name] = f"# TYPE {name} untyped"
    return name
