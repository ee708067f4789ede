"""A collector of OTLP: an HTTP server that parses requests with OpenTelemetry's own messages."""

import gzip
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

Series = dict[tuple[str, tuple[tuple[str, str], ...]], Any]
"""Data points by the name of the metric and the sorted attributes."""


def parse(body: bytes) -> Any:
    """Return a request, parsed by OpenTelemetry's definition: an unknown field is an error."""
    service = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")
    from google.protobuf import json_format

    return json_format.Parse(body, service.ExportMetricsServiceRequest())


def series_of(request: Any) -> Series:
    """Return the data points of a request."""
    found: Series = {}
    for metric in request.resource_metrics[0].scope_metrics[0].metrics:
        kind = metric.WhichOneof("data")
        for point in getattr(metric, kind).data_points:
            attributes = {one.key: one.value.string_value for one in point.attributes}
            found[metric.name, tuple(sorted(attributes.items()))] = point
    return found


def sender_of(request: Any) -> tuple[str, str]:
    """Return service and instance of the sender."""
    attributes = request.resource_metrics[0].resource.attributes
    known = {one.key: one.value.string_value for one in attributes}
    return known["service.name"], known.get("service.instance.id", "")


class Collector:
    """Received requests.

    Attributes:
        url: Where it listens.
        status, answer: Of the next answers.
        requests: Parsed requests of status 200.
        headers: Headers of the last request.
    """

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.status, self.answer = 200, b"{}"
        self.requests: list[Any] = []
        self.headers: Mapping[str, str] = {}

    def newest(self, service: str) -> list[Series]:
        """Return the newest data points of each instance of a service."""
        last = {sender_of(one): one for one in list(self.requests)}
        return [series_of(one) for (name, _), one in last.items() if name == service]


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.path == "/v1/metrics"
            collector.headers = dict(self.headers)
            if collector.status == 200:
                collector.requests.append(parse(gzip.decompress(body)))
            self.send_response(collector.status)
            self.send_header("Content-Length", str(len(collector.answer)))
            self.end_headers()
            self.wfile.write(collector.answer)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()
