"""The peers that are believed: recordings, strangers, namesakes and crowds change nothing that they should not."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random

import pytest
from datagram_world import DEFAULTS, DatagramWorld, Host, Weather, address_of
from hypothesis import given
from hypothesis import strategies as st
from tree_shape import ROUGH, crowd, settled_after, shortcomings, views_of

from sterna.overlay.beacon_exchange import ANSWERS_PER_S
from sterna.overlay.datagrams import NAME_BYTES_MAX
from sterna.overlay.peers import REPLAY_WINDOW, TRANSITIONS, USABLE, Peer, PeerEvent, Peers, PeerState, ReplayWindow
from sterna.overlay.spanning_tree import SpanningTreeOverlay
from sterna.vocabulary.errors import ConfigurationError


class Recorder(DatagramWorld):
    """A network in which somebody writes everything down."""

    def __init__(self, seed: int, weather: Weather | None = None) -> None:
        super().__init__(seed, weather=weather)
        self.recorded: list[tuple[str, bytes]] = []

    def carry(self, source: Host, address: str, data: bytes) -> None:
        self.recorded.append((address_of(source.name), data))
        super().carry(source, address, data)


def peer_states(host: Host) -> dict[str, str]:
    peers = host.overlay.view()["peers"]
    assert isinstance(peers, dict)
    return {name: peer["state"] for name, peer in peers.items()}


def test_every_state_knows_what_every_event_means() -> None:
    lasting = [state for state in PeerState if state is not PeerState.FORGOTTEN]
    assert set(TRANSITIONS) == set(product(lasting, PeerEvent))


def test_only_a_proof_makes_a_peer_usable() -> None:
    entered = {event for (state, event), after in TRANSITIONS.items() if after in USABLE and state not in USABLE}
    assert entered == {PeerEvent.PROVED}


@given(st.lists(st.integers(0, 3 * REPLAY_WINDOW), max_size=200))
def test_a_counter_is_taken_once_unless_it_is_too_old(counters: list[int]) -> None:
    window = ReplayWindow()
    taken: set[int] = set()
    for counter in counters:
        fresh = counter not in taken and counter > max(taken, default=-1) - REPLAY_WINDOW
        assert window.take(counter) == fresh
        taken |= {counter} if fresh else set()


def test_the_room_of_the_dead_goes_to_newcomers_that_of_the_living_does_not() -> None:
    peers = Peers(2)
    first, second = peers.admit("a", "a:1", 1, 0.0), peers.admit("b", "b:1", 1, 1.0)
    assert first is not None
    assert second is not None
    first.enter(PeerEvent.PROVED, 2.0)
    assert peers.admit("c", "c:1", 1, 3.0) is not None
    assert list(peers.by_name) == ["a", "c"]
    peers.by_name["c"].enter(PeerEvent.PROVED, 4.0)
    assert peers.admit("d", "d:1", 1, 5.0) is None


def test_a_peer_remembers_its_last_lives_only() -> None:
    peer = Peer("a", "a:1", 0, 0.0)
    for boot in range(1, 10):
        peer.begin_life(boot)
    assert peer.earlier_boots == [5, 6, 7, 8]


@pytest.mark.parametrize("seed", range(3))
def test_recordings_of_the_dead_do_not_bring_them_back(seed: int) -> None:
    net = Recorder(seed)
    for number in range(4):
        net.boot(f"n{number:02}", number)
    settled_after(net, 3.0)
    net.kill("n03")
    recorded = list(net.recorded)
    rng = Random(seed)
    for _ in range(300):
        net.run(0.02)
        for sender, data in rng.sample(recorded, 5):
            net.hosts[rng.choice(list(net.hosts))].overlay.datagram(sender, data)
    assert {peer_states(host)["n03"] for host in net.hosts.values()} == {"dead"}
    assert shortcomings(net) == []


def test_recordings_of_an_earlier_life_do_not_harm_the_present_one() -> None:
    net = Recorder(5, ROUGH)
    for number in range(4):
        net.boot(f"n{number:02}", number)
    settled_after(net, 3.0)
    earlier = list(net.recorded)
    net.kill("n03")
    net.run(0.3)
    net.boot("n03", 3)
    settled_after(net, 4.0)
    seen = len(net.trace)
    for sender, data in earlier:
        for host in net.hosts.values():
            host.overlay.datagram(sender, data)
        net.run(0.005)
    assert [line for line in net.trace[seen:] if "restarted" in line or "lost" in line or "changed" in line] == []
    assert shortcomings(net) == []


def test_a_recording_played_to_a_stranger_makes_no_peer_and_few_answers() -> None:
    net = Recorder(6)
    net.boot("a", 1)
    net.boot("b", 2)
    net.run(2.0)
    net.kill("a")
    net.kill("b")
    recorded, net.recorded = net.recorded, []
    stranger = net.boot("c", 0)
    start = net.now
    for sender, data in recorded * 20:
        stranger.overlay.datagram(sender, data)
        net.run(0.002)
    assert set(peer_states(stranger).values()) <= {"candidate"}
    assert stranger.overlay.view()["root"] == "c"
    pings_and_calls = (net.now - start) * 2 / DEFAULTS.young_ping_s + 10
    assert len(net.recorded) <= (net.now - start) * 2 * ANSWERS_PER_S + pings_and_calls
    net.run(3.0)
    assert peer_states(stranger) == {}


def test_strangers_without_the_key_get_no_answer_and_no_memory() -> None:
    net = Recorder(7)
    host = net.boot("a", 1)
    outsider = net.boot("b", 9, settings=replace(DEFAULTS, key=b"guessed"))
    elsewhere = net.boot("c", 9, settings=replace(DEFAULTS, network="elsewhere"))
    net.run(5.0)
    rng = Random(7)
    sent = len(net.recorded)
    for _ in range(2_000):
        host.overlay.datagram("x:1", rng.randbytes(rng.randint(0, 1300)))
    assert len(net.recorded) == sent
    for one in (host, outsider, elsewhere):
        assert peer_states(one) == {}
    counters = host.overlay.view()["datagrams"]
    assert isinstance(counters, dict)
    assert counters["refused"] > 2_000
    assert [line for line in net.trace if "peer" in line or "link" in line] == []


def test_two_nodes_of_one_name_are_told_so() -> None:
    net = DatagramWorld(8)
    first = net.boot("a", 1)
    twin = Host(net, "twin", replace(DEFAULTS, node="a", address=address_of("twin")), (0.0, 1.0))
    net.hosts["twin"] = twin
    twin.overlay.start()
    net.run(4.0)
    assert sum("name-taken" in line for line in net.trace) == 2
    assert first.overlay.view()["peers"] == {}


def test_more_peers_than_allowed_are_reported_once_and_not_heard() -> None:
    net = DatagramWorld(9)
    host = net.boot("a", 9, settings=replace(DEFAULTS, peers_max=3))
    for number in range(6):
        net.boot(f"n{number}", 1)
    net.run(2 * DEFAULTS.sample_s)
    assert len(peer_states(host)) == 3
    assert sum(line.split()[1:3] == ["a", "peers-full"] for line in net.trace) == 1


def test_the_dead_are_forgotten_in_the_end() -> None:
    net = DatagramWorld(10)
    host = net.boot("a", 1, settings=replace(DEFAULTS, forget_s=20.0))
    net.boot("b", 2)
    net.run(3.0)
    net.kill("b")
    net.run(15.0)
    assert peer_states(host) == {"b": "dead"}
    net.run(10.0)
    assert peer_states(host) == {}


def test_a_node_without_an_address_of_its_own_is_known_by_where_it_sends_from() -> None:
    net = DatagramWorld(11)
    nameless = Host(net, "a", replace(DEFAULTS, node="a", cpu=2), (0.0, 1.0))
    net.hosts["a"] = nameless
    nameless.overlay.start()
    net.boot("b", 1)
    settled_after(net, 3.0)
    assert net.hosts["b"].dial == {"a": address_of("a")}


def test_a_name_too_long_is_refused_at_the_start() -> None:
    net = DatagramWorld(12)
    with pytest.raises(ConfigurationError, match="longer than 128 bytes"):
        net.boot("n" * (NAME_BYTES_MAX + 1), 1)


def test_a_namesake_gets_no_link_and_others_do() -> None:
    overlay: SpanningTreeOverlay = crowd(1, 1).hosts["n00"].overlay
    assert overlay.accepts("n01") is None
    assert "a name of its own" in str(overlay.accepts("n00"))


def test_the_view_tells_people_how_things_are() -> None:
    net = DatagramWorld(13, weather=Weather(jitter=0.0))
    net.latency = {("a", "b"): 0.010}
    net.boot("a", 2)
    net.boot("b", 1)
    assert net.hosts["a"].overlay.view()["state"] == "listening"
    settled_after(net, 3.0)
    views = views_of(net)
    assert [views["a"][field] for field in ("state", "root", "parent", "children", "links")] == [
        "root",
        "a",
        None,
        ["b"],
        ["b"],
    ]
    assert [views["b"][field] for field in ("state", "root", "parent", "children", "cost_ms")] == [
        "attached",
        "a",
        "a",
        [],
        20.5,
    ]
    peers = views["b"]["peers"]
    assert isinstance(peers, dict)
    assert peers["a"].pop("estimate_ms") == pytest.approx(20.0, rel=0.5), "by a few samples"
    assert peers == {
        "a": {
            "address": "a:7883",
            "state": "alive",
            "round_trip_ms": 20.0,
            "capability": 2.0,
            "root": "a",
            "parent": None,
        }
    }
    net.hosts["b"].overlay.stop()
    assert net.hosts["b"].overlay.view()["state"] == "stopped"
