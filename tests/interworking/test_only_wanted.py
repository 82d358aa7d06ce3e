"""Only what clients behind the proxy have subscribed to goes to a foreign broker, and all of that does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from interworking.scene import SETTINGS, Scene
from sterna.interworking.proxy.interest import FILTERS_MAX, Interest
from sterna.interworking.settings import InterworkingSettings
from sterna.simulation.clients import Client, Habits
from sterna.simulation.foreign_broker import KINDS
from sterna.simulation.membership import NETWORK
from sterna.simulation.relays import RELAY_PORT

WANTED = replace(SETTINGS, mode="proxy", only_wanted=True)


class WantedScene(Scene):
    """Two nodes, each in front of a broker, with a client of the first one's."""

    def __init__(self, kind: str, settings: InterworkingSettings = WANTED) -> None:
        super().__init__(KINDS[kind], KINDS[kind], settings=settings)
        self.reader = self.new_client("reader")

    def new_client(self, name: str, *, persistent: bool = True) -> Client:
        address = f"node0:{RELAY_PORT}"
        habits = Habits(version=4, persistent=persistent)
        return Client(self.world.network, name, address, self.world.records, habits, NETWORK)

    def wanted(self) -> list[str]:
        found: list[str] = self.attachment(0).view()["wanted"]
        return found

    def come(self, client: Client, *filters: bytes) -> None:
        for one in filters:
            client.subscribe(one, 2)
        client.come()
        self.wait(lambda: client.is_welcome and not client.is_asking)

    def arrived(self, name: str) -> list[str]:
        return [one.identity for one in self.world.records.arrivals.get(name, [])]


kinds = pytest.mark.parametrize("kind", ["mosquitto", "nats"])


@kinds
def test_messages_that_nobody_wants_do_not_go_to_the_broker(kind: str) -> None:
    scene = WantedScene(kind)
    scene.begin()
    assert scene.wanted() == []
    scene.come(scene.reader, b"t/a", b"t/b/#")
    assert scene.wanted() == ["t/a", "t/b/#"]
    for topic in (b"t/a", b"t/b/c", b"t/c", b"u"):
        scene.publishers[1].publish(topic, 1)
    scene.wait(lambda: len(scene.arrived("reader")) == 2)
    scene.settle()
    assert scene.arrived("reader") == ["node1p/1", "node1p/2"]
    assert scene.heard_there(0) == ["node1p/1", "node1p/2"]
    assert scene.heard_here(0) == ["node1p/1", "node1p/2", "node1p/3"], "clients of the node hear what they want"
    scene.reader.unsubscribe(b"t/a")
    scene.wait(lambda: scene.wanted() == ["t/b/#"])


@kinds
def test_what_is_published_anywhere_after_suback_arrives(kind: str) -> None:
    scene = WantedScene(kind)
    scene.begin()
    scene.reader.come()
    for number in range(30):
        topic = b"t/%d" % number
        scene.reader.subscribe(topic, 1)
        scene.wait(lambda: scene.reader.is_welcome and not scene.reader.is_asking)
        scene.publishers[1].publish(topic, 1)
    scene.wait(lambda: len(scene.arrived("reader")) == 30)


@kinds
def test_a_value_that_was_retained_before_anybody_wanted_it_is_there_for_a_later_subscriber(kind: str) -> None:
    scene = WantedScene(kind)
    scene.begin()
    scene.publishers[1].publish(b"t/r", 1, retain=True)
    scene.settle()
    assert scene.heard_there(0) == []
    scene.come(scene.reader, b"t/+")
    scene.wait(lambda: scene.arrived("reader") == ["node1p/1"])
    scene.settle()
    assert scene.arrived("reader") == ["node1p/1"]


@kinds
def test_what_lasting_sessions_want_outlives_node_and_client(kind: str) -> None:
    scene = WantedScene(kind)
    scene.begin()
    scene.come(scene.reader, b"t/a")
    scene.reader.leave(politely=True)
    scene.machines[0].kill()
    scene.machines[0].boot()
    scene.wait(scene.is_attached)
    assert scene.wanted() == ["t/a"]
    scene.publishers[1].publish(b"t/a", 1)
    scene.settle()
    scene.reader.come()
    scene.wait(lambda: scene.arrived("reader") == ["node1p/1"])


@kinds
def test_what_a_clean_session_wanted_ends_with_its_connection(kind: str) -> None:
    scene = WantedScene(kind)
    scene.begin()
    passing = scene.new_client("passing", persistent=False)
    scene.come(passing, b"t/x")
    assert scene.wanted() == ["t/x"]
    passing.leave(politely=False)
    scene.wait(lambda: scene.wanted() == [])


def test_clients_get_everything_while_another_node_relays_to_the_same_broker() -> None:
    quirks = KINDS["mosquitto"]
    scene = WantedScene("mosquitto")
    scene.begin()
    scene.come(scene.reader, b"t/a")
    assert scene.wanted() == ["t/a"]
    shared = Scene(quirks, settings=WANTED, brokers=[0, 0])
    shared.begin(attached=False)
    shared.wait(lambda: shared.attachment(1).view()["state"] == "standing by")
    shared.run(10 * WANTED.fence_s)
    assert shared.attachment(0).view()["wanted"] == ["#"], "its fences go on"
    shared.machines[1].kill()
    shared.wait(lambda: shared.attachment(0).view()["wanted"] == [])


# -- the counting --


def test_filters_are_counted_within_the_bounds() -> None:
    interest = Interest([b"a/#", b"b/+"])
    one, other = interest.begin(b"one", [b"a/x", b"$share/g/a/y", b"$SYS/#"]), interest.begin(b"other", [b"#"])
    assert sorted(interest.filters()) == [b"a/#", b"a/x", b"a/y", b"b/+"], "`#` reaches only as far as the bounds"
    assert interest.end(b"other", other)
    interest.unsubscribed(b"one", b"a/x")
    assert interest.filters() == [b"a/y"]
    assert not interest.end(b"one", one + 7), "another life of it"
    assert interest.end(b"one", one)
    assert interest.filters() == []


def test_everything_is_wanted_while_somebody_has_an_older_session_or_there_are_too_many_filters() -> None:
    interest = Interest([b"a/#"])
    interest.begin(b"old", None)
    assert interest.filters() == [b"a/#"]
    interest.begin(b"old", ())
    assert interest.filters() == []
    for number in range(FILTERS_MAX + 1):
        interest.begin(b"c%d" % number, [b"a/%d" % number])
    assert interest.filters() == [b"a/#"]
