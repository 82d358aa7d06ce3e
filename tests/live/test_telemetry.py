"""OpenTelemetry: a message that crosses three nodes leaves its spans at a collector that takes OTLP over HTTP."""

from __future__ import annotations

import gzip
import re
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from .conftest import Join
from .networks import LiveNetwork
from .nodes import LiveNode, wait_until

pytestmark = pytest.mark.slow

TRACE, PUBLISHERS = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), CollectorHandler)
        self.spans: list[dict[str, Any]] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1/traces"

    def took(self, request: ExportTraceServiceRequest) -> None:
        for group in request.resource_spans:
            resource = {one.key: one.value.string_value for one in group.resource.attributes}
            for scope in group.scope_spans:
                for span in scope.spans:
                    told = {one.key: one.value.string_value or one.value.int_value for one in span.attributes}
                    self.spans.append(
                        {
                            "name": span.name.removeprefix("sterna "),
                            "trace": span.trace_id.hex(),
                            "id": span.span_id.hex(),
                            "parent": span.parent_span_id.hex(),
                            "service": resource["service.name"],
                            "lasts": span.end_time_unix_nano - span.start_time_unix_nano,
                            **told,
                        }
                    )


class CollectorHandler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        assert self.path == "/v1/traces"
        self.server.took(ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.end_headers()
        self.wfile.write(ExportTraceServiceResponse().SerializeToString())

    def log_message(self, *_words: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        serving = threading.Thread(target=collector.serve_forever)
        serving.start()
        yield collector
        collector.shutdown()
        serving.join()


def traced(flags: str) -> list[tuple[str, str]]:
    """User properties."""
    return [("made-by", "a test"), ("traceparent", f"00-{TRACE}-{PUBLISHERS}-{flags}")]


@pytest.mark.parametrize("qos", [0, 1])
def test_each_hop_of_a_message_leaves_a_span_whose_parent_is_the_hop_before(
    tmp_path: Path, join: Join, collector: Collector, topic: str, qos: int
) -> None:
    more = f'[telemetry]\nendpoint = "{collector.endpoint}"\n'
    with LiveNetwork(tmp_path, ("ab", "bc"), more=more) as network:
        reader, writer = join(network["c"], version=5), join(network["a"], version=5, client_id="meter")
        reader.subscribe(topic, qos)
        writer.publish(topic, b"not sampled", qos, UserProperty=traced("00"))
        writer.publish(topic, b"no context", qos)
        writer.publish(topic, b"sampled", qos, UserProperty=traced("01"))
        last = reader.receive(3)[-1]
        assert last.properties is not None
        told = last.properties.json()  # type: ignore[no-untyped-call]
        assert told["UserProperty"] == traced("01"), "they go on unaltered"
        wait_until(lambda: len(collector.spans) >= 4, "every hop has been told")
        for node in network.nodes.values():
            assert node.stop() == 0
    spans = {(span["name"], span["sterna.node"]): span for span in collector.spans}
    assert len(spans) == len(collector.spans) == 4
    assert {span["trace"] for span in collector.spans} == {TRACE}
    assert {span["service"] for span in collector.spans} == {"sterna"}
    entered, delivered = spans["entered", "a"], spans["delivered", "c"]
    first, second = spans["forwarded", "a"], spans["forwarded", "b"]
    assert [span["parent"] for span in (entered, first, second, delivered)] == [
        PUBLISHERS,
        entered["id"],
        first["id"],
        second["id"],
    ]
    assert (first["sterna.link"], second["sterna.link"]) == ("b", "c")
    assert delivered["messaging.destination.name"] == topic
    assert delivered["lasts"] >= 0
    if qos:
        assert (entered["messaging.client.id"], entered["mqtt.qos"]) == ("meter", qos)


@pytest.mark.parametrize("table", ["", '[telemetry]\nendpoint = "http://127.0.0.1:1/v1/traces"\n'], ids=["off", "on"])
def test_only_a_node_that_traces_loads_opentelemetry(tmp_path: Path, join: Join, topic: str, table: str) -> None:
    """The interpreter tells each module that it imports."""
    node = LiveNode(tmp_path / "node", table)
    node.program = (sys.executable, "-X", "importtime", "-m", "sterna")
    with node:
        join(node, version=5).publish(topic, b"x", 1, UserProperty=traced("01"))
        log = node.log()
    assert re.search(r"^import time: .*\| +sterna\.runtime\.server$", log, re.MULTILINE), "modules are told"
    assert ("opentelemetry" in log) == bool(table)


def test_a_collector_that_is_away_holds_up_neither_messages_nor_the_end(tmp_path: Path, join: Join, topic: str) -> None:
    more = '[telemetry]\nendpoint = "http://127.0.0.1:1/v1/traces"\n'
    with LiveNetwork(tmp_path, ("ab",), more=more) as network:
        reader, writer = join(network["b"], version=5), join(network["a"], version=5)
        reader.subscribe(topic, 1)
        for number in range(50):
            writer.publish(topic, str(number), 1, UserProperty=traced("01"))
        assert [int(payload) for payload in reader.payloads(50)] == list(range(50))
        for node in network.nodes.values():
            assert node.stop() == 0
