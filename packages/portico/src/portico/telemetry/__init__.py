"""Decision whether to enable OpenTelemetry, without importing it."""

from __future__ import annotations

import logging
import os
import sys

log = logging.getLogger("portico")

# Any of these indicates a collector.
EXPORTER_VARIABLES = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
    "OTEL_TRACES_EXPORTER",
    "OTEL_METRICS_EXPORTER",
)
# Loaded if the user's program has configured OpenTelemetry itself.
_SDK_MODULES = ("opentelemetry.sdk.trace", "opentelemetry.sdk.metrics")

_warned: list[str] = []


def start_telemetry(service: str) -> None:
    """Report every request to OpenTelemetry, if the environment or the program has configured it.

    `service` is the service name unless the environment sets one. Call it before dispatchers are created; repeated
    calls have no effect.
    """
    variable = next((name for name in EXPORTER_VARIABLES if os.environ.get(name)), None)
    if variable is None and not any(name in sys.modules for name in _SDK_MODULES):
        return
    # The variable of the OpenTelemetry specification. After one warning, further servers of the process stay silent.
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or _warned:
        return
    try:
        from portico.telemetry import opentelemetry

        opentelemetry.start(service, configure=variable is not None)
    except ImportError as failure:
        _warn(f"{variable} is set, but nothing is exported: {failure}; pip install 'portico[otel]'")


def _warn(text: str) -> None:
    _warned.append(text)
    log.warning("%s", text)
