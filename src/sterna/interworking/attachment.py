"""The attachment of our node to one foreign broker: finds out what it can do, joins it, and joins it again.

Events come in as calls of the lines (`line.py`), of our own broker and of timers; effects go out through
`ForeignWorld` and `OwnBroker`.  `states.py` has the states.  A try that fails is followed by a pause, and each pause is
longer than the one before, until messages have flowed for a while.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Any, Final
from zlib import crc32

from sterna.interworking import fences
from sterna.interworking.abilities import EXPECTED_ECHOES, Abilities
from sterna.interworking.counters import AttachmentCounters
from sterna.interworking.crossing import CrossingTopics
from sterna.interworking.echoes import ExpectedEchoes
from sterna.interworking.joint import Joint
from sterna.interworking.marks import Marks
from sterna.interworking.own_side import OwnSide
from sterna.interworking.poison import Poison
from sterna.interworking.ports import ForeignWorld, OwnBroker
from sterna.interworking.probe import Caller, Ladder
from sterna.interworking.proxy.proxy import Proxy
from sterna.interworking.retained import CommonValues, UnheardValues
from sterna.interworking.retained_exchange import NAMED_MAX, RetainedExchange
from sterna.interworking.serving import Serving
from sterna.interworking.session_line import SessionLine
from sterna.interworking.settings import InterworkingSettings
from sterna.interworking.stand_by import StandBy
from sterna.interworking.states import Event, State, after
from sterna.interworking.storms import StormGuard
from sterna.interworking.timers import NamedTimers
from sterna.mqtt import client_packets as encode
from sterna.mqtt.packets import BRIDGE, MQTT_5

#: Fence intervals without trouble after which pauses begin small again.
STEADY_FENCES: Final = 2
#: A publication that the broker acknowledged is asked after so much later, unless it came in.
WITNESS_FENCE_S: Final = 0.05
#: How often it is looked whether all clients of the proxy are back.
CLIENTS_LOOK_S: Final = 0.05


@dataclass(slots=True)
class _SessionProof:
    """Is the session that the foreign broker has the one that we had?"""

    is_doubtful: bool = False
    """It is not, though the broker says so."""
    fence_id: int = 0
    """The identifier of the last fence of the session, and its number."""
    fence_number: int = 0
    is_fence_taken: bool = False
    """The broker has acknowledged it."""
    is_shown: bool = False
    """A fence or SUBACK came on this connection: the session has our subscriptions."""
    settling_since: float = 0.0
    messages_seen: int = -1


@dataclass(slots=True)
class _RelayedClients:
    """In proxy mode, what waits for clients and what clients wait for."""

    last_fence: bytes = b""
    """A broker that does not send it back has passed on what came before it when the next one is due."""
    is_fence_due: bool = False
    clients_by: float = 0.0
    """Until then messages wait for clients to come back."""


def _marker_of(topic: bytes, filters: list[bytes]) -> bytes:
    """A filter of the session at our own broker that shows, after a restart, too, what the foreign broker's session is
    subscribed to: a bridge that subscribes again is sent all retained messages as if they were live."""
    return topic + b"/from/%08x" % crc32(b"\n".join(filters))


class Attachment:
    def __init__(
        self,
        settings: InterworkingSettings,
        network: str,
        node: str,
        broker: str,
        world: ForeignWorld,
        own: OwnBroker,
        rng: Random,
        username: bytes | None = None,
        password: bytes | None = None,
        proxy: Proxy | None = None,
    ) -> None:
        """`network` and `node` name this node to others; `broker` names the foreign broker to people; `proxy` is there
        in proxy mode."""
        self._settings = settings
        self._network, self._node = network, node
        self.broker = broker
        self._world = world
        self._own = own
        self._rng = rng
        client_id = settings.client_id or f"sterna-{network}-{node}"
        self._life = f"{rng.getrandbits(64):016x}"
        topic = fences.topic_of(network, node)
        self._caller = Caller(client_id.encode(), topic, username, password, settings.keep_alive_s, settings.answer_s)
        self._topics = CrossingTopics(settings.from_broker, settings.to_broker, own)
        self._marker = _marker_of(topic, self._topics.from_broker)
        self.state = State.WAITING
        self.abilities: Abilities | None = None
        self.counters = AttachmentCounters()
        self.trouble = ""
        """Why it is not attached; empty if it is."""
        self.fences = fences.Fences(network, node, self._life)
        self._marks = Marks(network, node)
        self._echoes = ExpectedEchoes()
        self.storms = StormGuard(settings.storm_repeats)
        self._poison = Poison()
        self._common = CommonValues(own)
        self._retained = self._new_exchange()
        #: Identifiers of the foreign broker's publications at QoS 2 that did not go further and are not released, with
        #: that of our message of which it is the echo, or 0.
        self._taken_out: dict[int, int] = {}
        self._pause_s = settings.pause_s
        self._timers = NamedTimers(world)
        self._ladder: Ladder | None = None
        self._line: SessionLine | None = None
        self._side: OwnSide | None = None
        self._joint: Joint | None = None
        #: The foreign broker's session is new: it has no subscriptions, and perhaps no retained messages of ours.
        self._is_new = True
        #: The connection is only to end an older session there.
        self._is_sweeping = False
        #: This process has subscribed there.
        self._has_subscribed = False
        self._proof = _SessionProof()
        self._fences_in_a_row = 0
        self._relayed = _RelayedClients()
        #: When messages last flowed, before this connection; 0: not since this start.
        self._attached_until = 0.0
        self._proxy = proxy
        watcher = _renamed(self._caller, self._caller.client_id + b"-watch", topic)
        self._stand_by = StandBy(settings, broker, node, world, self.fences, watcher, self._left_alone, self._failed)
        self._serving = self._new_serving()
        if proxy is not None:
            proxy.begin(self._topics.comes_in, self._fence_soon, self._caller.client_id)

    def _new_serving(self) -> Serving:
        return Serving(
            self._world,
            self._own,
            self._topics,
            [self.fences.topic, self._marker],
            self._proxy.interest if self._proxy is not None and self._settings.only_wanted else None,
            lambda: bool(self._stand_by.others()),
            self._wanted_now,
        )

    def _new_exchange(self) -> RetainedExchange:
        return RetainedExchange(
            self.broker,
            self._settings,
            self._world,
            self._own,
            self._topics,
            self._marks,
            self._common,
            self.counters,
            self,
            self._reading_caller,
            self._reading_fence,
        )

    # -- the outside --

    def start(self) -> None:
        self._timers.after("dial", 0.0, self._dial)

    def stop(self) -> None:
        """The node stops: the sessions stay, on both sides."""
        self._enter(Event.STOP)
        self._let_go(encode.DISCONNECT_BYTES)
        self._timers.cancel_all()

    def view(self) -> dict[str, Any]:
        """For the admin port."""
        now, counters = self._world.now, self.counters
        return {
            "broker": self.broker,
            "name": self._settings.name,
            "mode": self._settings.mode,
            "state": str(self.state),
            "trouble": self.trouble,
            "abilities": self.abilities.shown() if self.abilities is not None else {},
            "from_broker": list(self._settings.from_broker),
            "to_broker": list(self._settings.to_broker),
            "round_trip_ms": None if self.fences.way_s is None else round(1000 * self.fences.way_s, 3),
            "other_nodes": self._stand_by.others(),
            "held_topics": [topic.decode(errors="replace") for topic in self.storms.held(now)],
            "expected_echoes": len(self._echoes),
            "taken": counters.taken,
            "injected": counters.injected,
            "held_back": dict(sorted(counters.held_back.items())),
            "not_injected": dict(sorted(counters.not_injected.items())),
            "in_doubt": dict(sorted(counters.in_doubt.items())),
            "sessions_lost": counters.sessions_lost,
            "connections": counters.connections,
            "failures": counters.failures,
            "fences_sent": counters.fences_sent,
            "fences_back": counters.fences_back,
            "storms": counters.storms,
            **self._serving.view(),
            **(self._proxy.view() if self._proxy is not None else {}),
        }

    # -- states --

    def _enter(self, event: Event) -> None:
        self.state = after(self.state, event)

    def _dial(self) -> None:
        self._enter(Event.PAUSE_OVER)
        nonce = f"-{self._rng.getrandbits(32):08x}".encode()
        caller = _renamed(self._caller, self._caller.client_id + nonce, self._caller.topic + b"/probe")
        self._ladder = Ladder(self._world, caller, self._able, self._failed)
        self._ladder.begin()

    def _able(self, abilities: Abilities) -> None:
        self._ladder = None
        if abilities != self.abilities:
            self._world.report("foreign broker examined", {"broker": self.broker, **abilities.shown()})
        self.abilities = abilities
        self._enter(Event.ABLE)
        self._join(sweep=self._proof.is_doubtful or not self._own.has_session())

    def _join(self, *, sweep: bool) -> None:
        """Connect as the client that keeps its session.  `sweep`: what an earlier life of ours left there goes first,
        or its packet identifiers would be taken for ours.  That needs a connection of its own: 3.1.1 has no other way,
        and Mosquitto 2.0 writes no session to disk that began with Clean Start."""
        abilities = self.abilities
        assert abilities is not None
        joint = self._joint = Joint(
            abilities,
            self,
            self._topics.comes_in,
            self._marks,
            self._echoes,
            self.storms,
            self._poison,
            self._common,
            self._taken_out,
            self.counters,
            self._proxy.witness if self._proxy is not None else None,
        )
        joint.now = self._world.now
        if self._proxy is not None and self._proxy.has_clients:
            joint.hold_out()
        self._poison.connected()
        self._is_sweeping = sweep
        self._line = SessionLine(
            self._world,
            self._caller,
            abilities,
            joint,
            self,
            self._failed,
            clean=sweep,
            packet_bytes=self._own.packet_bytes,
            receive_maximum=self._own.receive_maximum,
        )
        self._world.dial(self._line)

    def greeted(self, *, session_present: bool) -> None:
        line = self._line
        assert line is not None
        if self._is_sweeping:
            line.close(encode.DISCONNECT_BYTES)
            self._join(sweep=False)
            return
        if self._own.is_client_here(self._caller.client_id):
            self._failed("this is the node itself: name another broker in [interworking]")
            return
        self.counters.connections += 1
        self._is_new = not session_present
        if self._is_new and self._proxy is not None:
            self._proxy.session_lost()
        self._proof.is_doubtful = False
        if self._is_new:
            self._start_anew()
        elif self.abilities is not None and self.abilities.loop_prevention == EXPECTED_ECHOES:
            for packet_id, qos, topic, payload in self._own.in_flight():
                if self._topics.comes_in(topic):
                    self._echoes.may_have_gone(topic, payload, qos, packet_id)
        # Until our own broker has opened the session it takes no messages.
        line.is_held = True
        if line.output is not None:
            line.output.pause_reading()
        assert self._joint is not None
        assert self.abilities is not None
        self._retained.begin(line, self._joint, self.abilities, is_new=self._is_new)
        self._side = OwnSide(
            self._world, self._own, self.abilities, self._joint, lambda: line.output, self, margin=self._marks.size + 8
        )
        self._side.open()

    def _start_anew(self) -> None:
        """The foreign broker knows nothing of an earlier session."""
        self._echoes.clear()
        self._taken_out.clear()
        self._has_subscribed = False
        if not self._own.has_session():
            return
        self.counters.sessions_lost += 1
        found = self._own.forget_exchanges()
        for what in ("repeated", "dropped", "unknown"):
            if count := getattr(found, what):
                self.counters.in_doubt[what] += count
        self._world.report(
            "the foreign broker has lost its session",
            {
                "broker": self.broker,
                "reason": "messages that waited for this node there are gone",
                "away_s": round(self._world.now - self._attached_until, 1) if self._attached_until else None,
                "repeated": found.repeated,
                "dropped": found.dropped,
                "unknown": found.unknown,
            },
        )

    def _wanted_now(self, filters: list[bytes]) -> None:
        if self.abilities is not None and self.abilities.version == MQTT_5:  # else our own broker sends the values
            self._retained.send_wanted(filters)

    def own_subscribed(self) -> None:
        self._serving.subscribed()

    def own_opened(self) -> None:
        line = self._line
        assert line is not None
        assert self._joint is not None
        self._enter(Event.ACCEPTED)
        self._proof.settling_since = self._world.now
        if self._is_new and self._side is not None and self._marker in self._own.filters():
            self._side.unsubscribe([self._marker])
        self._world.later(0.0, self._subscribe)
        if line.output is not None:
            line.output.resume_reading()
        self._world.later(0.0, line.go_on)

    def _subscribe(self) -> None:
        line, abilities = self._line, self.abilities
        if line is None or abilities is None or not line.is_open:
            return
        self._has_subscribed = False
        if self._marker in self._own.filters() and not self._is_new:
            self._is_subscribed()
        elif abilities.level & BRIDGE:
            # Stored messages come for a bridge's subscription like live ones: they have to be known before.
            if self._joint is not None:
                self._joint.may_have_asked = not self._is_new
            self._retained.read()
        else:
            self._subscribe_now(line, abilities)

    def _subscribe_now(self, line: SessionLine, abilities: Abilities) -> None:
        options = abilities.qos | encode.RETAIN_AS_PUBLISHED | encode.RETAINED_NEVER
        no_local = 0 if abilities.echoes else encode.NO_LOCAL
        filters = [(topic_filter, options | no_local) for topic_filter in self._topics.from_broker]
        if self._joint is not None:
            self._joint.awaits_stored = bool(abilities.level & BRIDGE)
            self._joint.unheard = UnheardValues() if self._is_new and not abilities.level & BRIDGE else None
        line.subscribe([*filters, (fences.FILTER, 1)])

    def subscribed(self) -> None:
        """The broker has said so on this connection: a session that does not hear itself needs no other proof."""
        self._proof.is_shown = self._proof.is_shown or not self._hears_itself
        self._is_subscribed()

    def _is_subscribed(self) -> None:
        self._has_subscribed = True
        if not self._retained.is_begun:
            self._retained.read()
        self._timers.after("fence", 0.0, self._fence)
        self._settle_if_known()

    # -- retained messages --

    def values_read(self) -> None:
        unheard = self._joint.unheard if self._joint is not None else None
        if unheard is not None:
            self._fence()
            unheard.fence_number = self.fences.number
        line, abilities = self._line, self.abilities
        if self._has_subscribed:
            self._settle_if_known()
        elif line is not None and abilities is not None:
            self._subscribe_now(line, abilities)

    def values_not_read(self, reason: str) -> None:
        self._failed(reason)

    def _reading_caller(self) -> Caller:
        nonce = f"-{self._rng.getrandbits(32):08x}".encode()
        return _renamed(self._caller, self._caller.client_id + nonce, self._caller.topic + b"/read")

    def _reading_fence(self) -> bytes:
        abilities = self.abilities
        return b"" if abilities is None or self._hears_itself else self._next_fence(abilities, 0, 0)

    def answered(self, packet_id: int) -> None:
        if not self._retained.answered(packet_id) and packet_id == self._proof.fence_id:
            self._proof.is_fence_taken = True
            if not self._hears_itself:
                self._common.fence_passed(self._proof.fence_number)

    def crossed(self, topic: bytes) -> None:
        self._retained.crossed(topic)

    def _settle_if_known(self) -> None:
        """The foreign broker's retained messages are known, and its session has our subscriptions."""
        if self.state == State.SETTLING and self._retained.is_read and self._proof.is_shown:
            self._world.later(0.0, self._settled)

    # -- fences --

    def _fence(self) -> None:
        line, joint, abilities = self._line, self._joint, self.abilities
        if line is None or joint is None or abilities is None or not line.is_open:
            return
        is_awaited = self._hears_itself or self.state == State.SETTLING
        if self.state == State.SETTLING:
            # Of a broker that is slow its session is not to be taken.
            is_awaited = is_awaited and self._world.now - self._proof.settling_since > self._settings.answer_s
        if self.fences.missing >= fences.MISSING_MAX and is_awaited and not self._has_heard_messages():
            self._give_up_on(line)
            return
        if len(self._echoes):
            loose = self.fences.loose(self._echoes.serial)
            line.write(encode.encode_publish(self.fences.topic, loose, abilities.version))
        qos = 1 if abilities.receive_maximum > 1 else 0
        self._proof.fence_id, self._proof.is_fence_taken = line.free_packet_id(), False
        line.write(self._next_fence(abilities, qos, self._proof.fence_id))
        self._proof.fence_number = self.fences.number
        if not self._hears_itself:
            self._fence_passed()
            if self.state != State.SETTLING:
                self.fences.forget()
        if self._side is not None:
            self._side.feed(encode.PINGREQ_BYTES)
        self._retained.send_delayed()
        self._serving.fence_sent()
        self._timers.after("fence", self._settings.fence_s, self._fence)

    def _fence_soon(self) -> None:
        """Clients wait to hear what became of their publications."""
        if self.state == State.ATTACHED and self._hears_itself and not self._relayed.is_fence_due:
            self._relayed.is_fence_due = True
            self._timers.after("witness", WITNESS_FENCE_S, self._fence_for_witness)

    def _fence_for_witness(self) -> None:
        self._relayed.is_fence_due = False
        is_needed = self._proxy is not None and self._proxy.witness.needs_fence
        if is_needed and self.state == State.ATTACHED and not self.fences.missing:
            self._fence()

    def _next_fence(self, abilities: Abilities, qos: int, packet_id: int) -> bytes:
        payload = self.fences.next(self._world.now, self._echoes.serial)
        self._common.fence_sent(self.fences.number, self._joint.outstanding.values() if self._joint is not None else ())
        self.counters.fences_sent += 1
        if self._proxy is not None:
            if not self._hears_itself:
                self._proxy.witness.fence_back(self._relayed.last_fence)
            self._relayed.last_fence = payload
            self._proxy.witness.fence_sent(payload)
        return encode.encode_publish(self.fences.topic, payload, abilities.version, qos=qos, packet_id=packet_id)

    def _has_heard_messages(self) -> bool:
        """Since this was asked last: a fence comes after everything that waited there."""
        before, self._proof.messages_seen = (
            self._proof.messages_seen,
            self.counters.taken + self.counters.held_back.total(),
        )
        return before != self._proof.messages_seen

    def _give_up_on(self, line: SessionLine) -> None:
        missing = f"{self.fences.missing} fences did not come back from {self.fences.topic.decode()}"
        is_waiting = self._joint is not None and bool(self._joint.incoming)
        if (
            self.state == State.SETTLING
            and self._retained.is_read
            and self._proof.is_fence_taken
            and not is_waiting
            and not self._is_new
        ):
            # It takes fences and does not send them; its answer to an earlier CONNECT, which said so, did not reach us.
            self._proof.is_doubtful = True
            line.fail(f"the broker has lost its session and did not say so: {missing}")
        else:
            line.fail(f"connected but dead: {missing}")

    @property
    def _hears_itself(self) -> bool:
        """A bridge does not hear its own fences; a client of MQTT 5 does, for their filter is not No Local."""
        abilities = self.abilities
        return abilities is not None and (abilities.version == MQTT_5 or abilities.echoes)

    def fence(self, topic: bytes, payload: bytes) -> None:
        fence = fences.decode(topic, payload)
        if fence is None:
            return
        now = self._world.now
        if self.fences.is_mine(fence):
            serial = self.fences.came_back(fence, now)
            if serial is not None:
                self.counters.fences_back += 1
                if self._proxy is not None:
                    self._proxy.witness.fence_back(payload)
                if self._hears_itself:  # others hear those of the reader, whose connection is another one
                    self._common.fence_passed(fence.number)
                self._retained.send_unheard(fence.number)
                self._bound_echoes(serial, is_loose=False)
                if self.state == State.SETTLING:
                    self._proof.is_shown = True
                    self._settle_if_known()
                self._fence_passed()
        elif (serial := self.fences.loose_serial(fence)) is not None:
            self._bound_echoes(serial, is_loose=True)
        elif self.fences.heard_other(fence, now):
            self.counters.fences_of_others += 1
            self._world.later(0.0, lambda: self._met(fence.node))

    def _bound_echoes(self, serial: int, *, is_loose: bool) -> None:
        """Echoes of messages before this one do not come any more."""
        missing, packet_ids = self._echoes.fence_came_back(serial, is_loose=is_loose)
        if missing:
            self._name_without_echo(missing)
        if self._joint is not None:
            self._joint.release(packet_ids)

    def _name_without_echo(self, missing: dict[bytes, int]) -> None:
        self.counters.not_injected["no-echo"] += sum(missing.values())
        topics = [topic.decode(errors="replace") for topic in islice(missing, NAMED_MAX)]
        reason = "the broker acknowledged them and sent them to nobody: may the account write there?"
        fields = {"broker": self.broker, "count": sum(missing.values()), "topics": topics, "reason": reason}
        self._world.report("publications without echo", fields)

    def _fence_passed(self) -> None:
        self._fences_in_a_row += 1
        if self._fences_in_a_row >= STEADY_FENCES:
            self._pause_s = self._settings.pause_s

    def fence_from_own(self, topic: bytes, payload: bytes) -> None:
        fence = fences.decode(topic, payload)
        if fence is not None and self.fences.is_mine(fence):
            reason = "this broker is a node of our own network: link to it in [network], or name another broker"
            self._world.later(0.0, lambda: self._failed(reason))

    def _met(self, other: str) -> None:
        """Another node of this network reaches the same broker, or one that is bridged to it."""
        if self.state not in (State.SETTLING, State.ATTACHED):
            return
        if self._stand_by.is_first(other):
            return
        self._enter(Event.OTHER_FENCE)
        self.trouble = f"stands by for node {other}"
        self._let_go(encode.DISCONNECT_BYTES)
        # The other node carries the messages from here on: what waits here would come twice.
        self._own.end_session()
        self._serving.nobody_waits()
        if self._proxy is not None:
            self._proxy.standing_by()
        abilities = self.abilities
        assert abilities is not None
        self._stand_by.begin(abilities, relays=self._proxy is not None)

    def _left_alone(self) -> None:
        self._enter(Event.ALONE)
        self._timers.after("dial", 0.0, self._dial)

    # -- messages of the network --

    def _settled(self) -> None:
        """The foreign broker's retained messages are here: now ours go there."""
        side, abilities = self._side, self.abilities
        if self.state != State.SETTLING or side is None or abilities is None:
            return
        self._enter(Event.SETTLED)
        self.trouble = ""
        self._retained.merge()
        side.settled()
        self._retained.send(own_sends=self._serving.begin(side, abilities.qos) and abilities.version != MQTT_5)
        if self._proxy is not None:
            self._proxy.attached()
            self._relayed.clients_by = self._world.now + self._settings.answer_s
            self._let_out()
        self._world.report(
            "attached", {"broker": self.broker, "session_present": not self._is_new, **abilities.shown()}
        )

    def _let_out(self) -> None:
        """Clients that the broker has forgotten must be subscribed there again, before messages for them go there."""
        joint = self._joint
        if joint is None or self._proxy is None or not joint.is_held_out:
            return
        if self._proxy.are_clients_back or self._world.now >= self._relayed.clients_by:
            joint.let_out()
        else:
            self._timers.after("clients", CLIENTS_LOOK_S, self._let_out)

    # -- what the joint hands on --

    def to_broker(self, data: bytes) -> None:
        """HOT."""
        if self._line is not None:
            self._line.write(data)

    def to_own(self, data: bytes) -> None:
        """HOT."""
        if self._side is not None:
            self._side.feed(data)

    def answer_own(self, data: bytes) -> None:
        if self._side is not None:
            self._side.answer(data)

    def is_writable(self, *, now: bool) -> None:
        if self._side is not None:
            self._side.congested(now=not now)

    def storm(self, topic: bytes, seconds: float) -> None:
        name = topic.decode(errors="replace")
        reason = (
            f"the same message went to the broker and came back more than {self._settings.storm_repeats} times in 10 s:"
            f" something bridges it back; messages on it are not taken from this broker for {seconds:g} s"
        )
        self._world.report("storm", {"broker": self.broker, "topic": name, "reason": reason})

    def refused(self, topic: bytes, code: int) -> None:
        name = topic.decode(errors="replace")
        reason = f"the broker does not take it (0x{code:02x})"
        self._world.report("publication refused", {"broker": self.broker, "topic": name, "reason": reason})

    def set_aside(self, topic: bytes) -> None:
        name = topic.decode(errors="replace")
        reason = "the broker hung up on it three times in a row: it does not get this message"
        self._world.report("message set aside", {"broker": self.broker, "topic": name, "reason": reason})

    # -- the end of a connection --

    def own_ended(self, reason: str) -> None:
        self._world.later(0.0, lambda: self._failed(reason))

    def _failed(self, reason: str) -> None:
        if self.state in (State.WAITING, State.STOPPED):
            return
        self._poison.hung_up()
        self.counters.failures += 1
        self._let_go(b"")
        self._enter(Event.LOST)
        pause_s = self._pause_s * (0.75 + self._rng.random() / 2)
        self._pause_s = min(2 * self._pause_s, self._settings.pause_max_s)
        self._world.report("not attached", {"broker": self.broker, "reason": reason, "next_try_s": round(pause_s, 2)})
        self.trouble = reason
        self._timers.after("dial", pause_s, self._dial)

    def _let_go(self, farewell: bytes) -> None:
        """End every connection, on both sides."""
        if self._side is not None:
            self._attached_until = self._world.now
        self._timers.cancel("fence", "witness", "clients")
        self._relayed.is_fence_due = False
        if self._proxy is not None:
            self._proxy.lost()
        self._fences_in_a_row = 0
        self._proof.is_shown = self._proof.is_fence_taken = False
        self.fences.forget()
        if self._ladder is not None:
            self._ladder.close()
            self._ladder = None
        line, self._line = self._line, None
        side, self._side = self._side, None
        joint, self._joint = self._joint, None
        self._serving.end()
        if side is not None and joint is not None:
            self._side = side
            joint.release_all()
            self._side = None
        self._stand_by.end(farewell)
        if line is not None:
            line.close(farewell)
        self._retained.end(farewell)
        if side is not None:
            side.end()


def _renamed(caller: Caller, client_id: bytes, topic: bytes) -> Caller:
    return Caller(client_id, topic, caller.username, caller.password, caller.keep_alive_s, caller.answer_s)
