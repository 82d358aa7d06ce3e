"""Reasons for which a receiver does not get a message, as counters, logs and docs/operating.md name them."""

from __future__ import annotations

from typing import Literal

DropReason = Literal[
    "",
    "control-topic-qos",
    "control-topic-retained",
    "expired",
    "moving",
    "no-member-left",
    "no-member-ready",
    "not-authorized",
    "offline",
    "origin-retention",
    "owned-elsewhere",
    "packet-too-large",
    "payload-format-invalid",
    "queue-full",
    "retained-full",
    "retention",
    "slow-consumer",
    "too-many-bridges",
    "too-many-groups",
]
"""Empty: another node counts the loss."""

LossReason = Literal["astray", "congested", "link-ended", "no-way", "unacknowledged", "unannounced"]
"""Of a message at QoS 0 that did not go on to another node."""
