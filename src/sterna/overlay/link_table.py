"""All links of one node: which connection carries which session, and when sessions begin and end.

Between two nodes at most one connection carries a link, and both always agree which:
- of two made at once, the one dialled by the node with the smaller name goes on;
- a node that dials has no working connection as far as it knows, so a connection it made takes over from an older one,
  unless its proof was on the way when the older one was agreed on (`HandshakeClaim.attachments` tells);
- another process under the same name takes over if its epoch is higher, or once the older one has fallen silent.

A session goes on over a new connection if both sides still hold it.  Otherwise the node that was dialled draws a
fresh one.  The user hears of every start before any frame, and of every end exactly once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from random import Random
from typing import Protocol

from sterna.overlay.channel import Channel
from sterna.overlay.handshake import NONCE_BYTES, HandshakeClaim, Terms
from sterna.overlay.link import Link, LinkCounters, LinkTransport
from sterna.overlay.link_settings import LinkSettings
from sterna.overlay.refusal_log import RefusalLog

YIELDED = "another connection between the same nodes goes before this one"


class LinkUser(Protocol):
    def session_started(self, link: Link) -> None: ...
    def session_ended(self, link: Link, reason: str) -> None: ...
    def connection_lost(self, link: Link) -> None:
        """The session waits for another connection."""

    def frames(self, link: Link, frames: list[tuple[int, bytes]]) -> None:
        """Kind and body of the frames of one batch, in order; each exactly once per session."""

    def link_relieved(self, link: Link) -> None:
        """It was congested and has room again."""

    def accepts(self, peer: str) -> str | None:
        """None if an authenticated peer is welcome, else the reason to refuse it."""

    def stands_by(self, peer: str) -> str | None:
        """None if a link to this peer is of use now, else why it is not; nothing is wrong then, and nobody is told."""

    def report(self, event: str, **fields: object) -> None: ...


class Links:
    def __init__(
        self,
        settings: LinkSettings,
        user: LinkUser,
        *,
        now: Callable[[], float],
        schedule: Callable[[float, Callable[[], None]], None],
        rng: Random,
    ) -> None:
        self.settings = settings
        #: Peer -> the link with a session, connected or waiting for a connection.
        self.links: dict[str, Link] = {}
        #: Peer -> what all sessions with it came to.
        self.counters: dict[str, LinkCounters] = {}
        self._user = user
        self._now = now
        self._schedule = schedule
        self._rng = rng
        self._incarnation = rng.randbytes(8)
        self._attachments = 0
        self._reading_paused = False
        self._dirty: list[Link] = []
        self._refusal_log = RefusalLog(user.report)
        #: Accepted and not authenticated yet, oldest first.
        self._pending: dict[Channel, None] = {}
        #: Peer -> the connection we made to it and proved ourselves on, until the peer has answered.
        self._dials: dict[str, Channel] = {}
        #: Peer -> the connection that carries its link.
        self._carriers: dict[str, Channel] = {}

    # -- the world's side --

    def accept(self, transport: LinkTransport, address: str) -> Channel:
        """Somebody connected to us."""
        channel = Channel(self, transport, address, is_dialler=False)
        self._pending[channel] = None
        if len(self._pending) > self.settings.pending_handshakes:
            # The oldest: an honest handshake takes a moment, so a flood must be quick to push one out.
            next(iter(self._pending)).abandon("link refused", "too many handshakes at once")
        self._limit_handshake(channel)
        return channel

    def dialled(self, transport: LinkTransport, address: str) -> Channel:
        """We connected to somebody."""
        channel = Channel(self, transport, address, is_dialler=True)
        self._limit_handshake(channel)
        return channel

    def flush(self) -> None:
        """Write everything gathered since the last call; end the sessions that were given up."""
        # Again: a user that hears that a session has ended may have something to tell the others.
        while self._dirty:
            links = self._dirty[:]
            self._dirty.clear()
            for link in links:
                link.flush()
                if link.given_up is not None:
                    self._settle(link)

    def pause_reading(self) -> None:
        """Take nothing more from anybody, on connections to come either: what came already is too much."""
        self._reading_paused = True
        for channel in self._carriers.values():
            channel.pause_reading()

    def resume_reading(self) -> None:
        self._reading_paused = False
        for channel in self._carriers.values():
            if channel.line is not None:
                channel.line.heard = self._now()  # it was we who did not listen
            channel.resume_reading()

    def close(self, peer: str, reason: str) -> None:
        """End the session and the connection for good, and tell the peer why."""
        dial = self._dials.get(peer)
        if dial is not None:
            dial.abandon()
        link = self.links.get(peer)
        if link is not None:
            link.restart(reason)
            self._settle(link)

    def _limit_handshake(self, channel: Channel) -> None:
        def give_up() -> None:
            if not channel.is_open:
                channel.abandon("link refused", "the handshake took too long")

        self._schedule(self._now() + self.settings.handshake_s, give_up)

    # -- asked by channels during the handshake --

    def now(self) -> float:
        return self._now()

    def terms(self) -> Terms:
        mine = self.settings
        nonce = self._rng.randbytes(NONCE_BYTES)
        who = mine.network, mine.node, mine.strategy, mine.epoch, self._incarnation
        return Terms(*who, nonce, mine.frame_bytes, mine.speaks.newest)

    def objection(self, terms: Terms) -> tuple[str, str] | None:
        """Why a peer does not fit, and as much of that as somebody may know who has proved nothing yet."""
        mine = self.settings
        if terms.network != mine.network:
            reason = f"node {mine.node} belongs to network {mine.network}, node {terms.node} to {terms.network}"
            return reason, f"node {terms.node} belongs to network {terms.network}, the other node to another"
        if terms.node == mine.node:
            is_self = terms.incarnation == self._incarnation
            reason = "a node needs no link to itself" if is_self else f"both nodes are named {mine.node}; rename one"
            return reason, reason
        if terms.strategy != mine.strategy:
            one = "a network uses one strategy"
            reason = f"node {mine.node} routes by {mine.strategy}, node {terms.node} by {terms.strategy}; {one}"
            return reason, f"node {terms.node} routes by {terms.strategy}, the other node does not; {one}"
        return None

    def challenged(self, channel: Channel) -> None:
        terms = _terms_of(channel)
        reason = self._uncertified(channel) or self._user.accepts(terms.node) or self._namesake(terms)
        spare = self._user.stands_by(terms.node)
        if reason is not None:
            channel.refuse(reason)
        elif terms.node in self._dials or self._is_carried(terms) or spare is not None:
            channel.refuse(spare or YIELDED, is_redundant=True)
        else:
            link = self._held(terms)
            self._dials[terms.node] = channel
            claim = HandshakeClaim(link.session_id, link.received, self._attachments) if link else self._no_claim()
            channel.prove(claim)

    def proved(self, channel: Channel, claim: HandshakeClaim) -> None:
        terms = _terms_of(channel)
        reason = self._uncertified(channel) or self._user.accepts(terms.node) or self._namesake(terms)
        if reason is not None:
            channel.refuse(reason)
            return
        spare = self._user.stands_by(terms.node)
        if spare is not None:
            channel.refuse(spare, is_redundant=True)
            return
        link, dial = self._held(terms), self._dials.get(terms.node)
        is_late = link is not None and claim.attachments < link.peer_attachments
        if is_late or (dial is not None and self.settings.node < terms.node):
            channel.refuse(YIELDED, is_redundant=True)
            return
        if dial is not None:
            dial.redundant = True
            dial.abandon()
        self._attachments += 1
        if link is not None and link.session_id == claim.session and link.can_resume(claim.received):
            self._leave(link)
            channel.welcome(HandshakeClaim(link.session_id, link.received, self._attachments))
            self._resume(link, channel, claim)
        else:
            session = self._rng.getrandbits(64) or 1
            channel.welcome(HandshakeClaim(session, 0, self._attachments))
            self._begin(session, channel, claim)

    def welcomed(self, channel: Channel, claim: HandshakeClaim) -> None:
        terms = _terms_of(channel)
        self._dials.pop(terms.node, None)
        self._attachments += 1
        if claim.session != channel.claimed:
            self._begin(claim.session, channel, claim)
            return
        link = self._held(terms)
        if link is None or link.session_id != claim.session or not link.can_resume(claim.received):
            channel.abandon("link lost", "the session was given up while it was being resumed")
            return
        self._leave(link)
        self._resume(link, channel, claim)

    def _uncertified(self, channel: Channel) -> str | None:
        """A node with the key could take any name; with TLS the certificate names it."""
        node = _terms_of(channel).node
        if not self.settings.certified or node in channel.certified:
            return None
        named = ", ".join(sorted(channel.certified)) or "nobody"
        fix = "name it there (common name or DNS name), or set check_nodes = false in [network.tls]"
        return f"the certificate of node {node} names {named}, not {node}; {fix}"

    def _no_claim(self) -> HandshakeClaim:
        return HandshakeClaim(0, 0, self._attachments)

    def _held(self, terms: Terms) -> Link | None:
        """The session we have with this very process."""
        link = self.links.get(terms.node)
        if link is not None and link.given_up is not None:
            self._settle(link)
            return None
        return link if link is not None and _is_same_process(link, terms) else None

    def silent_s(self, peer: str) -> float:
        """For how long nothing has come over the link with this peer; for ever if it has no connection."""
        link = self.links.get(peer)
        return inf if link is None or link.line is None else self._now() - link.line.heard

    def _is_carried(self, terms: Terms) -> bool:
        link = self._held(terms)
        return link is not None and link.connected

    def _namesake(self, terms: Terms) -> str | None:
        """Why a second process under a known name is refused, None if it is the first's successor."""
        link = self.links.get(terms.node)
        if link is None or link.line is None or _is_same_process(link, terms) or terms.epoch > link.peer_epoch:
            return None
        is_silent = self._now() - link.line.heard > 2 * self.settings.keep_alive_s
        if is_silent and terms.epoch == link.peer_epoch:
            return None
        return f"another node named {terms.node} is linked to node {self.settings.node}; rename one"

    # -- sessions --

    def _begin(self, session: int, channel: Channel, claim: HandshakeClaim) -> None:
        terms = _terms_of(channel)
        old = self.links.get(terms.node)
        if old is not None:
            is_same = _is_same_process(old, terms)
            self._end(old, "it could not be resumed" if is_same else f"node {terms.node} was started again")
            if channel.is_closed:
                return
        counters = self.counters.setdefault(terms.node, LinkCounters())
        counters.sessions += 1
        link = Link(
            terms.node,
            session,
            self.settings,
            counters,
            dirty=self._dirty,
            now=self._now,
            relieved=self._user.link_relieved,
        )
        link.peer_epoch = terms.epoch
        link.peer_incarnation = terms.incarnation
        link.version = channel.version
        link.frame_bytes = min(self.settings.frame_bytes, terms.frame_bytes)
        self.links[terms.node] = link
        self._attach(link, channel, claim, 0)
        self._user.session_started(link)

    def _resume(self, link: Link, channel: Channel, claim: HandshakeClaim) -> None:
        link.counters.resumptions += 1
        self._user.report("link resumed", peer=link.peer, address=channel.address)
        self._attach(link, channel, claim, claim.received)

    def _attach(self, link: Link, channel: Channel, claim: HandshakeClaim, received: int) -> None:
        link.peer_attachments = max(link.peer_attachments, claim.attachments)
        self._pending.pop(channel, None)
        self._carriers[link.peer] = channel
        channel.link = link
        line = channel.open(link.counters)
        if self._reading_paused:
            channel.pause_reading()
        self._watch(channel)
        link.attach(line, received)

    def _leave(self, link: Link) -> None:
        """Another connection takes over: the old one is dropped without ending the session."""
        carrier = self._carriers.pop(link.peer, None)
        link.detach()
        if carrier is not None:
            carrier.abandon()

    def _settle(self, link: Link) -> None:
        """End a session that was given up, telling the peer if it can hear us."""
        reason = link.given_up or ""
        carrier = self._carriers.pop(link.peer, None) if link.connected else None
        if carrier is not None:
            carrier.say_farewell(reason)
        self._end(link, reason)

    def _end(self, link: Link, reason: str) -> None:
        if link.ended:
            return
        carrier = self._carriers.pop(link.peer, None) if link.connected else None
        link.end()
        if self.links.get(link.peer) is link:
            del self.links[link.peer]
        if carrier is not None:
            carrier.abandon()
        self._user.session_ended(link, reason)

    # -- asked by channels that are open --

    def deliver(self, link: Link, frames: list[tuple[int, bytes]]) -> None:
        self._user.frames(link, frames)

    def farewell(self, channel: Channel, reason: str) -> None:
        link = channel.link
        channel.abandon()
        if link is not None:
            self._end(link, f"node {link.peer} ended it: {reason}")

    def closed(self, channel: Channel, event: str, reason: str) -> None:
        self._pending.pop(channel, None)
        peer, link = channel.peer or "", channel.link
        if self._dials.get(peer) is channel:
            del self._dials[peer]
        if channel.link is None and event:
            self._refusal_log.report(self._now(), event, peer=peer, address=channel.address, reason=reason)
        elif event:
            self._user.report(event, peer=peer, address=channel.address, reason=reason)
        if link is not None and self._carriers.get(peer) is channel:
            del self._carriers[peer]
            link.detach()
            wait = partial(self._expire, link, link.losses)
            self._schedule(self._now() + self.settings.resume_s, wait)
            self._user.connection_lost(link)

    def _expire(self, link: Link, losses: int) -> None:
        if not link.ended and link.line is None and link.losses == losses:
            self._end(link, link.given_up or f"no connection for {self.settings.resume_s:g} s")

    # -- signs of life --

    def _watch(self, channel: Channel) -> None:
        """Look again when the next keep-alive is due or the peer would have been silent for too long."""
        line, link = channel.line, channel.link
        if line is None or link is None or not channel.is_open:
            return
        due, dead = line.sent + self.settings.keep_alive_s, line.heard + self.settings.dead_after_s
        now = self._now()
        if self._reading_paused:
            dead = now + self.settings.dead_after_s
        if now >= dead:
            channel.abandon("link lost", f"nothing was heard for {self.settings.dead_after_s:g} s")
            return
        if now >= due:
            link.keep_alive(line)
            due = line.sent + self.settings.keep_alive_s
        self._schedule(min(due, dead), partial(self._watch, channel))


def _terms_of(channel: Channel) -> Terms:
    terms = channel.terms
    assert terms is not None, "a peer that has proved itself has said its terms"
    return terms


def _is_same_process(link: Link, terms: Terms) -> bool:
    return link.peer_incarnation == terms.incarnation and link.peer_epoch == terms.epoch
