"""The words of the control protocol: what coordinators, workers and gateways say to each other, as bytes.

    version, seal | envelope (MessagePack): network, region, sender, boot, counter, word, place | MAC (16 bytes)

Workers and coordinators seal their words with a key that is derived from the network's, so an access rule that is
wrong is not enough to give orders.  Gateways have no such key.  A gateway's words are open; the node's guard of its
topic says who it is, and it is believed about itself only.

For any bytes `Mailroom.read` gives a letter or None, raises nothing, and counts the refusal by its reason.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from hashlib import blake2b
from hmac import compare_digest
from typing import Annotated, Literal, NamedTuple, TypeAlias

import msgspec

from sterna.adaptation.picture import ReportStamp
from sterna.adaptation.topics import FROM_GATEWAYS, REPORTS, parts_of
from sterna.overlay.coordinates import DIMENSIONS_MAX, Coordinate
from sterna.vocabulary.bounds import Address, Node, Number

VERSION = 1
WORD_BYTES_MAX = 256 * 1024
FOUND_MAX = 16
"""Workers that one answer names."""
MEASURED_MAX = 64
SERVED_MAX = 4096
"""Gateways that one report of a worker names."""
FLOWS_MAX = 32
"""Topics that one report of a worker names, ..."""
FLOW_GATEWAYS_MAX = 64
"""... and gateways of each, that publish or read."""
TEXT_MAX = 500

_OPEN, _SEALED = 0, 1
_MAC_BYTES = 16

Text = Annotated[str, msgspec.Meta(max_length=TEXT_MAX)]


class SentCoordinate(msgspec.Struct, array_like=True, frozen=True):
    """A coordinate on its way.  Whether it makes sense is looked at where it is used."""

    vector: Annotated[tuple[float, ...], msgspec.Meta(max_length=DIMENSIONS_MAX)]
    height: float
    error: float
    adjustment: float

    @classmethod
    def of(cls, coordinate: Coordinate) -> SentCoordinate:
        return cls(coordinate.vector, coordinate.height, coordinate.error, coordinate.adjustment)

    @property
    def coordinate(self) -> Coordinate:
        return Coordinate(self.vector, self.height, self.error, self.adjustment)


class _Word(msgspec.Struct, array_like=True, frozen=True, tag=True):
    pass


class FindRandom(_Word, frozen=True):
    """A participant asks for workers to measure, whichever."""

    count: Annotated[int, msgspec.Meta(ge=1, le=FOUND_MAX)]


class Trip(msgspec.Struct, array_like=True, frozen=True):
    worker: Node
    round_trip_s: float


class FindClosest(_Word, frozen=True):
    """The same, those that are nearest to it, by its round trips and by the place in the envelope."""

    count: Annotated[int, msgspec.Meta(ge=1, le=FOUND_MAX)]
    nearest: Text = ""
    """The worker to which it has measured the shortest round trip."""
    measured: Annotated[tuple[Trip, ...], msgspec.Meta(max_length=MEASURED_MAX)] = ()
    """Round trips of this cycle."""


class WorkerPlace(msgspec.Struct, array_like=True, frozen=True):
    name: Node
    echo: Address
    """Where its echo port is, host:port."""
    place: SentCoordinate


class Found(_Word, frozen=True):
    """The answer to both, and what goes with it to a gateway."""

    asked: Literal["random", "closest"]
    workers: Annotated[tuple[WorkerPlace, ...], msgspec.Meta(max_length=FOUND_MAX)]
    key: Annotated[bytes, msgspec.Meta(max_length=64)] = b""
    """For echoes; it lets its owner measure and nothing else."""
    nodes: Annotated[tuple[Address, ...], msgspec.Meta(max_length=FOUND_MAX)] = ()
    """Where the nodes that serve take clients, the nearest first."""


class Measure(_Word, frozen=True):
    """A leader asks a gateway to measure these workers now, and to report."""

    workers: Annotated[tuple[WorkerPlace, ...], msgspec.Meta(max_length=FOUND_MAX)]
    key: Annotated[bytes, msgspec.Meta(max_length=64)] = b""
    """As in `Found`."""


class GatewayReport(_Word, frozen=True):
    measured: Annotated[tuple[Trip, ...], msgspec.Meta(max_length=MEASURED_MAX)] = ()


class Served(msgspec.Struct, array_like=True, frozen=True):
    """A gateway that a node has clients of, as the node counts them."""

    gateway: Node
    clients: Number
    subscriptions: Number
    deliveries_per_s: float = 0.0


class ServedFlow(msgspec.Struct, array_like=True, frozen=True):
    """Messages of one topic prefix at a node.  Gateways are named by their places in the report's `serves`."""

    topic: Text
    publishers: Annotated[tuple[tuple[Number, Number], ...], msgspec.Meta(max_length=FLOW_GATEWAYS_MAX)] = ()
    """Gateway, and messages a minute of its clients."""
    subscribers: Annotated[tuple[Number, ...], msgspec.Meta(max_length=FLOW_GATEWAYS_MAX)] = ()


class WorkerReport(_Word, frozen=True):
    site: Text
    state: Literal["off", "starting", "serving", "leaving", "draining", "stopping", "stuck"]
    in_state_s: float
    """For how long it has been in this state."""
    echo: Address
    clients: Address
    """Where its node takes clients; empty: nobody is told."""
    fixed: bool = False
    price: float = 1.0
    cpu: float = 0.0
    lag_s: float = 0.0
    bytes_per_s: float = 0.0
    connections: Number = 0
    serves: Annotated[tuple[Served, ...], msgspec.Meta(max_length=SERVED_MAX)] = ()
    others: Number = 0
    barred_s: float = 0.0
    """For so long it is not to be asked again: its node would not start or stop."""
    term: Number = 0
    """The highest term from which it has taken an order."""
    trouble: Text = ""
    flows: Annotated[tuple[ServedFlow, ...], msgspec.Meta(max_length=FLOWS_MAX)] = ()
    """The busiest topics of its gateways."""


class StartNode(msgspec.Struct, array_like=True, frozen=True, tag=True):
    pass


class StopNode(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Empty it, drain it, then stop it."""


class ResumeNode(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Do not stop it after all."""


class MoveGateway(msgspec.Struct, array_like=True, frozen=True, tag=True):
    gateway: Node
    to: Node


Task: TypeAlias = StartNode | StopNode | ResumeNode | MoveGateway


class Order(_Word, frozen=True):
    """A leader's, to one worker.  It is good for `valid_s` after the worker's report that it was made on, by the
    worker's own clock: no clocks need to agree."""

    id: Number
    term: Number
    boot: Number
    counter: Number
    """The report it was made on."""
    valid_s: Annotated[float, msgspec.Meta(gt=0, le=3600)]
    what: Task


class OrderState(StrEnum):
    UNDER_WAY = "under-way"
    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"


class OrderAnswer(_Word, frozen=True):
    id: Number
    term: Number
    state: OrderState
    reason: Text = ""


class Leading(_Word, frozen=True):
    """A coordinator says that it leads a region."""

    term: Number
    frozen: bool = False
    """An operator wants nothing to change."""


class Leaving(_Word, frozen=True):
    """The sender goes, in good order."""


Word: TypeAlias = (
    FindRandom | FindClosest | Found | Measure | GatewayReport | WorkerReport | Order | OrderAnswer | Leading | Leaving
)

#: The words that a gateway may say.
OF_GATEWAYS = (FindRandom, FindClosest, GatewayReport, Leaving)


class Envelope(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    network: Text
    region: Node
    sender: Node
    boot: Number
    counter: Number
    word: Word
    place: SentCoordinate | None = None


class RefusedWord(StrEnum):
    SIZE = "size"
    VERSION = "version"
    MALFORMED = "malformed"
    NETWORK = "other-network"
    MAC = "not-sealed-right"
    OPEN = "not-sealed"
    SENDER = "other-sender"
    """The name in it is not the one of its topic."""
    KIND = "not-its-word"
    """A gateway said something that is not a gateway's to say."""


class SignedWord(NamedTuple):
    """A word that was read, with who said it."""

    sender: str
    region: str
    stamp: ReportStamp
    word: Word
    coordinate: Coordinate | None


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(Envelope)


class Mailroom:
    """Words of one participant as bytes, numbered; and bytes of others as letters."""

    def __init__(self, network: str, region: str, name: str, boot: int, key: bytes = b"") -> None:
        """`boot` rises with every start of the participant.  `key`: the network's; a gateway has none."""
        self._network = network
        self._key = sealing_key(network, key) if key else b""
        self._region = region
        self._name = name
        self.boot = boot
        self.counter = 0
        self.refusals: Counter[RefusedWord] = Counter()

    def write(self, word: Word, place: Coordinate | None = None) -> bytes:
        self.counter += 1
        where = SentCoordinate.of(place) if place is not None else None
        body = _encode(Envelope(self._network, self._region, self._name, self.boot, self.counter, word, where))
        if not self._key:
            return bytes((VERSION, _OPEN)) + body
        sealed = bytes((VERSION, _SEALED)) + body
        return sealed + self._mac(sealed)

    def read(self, topic: bytes, data: bytes) -> SignedWord | None:
        """The letter that came on this topic; None if it is none, and that is counted."""
        read = self._read(topic, data)
        if isinstance(read, RefusedWord):
            self.refusals[read] += 1
            return None
        return read

    def _read(self, topic: bytes, data: bytes) -> SignedWord | RefusedWord:
        if not 2 < len(data) <= WORD_BYTES_MAX:
            return RefusedWord.SIZE
        if data[0] != VERSION:
            return RefusedWord.VERSION
        body = self._opened(topic, data)
        if isinstance(body, RefusedWord):
            return body
        try:
            envelope = _decoder.decode(body)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return RefusedWord.MALFORMED
        return self._checked(topic, envelope)

    def _opened(self, topic: bytes, data: bytes) -> bytes | RefusedWord:
        kind = (parts_of(topic) or ("", "", ""))[1]
        if data[1] == _SEALED and self._key:
            content, mac = data[:-_MAC_BYTES], data[-_MAC_BYTES:]
            return content[2:] if compare_digest(mac, self._mac(content)) else RefusedWord.MAC
        if data[1] == _SEALED:
            # A gateway has no key to look with; its node lets nobody else but coordinators speak to it.
            return data[2:-_MAC_BYTES]
        return data[2:] if kind == FROM_GATEWAYS else RefusedWord.OPEN

    def _checked(self, topic: bytes, envelope: Envelope) -> SignedWord | RefusedWord:
        parts = parts_of(topic)
        if parts is None or parts[0] != self._network or envelope.network != self._network:
            return RefusedWord.NETWORK
        _, kind, name = parts
        if kind in (FROM_GATEWAYS, REPORTS) and name != envelope.sender:
            return RefusedWord.SENDER
        if kind == FROM_GATEWAYS and not isinstance(envelope.word, OF_GATEWAYS):
            return RefusedWord.KIND
        place = envelope.place.coordinate if envelope.place is not None else None
        return SignedWord(
            envelope.sender, envelope.region, ReportStamp(envelope.boot, envelope.counter), envelope.word, place
        )

    def _mac(self, content: bytes) -> bytes:
        return blake2b(content, key=self._key, digest_size=_MAC_BYTES).digest()


def sealing_key(network: str, key: bytes) -> bytes:
    return blake2b(network.encode(), key=blake2b(key).digest(), person=b"sterna-control").digest()


def measuring_key(network: str, key: bytes, period: int) -> bytes:
    """The key of echoes in one period: gateways are given it, and can measure with it and do nothing else."""
    what = f"{period}/{network}".encode()
    return blake2b(what, key=blake2b(key).digest(), person=b"sterna-echoes", digest_size=32).digest()
