"""The control topics, `$adaptation/NETWORK/...`: who speaks where.

    reports/WORKER         workers, to coordinators          to-workers/WORKER      coordinators, to one worker
    gateways/GATEWAY       gateways, to coordinators         to-gateways/GATEWAY    coordinators, to one gateway
    leading/REGION         coordinators, to each other    shown/COORDINATOR      coordinators, to people

Nodes guard them: `users` of `[adaptation]` may do all of this, a gateway may use the two topics with its own name.
"""

from __future__ import annotations

from sterna.mqtt.topics import CONTROL

ROOT = CONTROL.decode()
REPORTS, TO_WORKERS, LEADING = "reports", "to-workers", "leading"
SHOWN = "shown"
"""Nodes keep the last word of each, for their dashboards."""
FROM_GATEWAYS, TO_GATEWAYS = "gateways", "to-gateways"


def control_topic(network: str, kind: str, name: str) -> bytes:
    """`name` may be `+`, for a filter."""
    return f"{ROOT}/{network}/{kind}/{name}".encode()


def parts_of(topic: bytes) -> tuple[str, str, str] | None:
    """(network, kind, name) of a control topic; None if it is none."""
    parts = topic.decode("utf-8", "replace").split("/")
    return (parts[1], parts[2], parts[3]) if len(parts) == 4 and parts[0] == ROOT else None
