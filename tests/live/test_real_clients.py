"""Programs made with the usual client libraries are moved, evacuated and kept waiting: each is served again, and gets
everything.  None of these libraries follows a Server Reference, and some never try again after a CONNACK that refuses
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from .clients import Paho, Settings
from .networks import LiveNetwork
from .nodes import LiveNode, wait_until
from .real_clients import KINDS, Kind, Numbers, RealClient, is_served, order

pytestmark = pytest.mark.slow

#: The slowest waits for a few seconds before it connects again; a busy machine may take much longer.
SERVED_S = 120.0


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNetwork]:
    with LiveNetwork(tmp_path_factory.mktemp("real"), ("ab", "bc")) as network:
        yield network
        network.check_logs()


Run = Callable[[LiveNode], list[RealClient]]


@pytest.fixture
def run(topic: str, tmp_path: Path) -> Iterator[Run]:
    """One of each kind, served by the node given."""
    with ExitStack() as stack:

        def start(node: LiveNode) -> list[RealClient]:
            clients = [
                stack.enter_context(
                    RealClient(kind, f"{topic}-{number}".replace("/", "-"), topic, [node.address], tmp_path)
                )
                for number, kind in enumerate(KINDS)
            ]
            for client in clients:
                wait_until(lambda it=client: is_served(node, it.client_id), f"{client.kind} is served", SERVED_S)  # type: ignore[misc]
            return clients

        yield start


def wait_for_all(clients: list[RealClient], count: int) -> None:
    """Each has got each number, in order but for what came again."""
    expected = [str(number) for number in range(count)]
    for client in clients:
        wait_until(
            lambda it=client: len(set(it.payloads)) >= count,  # type: ignore[misc]
            f"{client.kind} has got {count} messages",
            SERVED_S,
        )
        assert client.is_running
        assert list(dict.fromkeys(client.payloads)) == expected, client.kind


def test_moved_clients_that_come_back_to_their_old_node_are_served_with_their_sessions(
    network: LiveNetwork, topic: str, run: Run
) -> None:
    """They know one address, as most do."""
    a, b = network["a"], network["b"]
    clients = run(a)
    before = len(a.events("a client is not moved"))
    with Numbers(b, topic) as numbers:
        wait_until(lambda: all(client.got for client in clients), "everybody gets something", SERVED_S)
        for client in clients:
            order(a, "/move", client=client.client_id, to="c")
        wait_until(lambda: len(a.events("a client is not moved")) >= before + len(clients), "they are back", SERVED_S)
        for client in clients:
            wait_until(lambda it=client: is_served(a, it.client_id), f"{client.kind} is back", SERVED_S)  # type: ignore[misc]
    wait_for_all(clients, numbers.sent)


def test_clients_that_know_no_other_node_than_one_that_is_emptied_are_served_there(
    network: LiveNetwork, topic: str, run: Run
) -> None:
    a, b = network["a"], network["b"]
    clients = run(a)
    before = len(a.events("a client is not moved"))
    with Numbers(b, topic) as numbers:
        wait_until(lambda: all(client.got for client in clients), "everybody gets something", SERVED_S)
        order(a, "/evacuate", node="a")
        try:
            wait_until(
                lambda: len(a.events("a client is not moved")) >= before + len(clients), "they are back", SERVED_S
            )
            for client in clients:
                wait_until(lambda it=client: is_served(a, it.client_id), f"{client.kind} is back", SERVED_S)  # type: ignore[misc]
        finally:
            order(a, "/evacuate", node="a", stop=True)
    wait_for_all(clients, numbers.sent)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_clients_that_wait_for_their_session_for_too_long_try_again_until_they_have_it(
    kind: Kind, waiting: LiveNetwork, topic: str, client_id: str, tmp_path: Path
) -> None:
    """Their node is away, and they are at another one, which closes their connections without a CONNACK."""
    a, b, c = (waiting[name] for name in "abc")
    before = Paho(*a.address, Settings(version=kind.version, client_id=client_id, persistent=True))
    before.subscribe(topic, 1)
    before.close()
    publisher = Paho(*b.address, Settings())
    a.kill()
    publisher.publish(topic, b"while nobody was there", 1)
    with RealClient(kind, client_id, topic, [c.address], tmp_path) as client:
        try:
            # A connection that ended before CONNECT is among the events, and has no client.
            wait_until(
                lambda: sum(event.get("client") == client_id for event in c.events("connection failed")) >= 2,
                "it was sent away and has tried again",
                SERVED_S,
            )
        finally:
            a.restart()
        wait_until(lambda: client.got, "it is served", SERVED_S)
        assert client.payloads == ["while nobody was there"]
        publisher.publish(topic, b"and now", 1)
        wait_until(lambda: client.payloads[1:] == ["and now"], "it goes on", SERVED_S)
    publisher.close()


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNetwork]:
    """A network that keeps clients waiting for a second."""
    more = '[migration]\npatience_s = 1\nowner_unreachable = "refuse"\n'
    with LiveNetwork(tmp_path_factory.mktemp("waiting"), ("ab", "bc"), more=more) as network:
        yield network
        network.check_logs()
