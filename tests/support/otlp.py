"""Run servers that export telemetry, and an OTLP receiver."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from support.paths import PROGRAMS

TIMEOUT_SECONDS = 30.0
SERVED = PROGRAMS / "telemetry_server.py"
PORTICO = [sys.executable, "-m", "portico"]
_CLEAN = {
    name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "PORTICO_LOG_LEVEL", "PORTICO_"))
}


@contextmanager
def serving(*words: str | Path, log: Path, **env: str) -> Iterator[str]:
    """Run `portico serve` over HTTP and yield its URL. Standard error is written to the file."""
    with log.open("wb") as err:
        child = subprocess.Popen(
            [*PORTICO, "serve", *map(str, words), "--port", "0", "--no-auth"],
            stderr=err,
            stdin=subprocess.DEVNULL,
            env={**_CLEAN, "PORTICO_DATA": str(log.parent / "data"), **env},
        )
        try:
            yield _url(child, log)
        finally:
            child.terminate()
            child.wait(TIMEOUT_SECONDS)


def _url(child: subprocess.Popen[bytes], log: Path) -> str:
    end = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < end and child.poll() is None:
        for line in log.read_text().splitlines(keepends=True):
            if line.startswith("Serving on ") and line.endswith("\n"):
                return line.split()[2]
        threading.Event().wait(0.02)
    raise AssertionError(f"it did not start: {log.read_text()}")


def call(url: str, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PORTICO, "call", url, *words],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        env={**_CLEAN, **env},
        stdin=subprocess.DEVNULL,
    )


class Receiver:
    """An OTLP receiver over HTTP that stores the spans and metrics, and responds as a collector does."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Any]] = []
        self.metrics: list[tuple[str, Any]] = []
        self._news = threading.Condition()

    def take(self, path: str, body: bytes) -> bytes:
        from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as measured
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traced

        with self._news:
            if path == "/v1/traces":
                for resource in traced.ExportTraceServiceRequest.FromString(body).resource_spans:
                    service = attributes(resource.resource)["service.name"]
                    self.spans += [(service, span) for scope in resource.scope_spans for span in scope.spans]
                answer = traced.ExportTraceServiceResponse()
            else:
                for resource in measured.ExportMetricsServiceRequest.FromString(body).resource_metrics:
                    service = attributes(resource.resource)["service.name"]
                    self.metrics += [(service, metric) for scope in resource.scope_metrics for metric in scope.metrics]
                answer = measured.ExportMetricsServiceResponse()
            self._news.notify_all()
        return bytes(answer.SerializeToString())

    def wait(self, until: Callable[[], Any]) -> None:
        with self._news:
            assert self._news.wait_for(until, TIMEOUT_SECONDS), (self.spans, self.metrics)


def attributes(of: Any) -> dict[str, Any]:
    return {attribute.key: getattr(attribute.value, attribute.value.WhichOneof("value")) for attribute in of.attributes}


@contextmanager
def receiving() -> Iterator[tuple[Receiver, dict[str, str]]]:
    """Run a receiver. Yield it and the environment variables that configure its clients."""
    kept = Receiver()

    class Taking(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            answer = kept.take(self.path, gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body)
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *words: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Taking)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    yield kept, {"OTEL_EXPORTER_OTLP_ENDPOINT": address, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    server.shutdown()
    server.server_close()
