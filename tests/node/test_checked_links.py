"""What comes over a link is checked: a node with the key cannot have anything delivered, kept or passed on that no
client could have published, and whoever talks nonsense is not listened to for a while."""

from __future__ import annotations

import pytest

from broker.lone_node import Client
from conformance.packets import Connect
from node.joined_nodes import JoinedNode, Town
from sterna.mqtt.message import Message
from sterna.node.part_messages import Want
from sterna.node.part_messages import encode as part
from sterna.overlay.quarantine import FORGIVEN_S, PAUSE_MAX_S, PAUSE_S, Quarantine
from sterna.routing import link_frames, routing_frames
from sterna.routing.link_frames import About, Announce, Frame, Letter, Lost, Page
from sterna.routing.message_frames import encode_loose, encode_record, loose_opening, opening
from sterna.routing.routing_frames import RoutingKind

BAD_TOPICS = [
    b"a/#/x",
    b"+",
    b"#",
    b"bad/\xff\xfe",
    b"nul/\0",
    b"",
    b"a/" * 3000 + b"a",
    "sur/\ud800".encode("utf-8", "surrogatepass"),
]
RESERVED = [b"$SYS/broker/version", b"$AVG/a/$A", b"$share/g/x"]
ODD_BUT_FINE = [b"/", b"a//b", "ä/ü".encode(), b" ", b"$lower/x", b"a/" * 127 + b"a"]


class Evil:
    """Three nodes in a row: E says what it likes to A, and B is behind A; both have a client that wants everything."""

    def __init__(self, strategy: str = "subscription-flooding") -> None:
        self.town = Town("ABE", strategy)
        self.town.connect("AE", "AB")
        self.readers = [self._reader(self.town[name]) for name in "AB"]
        self.sequence = 1000

    def _reader(self, node: JoinedNode) -> Client:
        reader = node.join(f"reader at {node.name}")
        for topic_filter in ("#", "$SYS/#", "$lower/#"):
            reader.subscribe(topic_filter, 1)
        self.town.pass_time(1)
        reader.received()
        return reader

    def say(self, kind: int, body: bytes) -> None:
        self.town["E"].network.links.links["A"].send(kind, body)
        self.town.pass_time(0.3)

    def publish(
        self, topic: bytes, qos: int = 1, *, retain: bool = False, properties: bytes = b"", publisher: bytes = b"p"
    ) -> None:
        self.sequence += 1
        message = Message(topic, b"x", qos, retain, properties, 0.0, publisher, 1000.0)
        if qos:
            self.say(Frame.SEQUENCED, opening("E", 1) + encode_record(message, self.sequence))
        else:
            head = loose_opening("E", 1, self.sequence)
            self.say(Frame.LOOSE, head + encode_loose(topic, [b"x"], properties, 0.0, b""))

    @property
    def is_linked(self) -> bool:
        return "E" in self.town["A"].network.links.links

    def got(self) -> list[list[str]]:
        return [[m.topic for m in reader.messages() if not m.topic.startswith("$SYS")] for reader in self.readers]

    def got_anything(self) -> bool:
        return any(any(m.payload == b"x" for m in reader.messages()) for reader in self.readers)


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("topic", BAD_TOPICS)
def test_what_is_no_topic_is_delivered_to_nobody_and_ends_the_link(topic: bytes, qos: int, retain: bool) -> None:
    evil = Evil()
    evil.publish(topic, qos, retain=retain)
    assert not evil.got_anything()
    assert evil.town["A"].broker.retained.get(topic) is None
    assert not evil.is_linked
    a, b = (evil.town[name].network.router.counters for name in "AB")
    assert (a.nonsense, b.nonsense) == (1, 0), "A does not pass it on"


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("topic", RESERVED)
def test_nobody_publishes_on_what_is_a_nodes_own(topic: bytes, qos: int) -> None:
    evil = Evil()
    evil.publish(topic, qos, retain=bool(qos))
    assert not evil.got_anything()
    evil.publish(b"fine", qos)
    assert evil.got() == [["fine"], ["fine"]], "it is left out, and the rest comes"


@pytest.mark.parametrize("topic", ODD_BUT_FINE)
def test_topics_that_are_only_odd_come_through(topic: bytes) -> None:
    evil = Evil()
    for qos in (0, 1):
        evil.publish(topic, qos)
        assert evil.got() == [[topic.decode()]] * 2


@pytest.mark.parametrize(
    "properties", [b"\xff", b"\x01\x02", b"\x26\x00\x01a", b"\x23\x00\x01", b"\x03\x00\x02\xff\xfe"]
)
@pytest.mark.parametrize("qos", [0, 1])
def test_properties_that_no_client_could_send_are_delivered_to_nobody(qos: int, properties: bytes) -> None:
    evil = Evil()
    evil.publish(b"t", qos, properties=properties)
    assert not evil.got_anything()
    assert "B" in evil.town["A"].network.links.links, "A could not know what it passed on"


def test_a_page_of_somebody_behind_is_left_out_and_ends_no_link() -> None:
    """B asks E, through A: what is wrong with the answer is not A's fault."""
    evil = Evil()
    stream = evil.town["B"].network.router.streams
    stream.read_anew("E")
    number = stream._streams["E"].number
    bad = opening("E", 1) + encode_record(Message(b"a/#", b"x", 1, False, b"", 0.0, b"p", 1000.0), 2000)
    page = Page("E", number, ["B", "A"], (1, 2001), True, 0, [bad], [], None)
    evil.say(Frame.PAGE, link_frames.encode(page))
    assert not evil.got_anything()
    assert "A" in evil.town["B"].network.links.links
    assert evil.town["B"].network.router.counters.spoilt == 1


def test_a_letter_of_somebody_behind_ends_no_link() -> None:
    evil = Evil()
    for body in (b"\xff", part([Want(1, b"\xff not a name", 1.0, [])])):
        evil.say(Frame.LETTER, link_frames.encode(Letter("B", "E", 1, About.PARTS, body)))
    assert "A" in evil.town["B"].network.links.links
    assert evil.is_linked


def test_messages_of_an_epoch_that_was_never_announced_are_refused() -> None:
    """Else all that an origin says after its next start would be taken for old."""
    evil = Evil()
    message = Message(b"t", b"x", 1, False, b"", 0.0, b"p", 1000.0)
    evil.say(Frame.SEQUENCED, opening("E", 99) + encode_record(message, 2**61))
    assert not evil.got_anything()
    assert evil.town["A"].network.router.streams.vector["E"].epoch == 1


NONSENSE = [
    (Frame.SEQUENCED, opening("E", 1) + encode_record(Message(b"t", b"", 1, False, b"", 0.0, b"", 1.0), 2**63)),
    (Frame.ANNOUNCE, link_frames.encode(Announce("X", 1, 1, 0, False, [(b"not a share", 1)], ""))),
    (Frame.ANNOUNCE, link_frames.encode(Announce("X", 1, 1, 0, False, [(b"$share/g/a/#/b", 1)], ""))),
    (Frame.ANNOUNCE, link_frames.encode(["X", 2**64 - 1, 1, 0, False, [], ""])),
    (Frame.ANNOUNCE, link_frames.encode(["X" * 300, 1, 1, 0, False, [], ""])),
    (Frame.PROBE, b"\x92\xa1\xff\x01"),
    (Frame.NEWS, b"\x92\x01\x91\x93\xa1\xff\xa1x\x01"),
    (Frame.ROUTING, bytes((RoutingKind.ADD, 0, 3)) + b"a/\xff"),
    (Frame.ROUTING, b"".join(routing_frames.encode(RoutingKind.ADD, [b"a/" * 600 + b"a"]))),
    (Frame.LETTER, b"\x91" * 100_000),
    (200, b""),
]


@pytest.mark.parametrize(("kind", "body"), NONSENSE)
def test_nonsense_ends_the_link_in_order_and_is_told_once(kind: int, body: bytes) -> None:
    evil = Evil()
    evil.say(kind, body)
    assert not evil.is_linked
    reports = [fields for event, fields in evil.town["A"].reports if "makes no sense" in event]
    assert [fields["peer"] for fields in reports] == ["E"]
    assert "A" in evil.town["B"].network.links.links
    evil.town.connect_now("EA")
    assert not evil.is_linked, "not at once"
    evil.town.pass_time(PAUSE_S)
    evil.town.connect("EA")
    assert evil.is_linked


def test_what_is_lost_twice_is_lost_once() -> None:
    evil = Evil()
    evil.say(Frame.LOST, link_frames.encode(Lost(["E", "E", "nobody"])))
    assert evil.town["A"].network.router.counters.nonsense == 0


def test_filters_of_a_link_are_bounded() -> None:
    evil = Evil()
    network = evil.town["A"].network
    settings = network.router.strategy._interest._settings  # type: ignore[attr-defined]
    object.__setattr__(settings, "filters_per_link", 1000)
    for start in range(0, 2000, 100):
        if not evil.is_linked:
            break
        filters = [b"f/%d" % number for number in range(start, start + 100)]
        for body in routing_frames.encode(RoutingKind.ADD, filters):
            evil.town["E"].network.links.links["A"].send(Frame.ROUTING, body)
        evil.town.settle()
    assert not evil.is_linked
    reason = next(fields["reason"] for event, fields in evil.town["A"].reports if "makes no sense" in event)
    assert "filters_per_link" in reason


def test_why_a_link_has_to_wait_is_one_sentence_until_the_pause_is_over() -> None:
    """The node asks ten times a second while it waits, and each other sentence is a line of its log."""
    evil = Evil()
    evil.say(*NONSENSE[-1])
    network = evil.town["A"].network
    before = network.stands_by("E")
    evil.town.pass_time(PAUSE_S / 4)
    assert before is not None
    assert network.stands_by("E") == before
    evil.town.pass_time(PAUSE_S)
    assert network.stands_by("E") is None


def test_pauses_grow_and_are_forgiven() -> None:
    quarantine = Quarantine()
    now, pauses = 100.0, []
    for _ in range(12):
        pauses.append(quarantine.offended("evil", now))
        assert quarantine.left_s("evil", now) == pauses[-1]
        assert quarantine.left_s("other", now) == 0
        now += pauses[-1]
    assert pauses[:4] == [PAUSE_S, 2 * PAUSE_S, 4 * PAUSE_S, 8 * PAUSE_S]
    assert pauses[-1] == PAUSE_MAX_S
    assert quarantine.offended("evil", now + FORGIVEN_S + 1) == PAUSE_S


def test_honest_clients_notice_nothing() -> None:
    evil = Evil()
    for topic in BAD_TOPICS:
        if not evil.is_linked:
            evil.town.pass_time(70)
            evil.town.connect("EA")
        evil.publish(topic)
    client = evil.town["B"].dial()
    client.send(Connect("honest"))
    evil.town.settle()
    evil.got()
    publisher = evil.town["B"].join("publisher")
    assert publisher.publish("still", b"here", 1) == 0
    evil.town.pass_time(1)
    assert evil.got() == [["still"], ["still"]]
