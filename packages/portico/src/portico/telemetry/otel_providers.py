"""The providers of OpenTelemetry, as the environment describes them: OTEL_TRACES_EXPORTER, OTEL_METRICS_EXPORTER,
OTEL_EXPORTER_OTLP_*, and what the SDK reads by itself. What a program has set up already stays."""

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

_PROTOCOLS = {"http/protobuf": "http", "grpc": "grpc"}


def set_up(service: str) -> None:
    resource = Resource.create({} if _is_named() else {"service.name": service})
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        exporter = _exporter("TRACES", "trace_exporter", "OTLPSpanExporter", ConsoleSpanExporter)
        if exporter is not None:
            provider = TracerProvider(resource=resource)
            provider.add_span_processor(BatchSpanProcessor(exporter))
            trace.set_tracer_provider(provider)
    if not isinstance(metrics.get_meter_provider(), MeterProvider):
        exporter = _exporter("METRICS", "metric_exporter", "OTLPMetricExporter", ConsoleMetricExporter)
        if exporter is not None:
            metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(exporter)], resource))


def is_set_up() -> bool:
    """Whether there are spans or metrics to be exported."""
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider) or isinstance(
        metrics.get_meter_provider(), MeterProvider
    )


def _is_named() -> bool:
    return bool(os.environ.get("OTEL_SERVICE_NAME")) or "service.name=" in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )


def _exporter(signal: str, module: str, name: str, console: Any) -> Any:
    """The exporter of a signal; None where there is to be none."""
    said = os.environ.get(f"OTEL_{signal}_EXPORTER") or "otlp"
    if said == "none":
        return None
    if said == "console":
        # Standard output is the client's, on stdio.
        return console(out=sys.stderr)
    if said != "otlp":
        raise UsageError(f"OTEL_{signal}_EXPORTER is {said!r}, but must be otlp, console or none")
    where = f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL"
    protocol = os.environ.get(where) or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL") or "http/protobuf"
    if protocol not in _PROTOCOLS:
        raise UsageError(f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol!r}, but must be http/protobuf or grpc")
    return getattr(import_module(f"opentelemetry.exporter.otlp.proto.{_PROTOCOLS[protocol]}.{module}"), name)()
