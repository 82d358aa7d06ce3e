"""A running node's own measurements at /metrics: durations, listeners, certificates."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from cryptography import x509

from .certificates import Authority
from .conftest import Join
from .gateways import LiveGateway
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
    client.subscribe(topic, 1)
    for number in range(5):
        client.publish(topic, str(number), 1)
    assert node.metric("sterna_journal_write_seconds_count") >= 5
    assert node.metric("sterna_commit_seconds_count") >= 5
    assert min(node.metric("sterna_commit_seconds_sum"), node.metric("sterna_journal_write_seconds_sum")) > 0
    wait_until(lambda: node.metric("sterna_event_loop_lag_seconds_count") > 1, "the loop's lag is sampled")
    join(node)
    wait_until(lambda: node.metric("sterna_delivery_latency_seconds_count") >= 1, "a delivery is timed")
    assert node.metric("sterna_delivery_latency_seconds_sum") > 0
    plain, encrypted = (f"127.0.0.1:{port}" for port in node.ports)
    assert rows(node, "sterna_listener_connections") == {plain: 2, encrypted: 0}
    assert rows(node, "sterna_listener_accepted_total") == {plain: 2, encrypted: 0}
    with socket.create_connection(("127.0.0.1", node.ports[1]), 60) as stranger:
        stranger.sendall(b"no TLS at all")
    wait_until(lambda: rows(node, "sterna_listener_failed_total") == {plain: 0, encrypted: 1}, "it is counted")
    assert expiries(node) == {encrypted: expiry(certificate)}


def test_every_certificate_says_when_it_expires_and_so_does_the_one_after_a_reload(
    start_node: Callable[[str], LiveNode], tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "authority", "authority")
    certificate, key = authority.issue("node")
    shown = f'certificate = "{certificate}"\nkey = "{key}"\n'
    secured = f'[admin]\nbind = "127.0.0.1:0"\n[[listener]]\nbind = "127.0.0.1:0"\n{shown}'
    node = start_node(
        f'[node]\nname = "node"\ndata = "{tmp_path / "data"}"\n{secured}'
        f'[network]\nname = "live"\nbind = "127.0.0.1:0"\n[network.tls]\n{shown}ca = "{authority.file}"\n'
        f'[feed]\nbind = "127.0.0.1:0"\n{shown}'
    )
    upstream = f'[upstream]\nnodes = ["127.0.0.1:{node.port}"]\nca = "{authority.file}"\n{shown}'
    with LiveGateway(tmp_path / "gateway", [], f"{secured}{upstream}") as gateway:
        for days in (1, 20):
            authority.issue("node", days)
            for process, others in ((node, ("links", "feed")), (gateway, ("upstream",))):
                process.hang_up()
                every = dict.fromkeys((f"127.0.0.1:{process.port}", *others), expiry(certificate))
                wait_until(partial(has_expiries, process, every), f"the instants of certificates good for {days} days")


def test_the_certificate_for_a_foreign_broker_says_so_too(
    start_node: Callable[[str], LiveNode], tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "authority", "authority")
    certificate, key = authority.issue("node")
    node = start_node(
        f'[admin]\nbind = "127.0.0.1:0"\n[interworking]\nbroker = "127.0.0.1:1"\ntls = true\n'
        f'ca = "{authority.file}"\ncertificate = "{certificate}"\nkey = "{key}"\n'
    )
    assert expiries(node) == {"interworking": expiry(certificate)}


def expiry(certificate: Path) -> float:
    return x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc.timestamp()


def expiries(process: LiveNode) -> dict[str, float]:
    return rows(process, "sterna_certificate_expiry_timestamp_seconds")


def has_expiries(process: LiveNode, wanted: dict[str, float]) -> bool:
    return expiries(process) == wanted


def rows(node: LiveNode, name: str) -> dict[str, float]:
    """Listener -> value."""
    found = re.findall(rf'^{name}{{listener="(.+)"}} (.+)$', node.ask("/metrics")[1], re.MULTILINE)
    return {listener: float(value) for listener, value in found}
