"""A running node's own measurements at /metrics: durations, build, certificates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509

from .certificates import Authority
from .conftest import Join
from .nodes import LiveNode, wait_until

pytestmark = pytest.mark.slow


def test_a_node_measures_itself(start_node: Callable[[str], LiveNode], join: Join, tmp_path: Path, topic: str) -> None:
    Authority(tmp_path, "measurements").issue("server")
    certificate = tmp_path / "server.pem"
    node = start_node(
        f"""
[admin]
bind = "127.0.0.1:0"
[[listener]]
bind = "127.0.0.1:0"
[[listener]]
bind = "127.0.0.1:0"
certificate = "{certificate}"
key = "{tmp_path / "server.key"}"
"""
    )
    client = join(node)
    for number in range(5):
        client.publish(topic, str(number), 1)
    assert node.metric("sterna_journal_write_seconds_count") >= 5
    assert node.metric("sterna_commit_seconds_count") >= 5
    assert min(node.metric("sterna_commit_seconds_sum"), node.metric("sterna_journal_write_seconds_sum")) > 0
    wait_until(lambda: node.metric("sterna_event_loop_lag_seconds_count") > 1, "the loop's lag is sampled")
    (expiry,) = [
        float(line.rpartition(" ")[2])
        for line in node.ask("/metrics")[1].splitlines()
        if line.startswith("sterna_certificate_expiry_timestamp_seconds{")
    ]
    assert expiry == x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc.timestamp()
