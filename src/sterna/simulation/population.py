"""The clients of a scenario and their habits: publishers, subscribers, movers, shares, a will.

Every decision is a throw of dice that belong to the client concerned.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from sterna.mqtt.packets import MQTT_3_1_1, MQTT_5
from sterna.simulation.clients import Client, Habits

TOPICS = [b"t/%d" % number for number in range(5)]
STORM = 40
STORMS = 0.02
"""Share of the times a publisher publishes in which it is so many messages at once."""
FILTERS = [b"t/#", b"t/+", b"+/2", *TOPICS]


class SimulatedPublisher:
    """Publishes now and then, at every QoS; what it retains goes to a topic of its own."""

    def __init__(self, client: Client, pause_s: float) -> None:
        self.client = client
        self._pause_s = pause_s
        self._dice = client.kernel.dice(f"publisher {client.name}")
        self._retained = b"r/" + client.name.encode()
        self._retained_qos = self._dice.choice((1, 2))

    def start(self, until: float) -> None:
        self.client.come()
        self.client.kernel.after(self._dice.uniform(0, 1), self._publish, until)

    def _publish(self, until: float) -> None:
        kernel = self.client.kernel
        if kernel.now >= until:
            return
        for _ in range(STORM if self._dice.random() < STORMS else self._dice.choice((1, 1, 1, 4))):
            if self._dice.random() < 0.1:
                self.client.publish(self._retained, self._retained_qos, retain=True)
            else:
                size = 3000 if self._dice.random() < 0.02 else self._dice.randrange(40)
                self.client.publish(self._dice.choice(TOPICS), self._dice.choice((0, 1, 1, 2, 2)), size=size)
        kernel.after(self._dice.expovariate(1 / self._pause_s), self._publish, until)


class Mover:
    """Subscribes and unsubscribes while messages fly, and comes and goes."""

    def __init__(self, client: Client, pause_s: float) -> None:
        self.client = client
        self._pause_s = pause_s
        self._dice = client.kernel.dice(f"mover {client.name}")

    def start(self, until: float) -> None:
        self.client.come()
        self.client.subscribe(self._dice.choice(FILTERS), self._dice.choice((0, 1, 2)))
        self.client.kernel.after(self._dice.expovariate(1 / self._pause_s), self._move, until)

    def _move(self, until: float) -> None:
        if self.client.kernel.now >= until:
            self.client.come()
            return
        what = self._dice.random()
        if what < 0.4 and not self.client.is_asking:
            self._change_subscriptions()
        elif what < 0.6:
            self.client.hang_up()
        elif what < 0.8:
            self.client.leave(politely=self._dice.random() < 0.5)
        else:
            self.client.come()
        self.client.kernel.after(self._dice.expovariate(1 / self._pause_s), self._move, until)

    def _change_subscriptions(self) -> None:
        held = self.client.filters
        if held and self._dice.random() < 0.5:
            self.client.unsubscribe(self._dice.choice(held))
            return
        free = [topic_filter for topic_filter in FILTERS if topic_filter not in held]
        if free:
            self.client.subscribe(self._dice.choice(free), self._dice.choice((0, 1, 2)))


class Roamer:
    """Subscribes once, and then turns up at one node after the other."""

    def __init__(self, client: Client, addresses: list[str], pause_s: float, is_known: Callable[[str], bool]) -> None:
        """`is_known`: do all nodes know of this client's session?  Before that nobody can find it."""
        self.client = client
        self._addresses = addresses
        self._pause_s = pause_s
        self._is_known = is_known
        self._dice = client.kernel.dice(f"roamer {client.name}")
        self.moves = 0

    def start(self, until: float) -> None:
        self.client.come()
        self.client.subscribe(self._dice.choice((b"t/#", b"t/+", b"#")), self._dice.choice((1, 2, 2)))
        if self._dice.random() < 0.3:
            self.client.subscribe(b"r/#", 0)
        self.client.kernel.after(self._dice.expovariate(1 / self._pause_s), self._roam, until)

    def _roam(self, until: float) -> None:
        client, dice = self.client, self._dice
        if client.kernel.now >= until:
            client.come()
            return
        if self._is_known(client.name):
            self.moves += 1
            client.address = dice.choice(self._addresses)
            client.kernel.tell(f"{client.name} goes to {client.address}")
            how = dice.random()
            if how < 0.4:
                client.hang_up()
            elif how < 0.7:
                client.desert()
            else:
                client.leave(politely=dice.random() < 0.7)
        if dice.random() < 0.8:
            client.come()
        client.kernel.after(dice.expovariate(1 / self._pause_s), self._roam, until)


def habits(dice: Random, *, persistent: bool, will: tuple[bytes, int] | None = None) -> Habits:
    receive_maximum, acknowledge_s = dice.choice(((1, 0.0), (5, 0.01), (20, 0.0), (20, 0.15)))
    return Habits(
        version=dice.choice((MQTT_3_1_1, MQTT_5)),
        persistent=persistent,
        receive_maximum=receive_maximum,
        window=dice.choice((1, 10)),
        acknowledge_s=acknowledge_s,
        will=will,
    )


def shared_habits(dice: Random) -> Habits:
    """Shared subscriptions are MQTT 5's."""
    return Habits(version=MQTT_5, receive_maximum=dice.choice((1, 5)), acknowledge_s=dice.choice((0.0, 0.02)))
