"""A collector of traces on loopback: it decodes what OTLP over HTTP brings, and keeps the spans."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1 import trace_pb2


@dataclass(frozen=True)
class Exported:
    """A span as it was exported."""

    #: The name of the process that recorded it.
    process: str
    name: str
    #: Ids in hexadecimal digits; `parent` is empty at the root of a trace.
    trace: str
    span: str
    parent: str
    #: Nanoseconds since 1970.
    start: int
    end: int
    #: The linked spans, as (trace, span).
    links: tuple[tuple[str, str], ...]
    attributes: Mapping[str, str]
    failed: bool
    #: The whole span and its resource in protobuf's text format.
    text: str = field(repr=False)


@dataclass
class Collector:
    """A running collector."""

    port: int
    spans: list[Exported] = field(default_factory=list)
    #: Header fields of the last export.
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that make a process export here."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.port}"}

    def named(self, name: str) -> list[Exported]:
        """Return the spans of this name, in the order of their starts."""
        return sorted((span for span in self.spans if span.name == name), key=lambda span: span.start)


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector inside the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            is_known = self.path == "/v1/traces" and self.headers["Content-Type"] == "application/x-protobuf"
            if is_known:
                collector.headers = dict(self.headers.items())
                collector.spans += _spans(ExportTraceServiceRequest.FromString(body))
            self.send_response(200 if is_known else 400)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(server.server_address[1])
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        serving.join()


@contextmanager
def collecting_beside() -> Iterator[int]:
    """Run a collector with the lowest priority in a process of its own; yield its port.

    It decodes nothing until a GET asks for the number of spans of a name, which is the path.
    """
    command = [sys.executable, "-m", "benchmarks.performance.service.collector"]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[3], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.terminate()
        process.wait()


def _keep() -> None:
    """Collect until terminated."""
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self._answer(b"")

        def do_GET(self) -> None:
            exports = map(ExportTraceServiceRequest.FromString, bodies)
            name = unquote(self.path[1:])
            self._answer(str(sum(span.name == name for export in exports for span in _spans(export))).encode())

        def _answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    os.nice(19)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


def _spans(export: ExportTraceServiceRequest) -> Iterator[Exported]:
    for part in export.resource_spans:
        resource = {one.key: one.value.string_value for one in part.resource.attributes}
        for scope in part.scope_spans:
            for span in scope.spans:
                yield Exported(
                    process=resource["lethe.process"],
                    name=span.name,
                    trace=span.trace_id.hex(),
                    span=span.span_id.hex(),
                    parent=span.parent_span_id.hex(),
                    start=span.start_time_unix_nano,
                    end=span.end_time_unix_nano,
                    links=tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
                    attributes=resource | {one.key: _value(one.value) for one in span.attributes},
                    failed=span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
                    text=f"{part.resource}{span}",
                )


def _value(value: object) -> str:
    kind = value.WhichOneof("value")  # type: ignore[attr-defined]  # protobuf's generated class
    return str(getattr(value, kind))


if __name__ == "__main__":
    _keep()
