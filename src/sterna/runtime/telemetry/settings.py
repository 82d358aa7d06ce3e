"""Settings of tracing: the `[telemetry]` table of a node's configuration."""

from __future__ import annotations

from typing import Annotated

from sterna.runtime.config.schema import Table
from sterna.vocabulary.settings import Allowed


class TelemetryTable(Table, frozen=True):
    """Messages that carry W3C trace context leave a span at each hop, see [Operating](operating.md#opentelemetry)."""

    endpoint: str | None = None
    """Address of a collector that takes OTLP over HTTP, such as `"http://127.0.0.1:4318/v1/traces"`; without it nothing
    is traced.  `OTEL_EXPORTER_OTLP_HEADERS` and the other variables of the exporter hold."""
    share: Annotated[float, Allowed(0, 1)] = 1.0
    """Of the traces that publishers had sampled: so many of them, the same at every node."""
