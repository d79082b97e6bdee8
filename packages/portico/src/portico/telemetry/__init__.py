"""Whether OpenTelemetry is wanted. Nothing of it is imported to find out."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING

from portico._lazy import LazyModule

if TYPE_CHECKING:
    from portico.telemetry import opentelemetry
else:
    opentelemetry = LazyModule("portico.telemetry.opentelemetry")

log = logging.getLogger("portico")

# One of these says that there is a collector.
EXPORTING = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
    "OTEL_TRACES_EXPORTER",
    "OTEL_METRICS_EXPORTER",
)
# Where a program of the user's has set it up by itself.
_SET_UP = ("opentelemetry.sdk.trace", "opentelemetry.sdk.metrics")

_told: list[str] = []


def start_telemetry(service: str) -> None:
    """Tell OpenTelemetry of every request, if the environment or the program has set it up; `service`: what this
    process is called, unless the environment says it. To be called before doors are made; often is no harm."""
    variable = next((name for name in EXPORTING if os.environ.get(name)), None)
    if variable is None and not any(name in sys.modules for name in _SET_UP):
        return
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or _told:
        return
    try:
        opentelemetry.start(service, set_up=variable is not None)
    except ImportError as failure:
        _warn(f"{variable} is set, but nothing is exported: {failure}; pip install 'portico[otel]'")


def _warn(text: str) -> None:
    _told.append(text)
    log.warning("%s", text)
