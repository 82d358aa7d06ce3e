"""Sends spans to a collector by OTLP over HTTP, in batches, from a thread of the OpenTelemetry SDK.

Its packages are an extra of this one and are imported here only, when a node is to trace.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from threading import Thread

try:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
except ImportError as error:
    from sterna.vocabulary.errors import ConfigurationError
    from sterna.vocabulary.extras import how_to_add

    raise ConfigurationError(
        f"[telemetry] endpoint needs packages of OpenTelemetry ({error}); {how_to_add('telemetry')}"
    ) from error

from sterna import __version__
from sterna.node.message_tracing import HopSpan

_KINDS = {"entered": SpanKind.CONSUMER, "forwarded": SpanKind.PRODUCER, "delivered": SpanKind.PRODUCER}
_SCOPE = InstrumentationScope("sterna", __version__)
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class SpanExporter:
    def __init__(self, endpoint: str, node: str) -> None:
        self._resource = Resource.create({"service.name": "sterna", "service.instance.id": node})
        self._processor = BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint))

    def export(self, hop: HopSpan) -> None:
        """Put it into the next batch.  If the collector cannot keep up, the oldest are dropped."""
        self._processor.on_end(
            ReadableSpan(
                f"sterna {hop.name}",
                SpanContext(hop.trace, hop.span, is_remote=False, trace_flags=_SAMPLED),
                SpanContext(hop.trace, hop.parent, is_remote=True, trace_flags=_SAMPLED),
                self._resource,
                hop.attributes,
                kind=_KINDS[hop.name],
                start_time=int(hop.start_s * 1e9),
                end_time=int(hop.end_s * 1e9),
                instrumentation_scope=_SCOPE,
            )
        )

    async def close(self, within_s: float) -> None:
        """Send what is left.  A collector that does not answer in time does not keep the node from stopping."""
        loop, sent = asyncio.get_running_loop(), asyncio.Event()

        def send() -> None:
            self._processor.shutdown()  # type: ignore[no-untyped-call]
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(sent.set)

        Thread(target=send, daemon=True).start()
        with suppress(TimeoutError):
            await asyncio.wait_for(sent.wait(), within_s)
