"""OpenTelemetry providers configured from the environment: OTEL_TRACES_EXPORTER, OTEL_METRICS_EXPORTER,
OTEL_EXPORTER_OTLP_* and the variables of the SDK.

Providers that the program has configured are left unchanged.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

from portico.protocol.errors import UsageError

# The values of OTEL_EXPORTER_OTLP_PROTOCOL, and the packages that implement them.
_PROTOCOLS = {"http/protobuf": "http", "grpc": "grpc"}


def configure_providers(service: str) -> None:
    """Create tracer and meter providers from the environment, unless the program has set its own."""
    resource = Resource.create({} if _names_service() else {"service.name": service})
    # The proxy means that the program has set no provider; one that it has set is used as it is.
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        exporter = _create_exporter("TRACES", "trace_exporter", "OTLPSpanExporter", ConsoleSpanExporter)
        if exporter is not None:
            provider = TracerProvider(resource=resource)
            provider.add_span_processor(BatchSpanProcessor(exporter))
            trace.set_tracer_provider(provider)
    if not isinstance(metrics.get_meter_provider(), MeterProvider):
        exporter = _create_exporter("METRICS", "metric_exporter", "OTLPMetricExporter", ConsoleMetricExporter)
        if exporter is not None:
            metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(exporter)], resource))


def is_configured() -> bool:
    """Return whether spans or metrics are exported."""
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider) or isinstance(
        metrics.get_meter_provider(), MeterProvider
    )


def _names_service() -> bool:
    return bool(os.environ.get("OTEL_SERVICE_NAME")) or "service.name=" in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )


def _create_exporter(signal: str, module: str, name: str, console: Any) -> Any:
    """Return the exporter of a signal, or None if it is disabled. Raises UsageError."""
    exporter_name = os.environ.get(f"OTEL_{signal}_EXPORTER") or "otlp"
    if exporter_name == "none":
        return None
    if exporter_name == "console":
        # On stdio, standard output belongs to the client.
        return console(out=sys.stderr)
    if exporter_name != "otlp":
        raise UsageError(f"OTEL_{signal}_EXPORTER must be otlp, console or none, got {exporter_name!r}")
    variable = f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL"
    protocol = os.environ.get(variable) or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL") or "http/protobuf"
    if protocol not in _PROTOCOLS:
        raise UsageError(f"OTEL_EXPORTER_OTLP_PROTOCOL must be http/protobuf or grpc, got {protocol!r}")
    # Imported by name: the gRPC exporter is large and rarely installed.
    return getattr(import_module(f"opentelemetry.exporter.otlp.proto.{_PROTOCOLS[protocol]}.{module}"), name)()
