"""The stream of each origin's messages at this node: how far it has been read, and how it catches up.

Live messages of an origin are taken only while the stream is *synced*: nothing can be missing between the last one
taken and the next to come.  After any change of the path the stream is not synced until the origin has answered a
FETCH: "this is my vector, send what I want after it".  The answer travels the live path backwards, page by page, and
its last page marks the place in the live flow from which on nothing is missing.

    UNSYNCED --path--> FETCHING --last page--> SYNCED
        ^                 |  ^--- path changed, interest widened: ask again
        '---- path lost --'---------- from any state

Where the strategy tells how far each origin has come, a changed path of one that was read before makes it DOUBTFUL:
nothing is taken from it, and it is asked when it is heard to have more than we have.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from enum import Enum
from functools import partial
from typing import Protocol

from sterna.mqtt.message import Message
from sterna.routing.carried import CarriedOffer, CarriedPage
from sterna.routing.link_frames import FETCHED_FILTERS_MAX, FETCHED_GROUPS_MAX, Fetch, Frame, Page, encode
from sterna.routing.message_frames import encode_record, opening, read_message, read_opening, read_records
from sterna.vocabulary.bounds import NODES_MAX
from sterna.vocabulary.errors import LinkProtocolError
from sterna.vocabulary.identity import BEFORE_ALL, Stamp, VersionVector

#: Filters a FETCH lists; a node that wants more says "everything" and sorts out what it gets.
FILTERS_MAX = FETCHED_FILTERS_MAX
FILTER_BYTES_MAX = 12 * 1024

#: Numbers of FETCHes for one reader begin here.
FOR_ONE = 1 << 48
#: An answer that does not come is asked for again: a node on the way may have lost it without the path changing.
RETRY_S = 5.0
#: How long a node whose journal does not keep up waits before it asks for the next page.
BREATHER_S = 0.02
#: How often it is looked whether what a page needs has been read, and for how long: then that is given up.
LOOK_S = 0.5
NEEDS_S = 10.0


class StreamState(Enum):
    UNSYNCED = "unsynced"
    FETCHING = "fetching"
    SYNCED = "synced"
    DOUBTFUL = "doubtful"
    """Its path has changed.  Perhaps nothing is missing."""


class OriginStream:
    """One origin as this node reads it."""

    __slots__ = (
        "again",
        "carrier",
        "groups",
        "in_vain",
        "is_resumed",
        "needs",
        "needy_since",
        "number",
        "offer",
        "oldest",
        "retained_after",
        "state",
        "unsynced_since",
    )

    def __init__(self, *, new: bool) -> None:
        self.state = StreamState.UNSYNCED
        #: Since when something may be missing; None: nothing is.
        self.unsynced_since: float | None = None
        #: Of what the origin has retained, the topics after this one are still unknown here; None: none are.
        self.retained_after = b"" if new else None
        #: Of the last FETCH, and of the oldest one whose answer is as good: answers to earlier ones are of another
        #: path, or of another question.
        self.number = 0
        self.oldest = 0
        #: The node that was asked instead of the origin; empty: the origin.
        self.carrier = ""
        #: Carriers that were asked and had nothing that follows -> what they offered, and how far we had read.
        self.in_vain: dict[str, tuple[CarriedOffer, Stamp | None]] = {}
        self.offer: CarriedOffer | None = None
        #: We want more than when the FETCH went out.
        self.again = False
        #: Shared subscriptions of ours that the origin has yet to decide about.
        self.groups: dict[bytes, None] = {}
        #: It was read before this node started, and has not been in step since.
        self.is_resumed = not new
        #: The stamp we have to read of another before we ask for its next page; None: none.
        self.needs: tuple[str, Stamp] | None = None
        #: Since when pages have needed something; 0: they do not.
        self.needy_since = 0.0


class StreamExcerpt(Protocol):
    """Part of a journal, as `Local.read_own` gives it."""

    @property
    def messages(self) -> list[tuple[int, int, Message]]:
        """(epoch, sequence, message), in order."""

    @property
    def reached(self) -> Stamp: ...
    @property
    def complete(self) -> bool: ...
    @property
    def lost(self) -> int: ...
    @property
    def needs(self) -> tuple[str, Stamp] | None:
        """The stamp that a reader has to have read before it goes on, and has not."""


class Local(Protocol):
    """This node's own broker and journal."""

    def overloaded(self) -> bool:
        """Should nobody be asked for more just now?"""

    def wants(self, topic: bytes) -> bool:
        """Has any local subscription a use for this topic?"""

    def take(self, message: Message, asked: Collection[bytes] = ()) -> list[bytes]:
        """A sequenced message from elsewhere that is wanted here, or retained.  It is not taken if its origin has yet
        to decide about shared subscriptions of ours: those are returned, but for those that it has been asked about."""

    def remember(self, message: Message) -> None:
        """One retained elsewhere before this node came: kept, if newer, and sent to nobody."""

    def filters(self, carrier: str = "") -> list[bytes] | None:
        """The filters wanted here, and if no carrier is asked those that are carried for; None: everything."""

    def read_from_carrier(self, origin: str, reached: Stamp) -> None:
        """A carrier has told us all that we want of it up to this stamp."""

    def is_ours_to_hand_over(self, message: Message) -> bool:
        """Is it for members of a shared subscription who have left this node?"""

    def read_own(self, after: Stamp, filters: list[bytes] | None, reader: str, have: VersionVector) -> StreamExcerpt:
        """Messages that entered the network here after that stamp and are for that node, which has read so much of
        others, as far as one page goes."""

    def decide_late(self, reader: str, groups: list[bytes], after: Stamp, then: Callable[[], None]) -> None:
        """Give our messages after that stamp to the reader's members of these groups, unless they are decided; then, if
        that is safe, do this."""

    def frontier(self) -> Stamp:
        """The last of our own messages that has been sent to the links."""

    def in_turn_up_to(self, have: VersionVector) -> Stamp:
        """The last of those of which all comes after what somebody has who has read so much of others: publishers that
        came here from elsewhere had published that before."""

    def comes_after(self, stamp: Stamp) -> VersionVector:
        """Messages of others that our own up to that stamp come after."""

    def age(self) -> float:
        """For how many seconds this node has belonged to the network."""

    def reading_begins(self, reader_age: float) -> Stamp:
        """After which of our messages a node begins to read that has belonged to it for so long."""

    def retained_after(
        self, topic: bytes, upto: Stamp, *, of_others: bool
    ) -> tuple[list[tuple[str, int, int, Message]], bytes | None]:
        """(origin, epoch, sequence, message) of what is retained on the topics after this one, as far as a page goes;
        and the last of its topics, if there is more.  Our own after that stamp are left out."""

    def first_seen(self, origin: str, stamp: Stamp) -> None:
        """Reading this origin begins here, and must after a restart too."""

    def lost(self, origin: str, messages: int) -> None:
        """An origin no longer has what this node missed."""

    def read_out_of_turn(self, origin: str, before: str, read: Stamp, upto: Stamp, waited_s: float) -> None:
        """A publisher went to `origin` from a node of which we could not read on for so long: messages of that node,
        after `read` and up to the other stamp, may come late."""


class OriginStreamUser(Protocol):
    def link_to(self, origin: str) -> str | None: ...
    def send_control(self, link: str, kind: int, body: bytes) -> bool:
        """After all interest and all messages gathered so far; False if there is no such link."""

    def is_sound(self, source: str, message: Message) -> bool:
        """May it be published?  Else it is left out, and told of."""

    def offers_changed(self) -> None:
        """Look again who carries messages for us."""


class Streams:
    def __init__(
        self,
        node: str,
        local: Local,
        user: OriginStreamUser,
        vector: VersionVector,
        *,
        now: Callable[[], float],
        schedule: Callable[[float, Callable[[], None]], None],
    ) -> None:
        self._node = node
        self._local = local
        self._user = user
        self._now = now
        self._schedule = schedule
        #: How far this node has taken, or did not want, messages of every origin it ever read.
        self.vector = vector
        self._streams: dict[str, OriginStream] = {}
        #: Stamps that need not be waited for, though we cannot tell that we have read as far.
        self._met: VersionVector = {}
        #: New to the network: one origin is to tell what was retained by all the others too.
        self._retained_source: str | None = None if not vector else ""
        #: Pages that are asked for one reader here, by number: of which origin, and who takes it.
        self._pages_for_one: dict[int, tuple[str, Callable[[list[Message] | None], None]]] = {}
        self._next_page_for_one = FOR_ONE
        self.pages_served = 0
        self.messages_fetched = 0
        #: Times that the messages of an origin came from a carrier.
        self.carried_reads = 0

    # -- state --

    def synced(self, origin: str) -> bool:
        stream = self._streams.get(origin)
        return stream is not None and stream.state is StreamState.SYNCED

    def is_new(self, origin: str) -> bool:
        """Has reading this origin not properly begun?"""
        stream = self._streams.get(origin)
        return stream is not None and stream.retained_after is not None

    def may_repeat(self, origin: str) -> bool:
        """May what comes now have come before this node started?  How far it had read then it knows only of what it
        had to write down."""
        stream = self._streams.get(origin)
        return stream is not None and stream.is_resumed

    def _enter(self, stream: OriginStream, state: StreamState) -> None:
        stream.state = state
        if state is StreamState.SYNCED:
            stream.unsynced_since = None
        elif stream.unsynced_since is None:
            stream.unsynced_since = self._now()

    def gaps(self, frontiers: VersionVector) -> dict[str, dict[str, float]]:
        """Origins that are known to have come further than we have read, for people: by how many messages at most (some
        may be wanted by nobody here), and for how long that may have been so."""
        found = {}
        for origin, stream in self._streams.items():
            read, reached = self.vector.get(origin, BEFORE_ALL), frontiers.get(origin, BEFORE_ALL)
            if stream.unsynced_since is not None and reached > read:
                age_s = round(self._now() - stream.unsynced_since, 1)
                found[origin] = {"messages_at_most": max(1, reached.sequence - read.sequence), "age_s": age_s}
        return found

    def states(self) -> dict[str, str]:
        return {origin: stream.state.value for origin, stream in self._streams.items()}

    def path_changed(self, origin: str) -> None:
        stream = self._streams.get(origin)
        if stream is None:
            stream = self._streams[origin] = OriginStream(new=origin not in self.vector)
        stream.carrier = ""
        stream.in_vain.clear()
        self._fetch(origin, stream)

    def in_doubt(self, origin: str) -> None:
        """The path has changed, and we will hear how far the origin has come."""
        stream = self._streams.get(origin)
        if stream is None or stream.is_resumed or stream.retained_after is not None or stream.groups:
            self.path_changed(origin)
        elif stream.state is StreamState.FETCHING:
            stream.carrier = ""
            self._fetch(origin, stream)
        else:
            self._enter(stream, StreamState.DOUBTFUL)

    def heard_of(self, origin: str, frontier: Stamp) -> None:
        """The origin has come so far: more than we have, perhaps."""
        stream = self._streams.get(origin)
        is_doubtful = stream is not None and stream.state is StreamState.DOUBTFUL
        if stream is not None and is_doubtful and frontier > self.vector.get(origin, BEFORE_ALL):
            self._fetch(origin, stream)

    def in_step(self, origin: str) -> bool:
        """Is nothing missing, for certain?  Where that is in doubt, the origin is asked."""
        stream = self._streams.get(origin)
        if stream is not None and stream.state is StreamState.DOUBTFUL:
            self._fetch(origin, stream)
        return self.synced(origin)

    def lacks_nothing(self, origin: str) -> bool:
        """As far as anybody has heard."""
        stream = self._streams.get(origin)
        return stream is not None and stream.state in (StreamState.SYNCED, StreamState.DOUBTFUL)

    def offered(self, offer: CarriedOffer) -> None:
        """The origin is away, and another node carries some of its messages: read on from there, if that follows."""
        stream, read = self._streams.get(offer.origin), self.vector.get(offer.origin)
        if stream is not None and stream.state is not StreamState.UNSYNCED:
            return
        if read is None:
            if not offer.whole:
                return
        elif not (offer.whole or offer.first <= read) or offer.last <= read:
            return
        if stream is None:
            stream = self._streams[offer.origin] = OriginStream(new=read is None)
        if stream.in_vain.get(offer.carrier) == (offer, read):
            return
        stream.carrier, stream.offer = offer.carrier, offer
        self._fetch(offer.origin, stream)

    def path_lost(self, origin: str) -> None:
        stream = self._streams.get(origin)
        if stream is not None:
            stream.carrier = ""
            self._enter(stream, StreamState.UNSYNCED)
        if self._retained_source == origin:
            self._retained_source = None

    def refetch(self, origin: str) -> None:
        """We want more of an origin, and messages we now want may have passed."""
        stream = self._streams.get(origin)
        if stream is None or stream.state is StreamState.UNSYNCED:
            return
        if stream.state is StreamState.FETCHING:
            stream.again = True
        else:
            self._fetch(origin, stream)

    def widened(self) -> None:
        """More is wanted than before, of all that comes after what has been read: answers to what was asked earlier are
        no good, and what comes now may lack something."""
        for origin, stream in self._streams.items():
            if stream.state is StreamState.FETCHING:
                self._fetch(origin, stream)
            elif stream.state is StreamState.SYNCED:
                self._enter(stream, StreamState.DOUBTFUL)

    def read_anew(self, origin: str) -> None:
        """The same, and what we now want may lie before the end of what was asked for: that answer is no good."""
        stream = self._streams.get(origin)
        if stream is not None and stream.state is not StreamState.UNSYNCED:
            self._fetch(origin, stream)

    def ask_for(self, origin: str, groups: list[bytes]) -> None:
        """The origin had not heard of these shared subscriptions when it took in what comes next: it is to decide."""
        stream = self._streams[origin]
        stream.groups.update(dict.fromkeys(groups))
        self._fetch(origin, stream)

    def passed(self, origin: str, stamp: Stamp) -> None:
        """All that we wanted of an origin up to here has come: it says so by the way its messages take."""
        if self.synced(origin) and stamp > self.vector.get(origin, BEFORE_ALL):
            self.vector[origin] = stamp
        else:
            self.heard_of(origin, stamp)

    def needed(self, origin: str, stamp: Stamp, by: list[str]) -> None:
        """Publishers have gone from there to these: what they published before is to be read first."""
        if self.synced(origin):  # links keep the order: we had it before we could hear of this
            self.count_as_read(origin, stamp)
        elif not self.is_read(origin, stamp):
            for other in by:
                self.read_anew(other)

    def is_read(self, origin: str, stamp: Stamp) -> bool:
        """Our own messages are read as far as all has been read that they come after: a publisher may have come here
        and gone on before we had read what it said elsewhere."""
        return stamp <= self._have().get(origin, BEFORE_ALL)

    def count_as_read(self, origin: str, stamp: Stamp) -> None:
        """Nobody is to wait for it any more."""
        if origin not in self._met and len(self._met) >= NODES_MAX:
            return
        self._met[origin] = max(stamp, self._met.get(origin, BEFORE_ALL))

    def give_up(self, origin: str, before: str, stamp: Stamp, waited_s: float) -> None:
        """A publisher is read at `origin`, though it has said more at another node than we could read."""
        read = self.vector.get(before, BEFORE_ALL)
        self.count_as_read(before, stamp)
        self._local.read_out_of_turn(origin, before, read, stamp, waited_s)

    def taken_back(self, vector: VersionVector) -> None:
        """Messages that were taken could not be kept: read again from here.

        Publishers may have gone on to other nodes from there.  So those are asked anew, too: what they answer to our
        having had these messages is no good, nor is what they say now.
        """
        back = {origin: stamp for origin, stamp in vector.items() if stamp < self.vector.get(origin, BEFORE_ALL)}
        for origin, stamp in back.items():
            self.vector[origin] = stamp
            self._met.pop(origin, None)
        for origin, stream in self._streams.items():
            if back and stream.state is not StreamState.UNSYNCED:
                self._enter(stream, StreamState.FETCHING)
                self._pause(stream)
                self._schedule(self._now() + RETRY_S / 5, partial(self._go_on, origin, stream.number))

    # -- reading --

    def _fetch(self, origin: str, stream: OriginStream, *, is_repeated: bool = False) -> None:
        link = self._user.link_to(stream.carrier or origin)
        if link is None:
            stream.carrier = ""
            self._enter(stream, StreamState.UNSYNCED)
            return
        self._enter(stream, StreamState.FETCHING)
        stream.needs = None
        stream.number += 1
        if not is_repeated or stream.again:
            stream.oldest = stream.number
        stream.again = False
        filters = self._local.filters(stream.carrier)
        if filters is not None and (len(filters) > FILTERS_MAX or sum(map(len, filters)) > FILTER_BYTES_MAX):
            filters = None
        if self._retained_source is None and stream.retained_after is not None and not stream.carrier:
            self._retained_source = origin
        fetch = Fetch(
            origin,
            stream.number,
            self.vector.get(origin),
            self._local.age(),
            filters,
            stream.retained_after,
            self._retained_source == origin,
            [self._node],
            [(other, *stamp) for other, stamp in self._have().items()],
            _that_fit(stream.groups),
            stream.carrier,
        )
        self._user.send_control(link, Frame.FETCH, encode(fetch))
        self._schedule(self._now() + RETRY_S, partial(self._retry, origin, stream.number))

    def read_for_one(
        self, origin: str, have: VersionVector, filters: list[bytes], action: Callable[[list[Message] | None], None]
    ) -> None:
        """Messages of an origin that one reader here has missed, who has read so far: the stream goes on meanwhile.
        In one page, or None: there is more, something is lost, it is not its turn, or no answer comes."""
        number = self._next_page_for_one
        self._next_page_for_one += 1
        self._pages_for_one[number] = (origin, action)
        marks = [(other, *stamp) for other, stamp in have.items()]
        fetch = Fetch(origin, number, have.get(origin), self._local.age(), filters, None, False, [self._node], marks)
        link = self._user.link_to(origin)
        if link is not None:
            self._user.send_control(link, Frame.FETCH, encode(fetch))
        self._schedule(self._now() + RETRY_S / 5, partial(self._give_to_one, number, None))

    def _give_to_one(self, number: int, messages: list[Message] | None) -> None:
        _, action = self._pages_for_one.pop(number, ("", None))
        if action is not None:
            action(messages)

    def _page_for_one(self, page: Page) -> None:
        origin, _ = self._pages_for_one[page.number]
        if page.origin != origin:
            raise LinkProtocolError("a page of another origin than the one that was asked")
        is_whole = page.synced and not page.lost and page.needs is None
        messages = [message for body in page.messages for message in self._sound_messages(origin, body)]
        self._give_to_one(page.number, messages if is_whole else None)

    def _sound_messages(self, asked: str, body: bytes) -> Iterator[Message]:
        origin, epoch, position = read_opening(body)
        if origin != asked:
            raise LinkProtocolError("a page with messages of another origin than the one that was asked")
        for record in read_records(body, position):
            message = read_message(body, record.start, origin, epoch)
            if self._user.is_sound(origin, message):
                yield message

    def _have(self) -> VersionVector:
        have = dict(self.vector)
        for origin, stamp in self._met.items():
            have[origin] = max(stamp, have.get(origin, BEFORE_ALL))
        have[self._node] = max(self._local.in_turn_up_to(have), have.get(self._node, BEFORE_ALL))
        return have

    def _retry(self, origin: str, number: int) -> None:
        """No answer: it was lost, or the way is slow.  Whichever comes first is taken."""
        stream = self._streams[origin]
        if stream.state is StreamState.FETCHING and stream.number == number:
            if stream.carrier:  # it has nothing that follows, or is gone: another may have
                if stream.offer is not None:
                    stream.in_vain[stream.carrier] = (stream.offer, self.vector.get(origin))
                stream.carrier = ""
                self._enter(stream, StreamState.UNSYNCED)
                self._user.offers_changed()
            else:
                self._fetch(origin, stream, is_repeated=True)

    def _go_on(self, origin: str, number: int) -> None:
        stream = self._streams[origin]
        if stream.state is StreamState.FETCHING and stream.number == number:
            self._fetch(origin, stream)

    def page_came(self, page: Page) -> None:
        """An answer for this node."""
        if page.number in self._pages_for_one:
            self._page_for_one(page)
            return
        origin = page.origin
        stream = self._streams.get(origin)
        if stream is None or stream.state is not StreamState.FETCHING:
            return
        if not stream.oldest <= page.number <= stream.number:
            return
        for body in page.retained:
            self._remember(body)
        if page.lost:
            self._local.lost(origin, page.lost)
        for body in page.messages:
            if undecided := self._take_page(origin, body, stream.groups):
                self.ask_for(origin, undecided)
                return
        reached = Stamp(*page.reached)
        if stream.carrier:
            self._carried_came(origin, stream, reached, is_last=page.synced)
            return
        if stream.retained_after is not None:
            stream.retained_after = page.retained_after
            if stream.retained_after is None:
                self._local.first_seen(origin, reached)
                if self._retained_source == origin:
                    self._retained_source = ""
        if reached > self.vector.get(origin, BEFORE_ALL):
            self.vector[origin] = reached
            for other, waiting in self._streams.items():
                self._look(other, waiting)
        if page.needs is not None:
            self._wait_for(origin, stream, page.needs[0], Stamp(*page.needs[1:]))
            return
        stream.needy_since = 0.0
        if page.synced and not stream.again:
            self._enter(stream, StreamState.SYNCED)
            stream.is_resumed = False
            stream.groups.clear()
        elif self._local.overloaded():
            self._pause(stream)
            self._schedule(self._now() + BREATHER_S, partial(self._go_on, origin, stream.number))
        else:
            self._fetch(origin, stream)

    def _carried_came(self, origin: str, stream: OriginStream, reached: Stamp, *, is_last: bool) -> None:
        """A page of a carrier.  After the last the stream waits for the origin, or for another carrier."""
        if reached > self.vector.get(origin, BEFORE_ALL):
            self.vector[origin] = reached
        self._local.read_from_carrier(origin, self.vector[origin])
        if not is_last:
            self._fetch(origin, stream)
            return
        stream.carrier = ""
        self._enter(stream, StreamState.UNSYNCED)
        if stream.retained_after is not None:
            stream.retained_after = None
            self._local.first_seen(origin, self.vector[origin])
        self.carried_reads += 1
        self._user.offers_changed()

    def carrier_of(self, origin: str) -> str:
        """The node that is asked for it instead of the origin; empty: none."""
        stream = self._streams.get(origin)
        return "" if stream is None else stream.carrier

    def _pause(self, stream: OriginStream) -> None:
        """No answer to what was asked before is wanted."""
        stream.number += 1
        stream.oldest = stream.number

    def _wait_for(self, origin: str, stream: OriginStream, other: str, stamp: Stamp) -> None:
        """For what the next page needs."""
        self._pause(stream)
        stream.needy_since = stream.needy_since or self._now()
        stream.needs = (other, stamp)
        if self.synced(other):
            self.read_anew(other)  # to be told how far that is
        else:
            self.heard_of(other, stamp)
        self._look_again(origin, stream.number)

    def _look_again(self, origin: str, number: int) -> None:
        stream = self._streams[origin]
        if stream.number == number and not self._look(origin, stream):
            self._schedule(self._now() + LOOK_S, partial(self._look_again, origin, number))

    def _look(self, origin: str, stream: OriginStream) -> bool:
        """Whether it need not be looked again."""
        if stream.state is not StreamState.FETCHING or stream.needs is None:
            return True
        other, stamp = stream.needs
        waited_s = self._now() - stream.needy_since
        if waited_s > NEEDS_S and not self.is_read(other, stamp):
            stream.needy_since = 0.0
            needed = self._local.comes_after(stamp) if other == self._node else {other: stamp}
            for before, reached in needed.items():
                if not self.is_read(before, reached):
                    self.give_up(origin, before, reached, waited_s)
            self.count_as_read(other, stamp)
        if not self.is_read(other, stamp):
            return False
        self._fetch(origin, stream)
        return True

    def _take_page(self, asked: str, body: bytes, groups: Collection[bytes]) -> list[bytes]:
        """Groups about which the next message is undecided."""
        origin, epoch, position = read_opening(body)
        if origin != asked:
            raise LinkProtocolError("a page with messages of another origin than the one that was asked")
        seen = self.vector.get(origin, BEFORE_ALL)
        for record in read_records(body, position):
            stamp = Stamp(epoch, record.sequence)
            if stamp > seen:
                self.messages_fetched += 1
                self.vector[origin] = seen = stamp
                message = read_message(body, record.start, origin, epoch)
                if self._user.is_sound(origin, message) and (
                    message.retain
                    or self._local.wants(message.topic)
                    or (message.shares and self._local.is_ours_to_hand_over(message))
                ):
                    undecided = self._local.take(message, groups)
                    if undecided:
                        self.vector[origin] = Stamp(epoch, record.sequence - 1)
                        return undecided
        return []

    def _remember(self, body: bytes) -> None:
        origin, epoch, position = read_opening(body)
        for record in read_records(body, position):
            message = read_message(body, record.start, origin, epoch)
            if origin != self._node and self._user.is_sound(origin, message):
                self._local.remember(message)

    # -- being read --

    def begins_after(self, fetch: Fetch) -> Stamp:
        return self._local.reading_begins(fetch.age_s) if fetch.after is None else Stamp(*fetch.after)

    def serve_carried(self, fetch: Fetch, carried: CarriedPage) -> Page:
        """Answer a FETCH for an origin that is away."""
        self.pages_served += 1
        messages = _bodies((fetch.origin, epoch, sequence, message) for epoch, sequence, message in carried.messages)
        return Page(fetch.origin, fetch.number, fetch.hops, carried.reached, carried.complete, 0, messages, [], None)

    def serve(self, fetch: Fetch) -> Page:
        """Answer a FETCH for this node as its origin."""
        self.pages_served += 1
        after = self.begins_after(fetch)
        retained: list[bytes] = []
        more: bytes | None = None
        if fetch.retained_after is not None:
            found, more = self._local.retained_after(fetch.retained_after, after, of_others=fetch.retained_of_others)
            retained = _bodies(sorted(found, key=lambda one: one[:3]))
        if retained and after < self._local.frontier():
            # One or the other: a frame need not have room for the biggest of both.
            return Page(self._node, fetch.number, fetch.hops, after, False, 0, [], retained, more)
        have = {origin: Stamp(epoch, sequence) for origin, epoch, sequence in fetch.have}
        excerpt = self._local.read_own(after, fetch.filters, fetch.hops[0], have)
        messages = _bodies((self._node, epoch, sequence, message) for epoch, sequence, message in excerpt.messages)
        return Page(
            self._node,
            fetch.number,
            fetch.hops,
            excerpt.reached,
            excerpt.complete and more is None,
            excerpt.lost,
            messages,
            retained,
            more,
            None if excerpt.needs is None else (excerpt.needs[0], *excerpt.needs[1]),
        )


def _that_fit(groups: Iterable[bytes]) -> list[bytes]:
    """As many as a FETCH holds; the origin has no room to name more either."""
    found: list[bytes] = []
    room = FILTER_BYTES_MAX
    for key in groups:
        room -= len(key)
        if room >= 0 and len(found) < FETCHED_GROUPS_MAX:
            found.append(key)
    return found


def _bodies(messages: Iterable[tuple[str, int, int, Message]]) -> list[bytes]:
    """Bodies of SEQUENCED frames, a new one whenever origin or epoch changes."""
    bodies: list[bytes] = []
    parts: list[bytes] = []
    current: tuple[str, int] | None = None
    for origin, epoch, sequence, message in messages:
        if current != (origin, epoch):
            if parts:
                bodies.append(b"".join(parts))
            current = (origin, epoch)
            parts = [opening(origin, epoch)]
        parts.append(encode_record(message, sequence))
    if parts:
        bodies.append(b"".join(parts))
    return bodies
