"""The nodes of a network as the driver of a query sees them.

Nodes are found through each other.  `survey` asks each of them once.  `OffsetWatch` keeps a thread per node that waits
at the node for news, so a query learns of a message when it is committed and sends nothing while nothing happens.  A
node that does not answer is asked again every second; until it answers, it is missing from what the driver sees.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from sterna.pipeline.errors import NodesMissing
from sterna.pipeline.feed.client import FeedClient, ParquetFile, Status
from sterna.pipeline.feed.errors import Busy, FeedError, Unreachable
from sterna.pipeline.offsets import BEFORE_IDENTITY, LATEST, OffsetSpec, node_of
from sterna.pipeline.options import Access, ReadOptions
from sterna.vocabulary.errors import ConfigurationError

log = logging.getLogger(__name__)

ANSWER_S = 10.0
"""How long a node may take to answer."""
WAIT_MS = 2_000
"""How long a request for news stays at a node."""
BREATH_S = 0.01
"""Between an answer and the next question: a node under load has news with every commit."""
ANSWERS_MAX = 500
"""A second, of all nodes: the more there are, the longer each breath."""
AGAIN_S = 1.0
"""Between two tries to reach a node that is away."""
ASKED_AT_ONCE = 32
BUSY_AGAIN_S = 0.25

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Seen:
    """A node as it described itself, and where it was asked."""

    name: str
    address: str
    epoch: int
    first: int
    next: int
    durable: bool = True
    time_us: int = 0
    """Everything that came in before is below `next`."""
    edition: int = 0
    """Of the expressions it has for Spark."""
    identity: str = ""
    """Of its journal; empty if it is of an earlier release."""

    @property
    def journal(self) -> str:
        """The key of its offsets: a journal in memory is another one at every start of the node, one on a disk
        when the disk was replaced."""
        if not self.identity and self.durable:
            return self.name
        return f"{self.name}{BEFORE_IDENTITY}{self.identity or self.epoch}"


def by_journal(nodes: Mapping[str, Seen]) -> dict[str, Seen]:
    return {seen.journal: seen for seen in nodes.values()}


def open_feed(access: Access, address: str) -> FeedClient:
    return FeedClient(address, access.reader, access.token, tls=access.ca_file, timeout_s=ANSWER_S)


def _seen(status: Status, address: str) -> Seen:
    return Seen(
        status.node,
        address,
        status.epoch,
        status.first,
        status.next,
        status.durable,
        status.time_us,
        status.edition,
        status.journal,
    )


def ask(access: Access, address: str) -> tuple[Seen, Mapping[str, str]]:
    """A node's state, and the feeds it knows of."""
    with open_feed(access, address) as feed:
        status = feed.status()
    return _seen(status, address), {**status.away, **status.peers}


class NetworkSurvey(NamedTuple):
    """The findings."""

    nodes: dict[str, Seen]
    missing: dict[str, FeedError]
    """Nodes that others know of and that do not answer, with the reason."""


def look_around(access: Access, addresses: Iterable[str], *, all_of_them: bool) -> NetworkSurvey:
    """Every node that can be found from these addresses.

    `all_of_them`: every named address must answer; else one answer is enough.
    """
    found: dict[str, Seen] = {}
    known: dict[str, str] = {}
    silent: dict[str, FeedError] = {}
    named = asking = list(dict.fromkeys(addresses))
    asked: set[str] = set()
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        while asking:
            asked.update(asking)
            for address, answer in zip(asking, pool.map(lambda at: _try(access, at), asking), strict=True):
                if isinstance(answer, FeedError):
                    if not isinstance(answer, Unreachable) or (all_of_them and address in named):
                        raise answer
                    silent[address] = answer
                else:
                    found[answer[0].name] = answer[0]
                    known.update(answer[1])
            asking = sorted({at for name, at in known.items() if name not in found and at not in asked})
    if not found:
        first = next(iter(silent.values()))
        raise first if isinstance(first, Busy) else NodesMissing(f"no feed answers: {first}")
    elsewhere = Unreachable("another node answers there")
    missing = {name: silent.get(at, elsewhere) for name, at in sorted(known.items()) if name not in found}
    return NetworkSurvey(dict(sorted(found.items())), missing)


def survey(access: Access, addresses: Iterable[str], *, all_of_them: bool) -> dict[str, Seen]:
    """Those that answer."""
    return look_around(access, addresses, all_of_them=all_of_them).nodes


def whole_network(options: ReadOptions) -> dict[str, Seen]:
    """Every node, for a read that is to hold what all of them have.  Raises NodesMissing, or Busy."""
    network = look_around(options.access, options.nodes, all_of_them=True)
    for name, error in network.missing.items():
        if isinstance(error, Busy):
            raise error
        text = f"node {name} does not answer, and what it has would be missing: {error}"
        if not options.ignore_missing_nodes:
            raise NodesMissing(f"{text}; start it, or set ignoreMissingNodes to true to read without it")
        log.warning("%s", text)
    return network.nodes


def patiently(options: ReadOptions, work: Callable[[], T]) -> T:
    """Do it, again and again while a node has too many readers, for as long as there is patience."""
    until = time.monotonic() + options.patience_s
    while True:
        try:
            return work()
        except Busy:
            if time.monotonic() >= until:
                raise
        time.sleep(BUSY_AGAIN_S)


def _try(access: Access, address: str) -> tuple[Seen, Mapping[str, str]] | FeedError:
    try:
        return ask(access, address)
    except FeedError as error:
        return error


def resolve(access: Access, seen: Seen, place: OffsetSpec) -> int:
    """The offset that a place means at this node."""
    wanted = place.for_node(seen.journal, seen.name)
    if wanted.offsets:
        return wanted.offsets[0][1] if isinstance(wanted.offsets[0][1], int) else seen.first
    if wanted.time_us is not None:
        with open_feed(access, seen.address) as feed:
            return feed.offset_at(wanted.time_us)
    return seen.next if wanted.word == LATEST else seen.first


def check_place(place: OffsetSpec, nodes: Mapping[str, Seen], option: str) -> None:
    """Offsets of a node that nobody knows are a mistake, as are those that it does not have yet; those of a journal
    that is gone are history."""
    known = {seen.name for seen in nodes.values()}
    for name in place.named():
        if node_of(name) not in known:
            raise NodesMissing(f'{option}: node "{name}" is none of those that answer: {", ".join(sorted(known))}')
    for seen in nodes.values():
        for _, offset in place.for_node(seen.journal, seen.name).offsets:
            if isinstance(offset, int) and offset > seen.next:
                raise ConfigurationError(
                    f'{option}: {offset} is beyond the journal of node "{seen.name}", which ends at {seen.next} '
                    f"(if it was longer, its data directory was replaced); write latest, or a number up to {seen.next}"
                )


def sealed_files(access: Access, seen: Seen) -> list[ParquetFile]:
    """The files a node has made of its sealed segments."""
    with open_feed(access, seen.address) as feed:
        return feed.parquet()[1]


class OffsetWatch:
    """The newest that is known of every node.  Its threads end with the process."""

    def __init__(
        self, access: Access, addresses: Iterable[str], wait_ms: int = WAIT_MS, breath_s: float = BREATH_S
    ) -> None:
        self._access = access
        self._wait_ms = wait_ms
        self._breath_s = breath_s
        self._changed = threading.Condition()
        self._seen: dict[str, Seen] = {}
        self._refusals: dict[str, FeedError] = {}
        #: Node -> the others it last said there are.
        self._peers: dict[str, frozenset[str]] = {}
        self._watched: set[str] = set()
        for address in addresses:
            self._begin(address)

    def _begin(self, address: str) -> None:
        self._watched.add(address)
        threading.Thread(target=self._watch, args=(address,), name=f"watch {address}", daemon=True).start()

    def nodes(self) -> dict[str, Seen]:
        """Nodes that are in sight; raises if one refuses us, which waiting does not mend."""
        with self._changed:
            for refusal in self._refusals.values():
                raise refusal
            return dict(self._seen)

    def heard_of(self) -> set[str]:
        """Names of the nodes that others say there are, in sight or not."""
        with self._changed:
            return set().union(*self._peers.values())

    def wait_for(self, holds: Callable[[Mapping[str, Seen]], bool], within_s: float) -> None:
        """Come back as soon as it holds of the nodes in sight, or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._refusals or holds(self._seen), within_s)

    def _watch(self, address: str) -> None:
        pause = threading.Event()
        while True:
            name = ""
            try:
                with open_feed(self._access, address) as feed:
                    status = feed.status()
                    while True:
                        name = status.node
                        self._tell(_seen(status, address), status.peers)
                        pause.wait(self._breath())
                        status = feed.status(beyond=status.next, wait_ms=self._wait_ms)
            except Unreachable as error:
                self._lose(name, address)
                log.info("%s; asked again every second", error)
            except FeedError as error:
                with self._changed:
                    self._refusals[address] = error
                    self._changed.notify_all()
            pause.wait(AGAIN_S)

    def _breath(self) -> float:
        return max(self._breath_s, len(self._watched) / ANSWERS_MAX)

    def _tell(self, seen: Seen, peers: Mapping[str, str]) -> None:
        with self._changed:
            self._refusals.pop(seen.address, None)
            changed = self._seen.get(seen.name) != seen
            self._seen[seen.name] = seen
            self._peers[seen.name] = frozenset(peers)
            for address in set(peers.values()) - self._watched - {one.address for one in self._seen.values()}:
                self._begin(address)
            if changed:
                self._changed.notify_all()

    def _lose(self, name: str, address: str) -> None:
        with self._changed:
            if name in self._seen and self._seen[name].address == address:
                del self._seen[name]
