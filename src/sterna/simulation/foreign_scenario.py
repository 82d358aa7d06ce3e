"""A foreign broker in a scenario of random faults: the node beside it, its own clients, and what must be true of it.

Its kind is one that was measured, with some of its peculiarities turned round.  Its clients are calls: one publishes,
one hears everything.  The records have both of them like any other client, so that every promise about messages is
checked across brokers, too.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

from sterna.interworking.fences import FILTER, MISSING_MAX, ROOT, topic_of
from sterna.interworking.settings import InterworkingSettings
from sterna.interworking.states import State
from sterna.mqtt.packets import BRIDGE, MQTT_3_1_1
from sterna.mqtt.topics import levels_of, matches
from sterna.simulation.attachments import Foreign, Taken
from sterna.simulation.foreign_broker import KINDS, ForeignBroker, ModelMessage, Quirks
from sterna.simulation.machine import SimulatedMachine
from sterna.simulation.membership import NETWORK
from sterna.simulation.population import TOPICS
from sterna.simulation.records import Publication, ReceivedDelivery, Span, Violation, identity_of
from sterna.simulation.world import SimulatedWorld

SETTINGS = InterworkingSettings(fence_s=1.0, retained_s=2.0, pause_s=0.2, pause_max_s=1.0, answer_s=3.0)
ROUNDS_S = 3 * SETTINGS.retained_s
"""Retained values of one broker are in the network after one reading, and at the others after another."""
PUBLISH_PAUSE_S = 0.6
AS_MESSAGE_MAX = 2
"""A message to be retained comes to a broker without the flag at most so often: as a message, and as an old value."""
FORGETFUL = 0.25
"""Share of the brokers whose sessions end with their process."""
TURNED = 0.1
"""How likely one of a broker's peculiarities is turned round."""
FEW = 5
"""Messages that wait for a client of a broker that keeps few."""


class ForeignScenario:
    def __init__(self, scene: SimulatedWorld, machine: SimulatedMachine, number: int) -> None:
        self._scene = scene
        self._records = scene.records
        self.machine = machine
        name = f"broker{number}"
        self._dice = dice = scene.kernel.dice(name)
        self.broker = ForeignBroker(scene.kernel, scene.network, name, any_quirks(dice))
        self.foreign = Foreign(self.broker, SETTINGS, NETWORK)
        machine.foreign = self.foreign
        scene.foreign_brokers.append(self.broker)
        self._publisher, self.subscriber = f"{name}p", f"{name}s"
        self._retained = b"r/" + self._publisher.encode()
        self._number = 0
        #: How often the broker passed a message on, in which of its lives, and whether as one to be retained.
        self._had: Counter[tuple[str, int, bool]] = Counter()
        #: Messages that were to be retained, by topic and life of the broker.
        self._values: dict[tuple[bytes, int], list[Publication]] = {}
        self._is_subscribed = False
        self._echoes_repeated: Counter[str] = Counter()
        self.broker.on_heard, self.broker.on_lost, self.broker.on_repeated = self._heard, self._lost, self._repeated
        self.broker.on_unseen = self._unseen
        self._records.forgetting[name] = self.broker.forgotten_at
        scene.kernel.tell(f"{name} beside {machine.name} is {self.broker.quirks}")

    def start(self, until: float) -> None:
        self.broker.boot()
        self._scene.kernel.after(self._dice.random(), self._publish, until)

    # -- its clients --

    def _publish(self, until: float) -> None:
        kernel, dice = self._scene.kernel, self._dice
        if kernel.now >= until:
            return
        if self.broker.up:
            for _ in range(dice.choice((1, 1, 4))):
                is_kept = dice.random() < 0.1
                topic = self._retained if is_kept else dice.choice(TOPICS)
                self._publish_one(topic, 2 if is_kept else dice.choice((0, 1, 1, 2, 2)), retain=is_kept)
        kernel.after(dice.expovariate(1 / PUBLISH_PAUSE_S), self._publish, until)

    def _publish_one(self, topic: bytes, qos: int, *, retain: bool) -> None:
        """The broker says that it has it.  It is owed to the network if our session there wants it."""
        self._number += 1
        qos = min(qos, self.broker.quirks.qos)
        now = self._scene.kernel.now
        is_shown = retain and _shows_retained(self.broker.quirks)
        found = Publication(
            f"{self._publisher}/{self._number}", self._publisher, NETWORK, self._number, topic, qos, is_shown
        )
        found.sent_at, found.sends, found.nodes = now, 1, {self.machine.name}
        found.acknowledged_at = now if self._is_wanted(topic) else None
        self._records.publications[found.identity] = found
        self._scene.kernel.tell(f"{self.broker.name} takes {found.identity} at QoS {qos} on {topic.decode()}")
        self.broker.publish(topic, found.identity.encode(), qos, retain=retain)

    def _is_wanted(self, topic: bytes) -> bool:
        levels = levels_of(topic)
        return any(
            session.lasting and any(matches(levels_of(one), levels) for one in session.filters)
            for session in self.broker.sessions.values()
        )

    def _heard(self, message: ModelMessage) -> None:
        kernel, subscribed_at = self._scene.kernel, self.foreign.evidence.subscribed_at
        if subscribed_at is not None and not self._is_subscribed:
            self._is_subscribed = True
            self._records.spans.append(Span(self.subscriber, NETWORK, b"#", self.broker.quirks.qos, subscribed_at))
        identity = identity_of(message.payload)
        kernel.tell(f"{self.broker.name} passes on {identity} at QoS {message.qos}")
        found = self._records.publications.get(identity)
        is_value = message.retain or (found is not None and found.retain)
        if message.retain:
            # A value that the broker lacks may overtake messages that are still on their way through the network.
            self._records.handed_over.setdefault(self.subscriber, set()).add(identity)
            self._look_at_value(message.topic, identity)
        is_copy = is_value and self._is_copy(identity, is_retained=message.retain)
        arrival = ReceivedDelivery(kernel.now, message.topic, identity, message.qos, is_copy, self.broker.name)
        self._records.arrived(self.subscriber, arrival)

    def _look_at_value(self, topic: bytes, identity: str) -> None:
        life, found = len(self.broker.forgotten_at), self._records.publications.get(identity)
        if found is not None and not self._is_own(identity):
            self._values.setdefault((topic, life), []).append(found)

    def _is_copy(self, identity: str, *, is_retained: bool) -> bool:
        """To have a value retained there is to publish it, also if it came before as a message that was not.  The
        message itself comes besides; each of the two comes without the flag only if there is a newer value by then."""
        life = len(self.broker.forgotten_at)
        as_value, as_message = (identity, life, True), (identity, life, False)
        had = self._had[as_value] + self._had[as_message]
        self._had[as_value if is_retained else as_message] += 1
        if not had or is_retained:
            return had > 0
        return self._had[as_message] <= AS_MESSAGE_MAX and self._is_outdated(identity)

    def _is_outdated(self, identity: str) -> bool:
        """Has its publisher sent a newer value?  If it went back to an old session, clocks say which one is newer."""
        found = self._records.publications[identity]
        went_back = any(found.publisher in machine.went_back for machine in self._scene.machines)
        others = (one for one in self._records.publications.values() if one.topic == found.topic and one.retain)
        return any(one.number > found.number or (went_back and one is not found) for one in others if one.sent_at)

    def _lost(self, message: ModelMessage) -> None:
        """The broker itself has lost it, on its way to us."""
        found = self._records.publications.get(identity_of(message.payload))
        if found is not None and found.publisher == self._publisher:
            self._scene.kernel.tell(f"{self.broker.name} has lost {found.identity}")
            found.acknowledged_at = None

    def _unseen(self, message: ModelMessage) -> None:
        """The broker has lost the value itself; nobody else could know that the message was to be retained."""
        found = self._records.publications.get(identity_of(message.payload))
        if found is not None and found.publisher == self._publisher:
            self._scene.kernel.tell(f"{self.broker.name} has lost the retained value {found.identity}")
            found.retain = False

    def _repeated(self, message: ModelMessage) -> None:
        """At QoS 1 nobody can tell a message of its own clients from another one."""
        if message.qos == 1:
            identity = identity_of(message.payload)
            (self._records.repeated if self._is_own(identity) else self._echoes_repeated)[identity] += 1

    def _is_own(self, identity: str) -> bool:
        return identity.startswith(f"{self._publisher}/")

    @property
    def _taken_echoes(self) -> list[Taken]:
        """Messages of the network that the node took from the broker."""
        return [taken for taken in self.foreign.evidence.taken if not self._is_own(taken.identity)]

    def _is_forgotten_echo(self, taken: Taken) -> bool:
        """An echo at QoS 1 comes in as a message of the broker if the node has crashed since it sent the message, and
        does not know that it did, or that the echo had come: the broker sends it again."""
        identity = taken.identity
        found, will = self._records.publications.get(identity), self._records.wills.get(identity)
        began = found.sent_at if found is not None else will.welcomed_at if will is not None else None
        has_crashed = began is not None and any(began <= crash <= taken.at for crash in self.machine.crashes)
        is_unexpected = not taken.is_known or bool(self._echoes_repeated[identity])
        return taken.qos == 1 and has_crashed and is_unexpected

    # -- when it is quiet --

    @property
    def is_quiet(self) -> bool:
        """Joined, and nothing waits on either side."""
        running = self.machine.running
        if running is None or running.attached is None or not self.broker.up:
            return False
        attachment = running.attached.attachment
        session = running.broker.sessions.get(f"$interwork/{self.machine.name}".encode())
        if attachment.state != State.ATTACHED or session is None or session.inflight or session.queue:
            return False
        under_way = [one for held in self.broker.sessions.values() for one in (*held.inflight.values(), *held.waiting)]
        # Fences come and go for ever.
        fences = [one for one in under_way if one is not None and one.topic.startswith(ROOT)]
        is_busy = len(fences) < len(under_way) or len(fences) > MISSING_MAX
        return not is_busy and not attachment.view()["expected_echoes"]

    def note(self) -> None:
        """For the checkers: what may have been lost although it was acknowledged, as it was counted; and what came in
        once more."""
        self._records.echoed.update(taken.identity for taken in self._taken_echoes if self._is_forgotten_echo(taken))
        if self.broker.forgotten_at:
            doubted = self.foreign.evidence.doubted
            self._records.in_flight.setdefault(self.subscriber, set()).update(doubted)

    def check(self) -> list[Violation]:
        return [*self._no_loops(), *self._tables(), *self._counted(), *self.values_set_back()]

    def values_set_back(self) -> list[Violation]:
        """A message that comes late, or again, does not take the place of a newer one for good.  Between those of a
        publisher that went back to its old session, clocks decide."""
        life, found = len(self.broker.forgotten_at), []
        for (topic, of_life), values in self._values.items():
            newest, last = max(values, key=lambda one: one.number), values[-1]
            if of_life == life and last is not newest and last.publisher not in self._records.went_back:
                detail = f"{last.identity} is retained at {self.broker.name}, not {newest.identity} ({topic.decode()})"
                found.append(Violation("set back", detail, (last.identity, newest.identity)))
        return found

    def _no_loops(self) -> list[Violation]:
        """A message of its own clients never comes back, and one of the network never comes in from here."""
        name, found = self.broker.name, []
        # A retained value may be set there again, when it was lost or both sides had changed it.
        heard = [identity_of(one.payload) for one in self.broker.heard if not one.retain]
        own = [identity for identity in heard if self._is_own(identity)]
        found += [
            Violation("crossed twice", f"{identity} came back to {name}", (identity, name))
            for identity in sorted({one for one in own if own.count(one) > 1 + self._records.echoed[one]})
        ]
        echoes = {taken.identity for taken in self._taken_echoes if not self._is_forgotten_echo(taken)}
        found += [Violation("echo", f"{identity} came in from {name}", (identity, name)) for identity in sorted(echoes)]
        return found

    def _tables(self) -> list[Violation]:
        """Both sessions have the subscriptions that the settings say, and nothing else is left at the broker."""
        running, name, found = self.machine.running, self.broker.name, []
        assert running is not None
        if not self.is_quiet:
            view = running.attached.attachment.view() if running.attached is not None else {}
            return [Violation("not attached", f"{self.machine.name} to {name}: {view}", (name, self.machine.name))]
        ours = set(running.broker.sessions[f"$interwork/{self.machine.name}".encode()].subscriptions)
        fences = topic_of(NETWORK, self.machine.name)
        if {one for one in ours if not one.startswith(fences)} != {b"#"}:
            found.append(Violation("tables", f"{self.machine.name} serves {name} with {ours}", (name,)))
        theirs = [set(session.filters) for session in self.broker.sessions.values() if session.lasting]
        if theirs != [{b"#", FILTER}]:
            found.append(Violation("tables", f"{name} has sessions with {theirs}", (name,)))
        if left := [topic for topic in self.broker.retained if topic.startswith(b"sterna/")]:
            found.append(Violation("tables", f"{name} retains {left}", (name,)))
        return found

    def _counted(self) -> list[Violation]:
        """Sessions that were lost are counted: once each, unless the broker or the node died in between."""
        counted, forgotten, crashes = (
            self.foreign.evidence.sessions_lost,
            self.broker.forgotten_at,
            self.machine.crashes,
        )
        if counted > len(forgotten) * (1 + len(crashes)) or (forgotten and not counted and not crashes):
            detail = f"{self.broker.name} forgot {len(forgotten)} sessions, {counted} were counted"
            return [Violation("counted", detail, (self.broker.name,))]
        return []

    def retained(self) -> list[ReceivedDelivery]:
        """As somebody finds it who subscribes now."""
        now = self._scene.kernel.now
        return [
            ReceivedDelivery(
                now, message.topic, identity_of(message.payload), message.qos, retain=True, node=self.broker.name
            )
            for message in self.broker.retained.values()
            if not message.topic.startswith(b"sterna/")
        ]


def any_quirks(dice: Random) -> Quirks:
    """Those of a broker that was measured, and some turned round.

    Brokers that deliver messages of QoS 0 at a higher one are left out: their echo may outlive a crash of the node that
    sent them, and nothing is promised at QoS 0 then.
    """
    measured = KINDS[dice.choice(sorted(KINDS))]
    turned: dict[str, Any] = {
        name: not getattr(measured, name)
        for name in ("hangs_up", "no_local", "keeps_user_properties", "retained_before_suback", "passes_on_at_pubrel")
        if dice.random() < TURNED
    }
    forgets = dice.random() < FORGETFUL
    queue_max = FEW if dice.random() < TURNED else 0
    return replace(measured, **turned, forgets=forgets, queue_max=queue_max, delivers_as_granted=False)


def _shows_retained(quirks: Quirks) -> bool:
    """Can a client find out that a message is retained, live or stored?"""
    has_flag = 5 in quirks.levels and (quirks.no_local or quirks.keeps_user_properties)
    return has_flag or BRIDGE | MQTT_3_1_1 in quirks.levels or quirks.retained_for_wildcards
