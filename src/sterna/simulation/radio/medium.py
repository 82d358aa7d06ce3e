"""The air: stations that listen before they send, frames that interfere, and acknowledgements of each hop.

Medium access is Castalia's CSMA: a station that hears others waits a random time, longer each time, and listens again
(non-persistent); it sends one frame at a time.  A frame arrives if its signal is strong enough, its receiver sends
nothing meanwhile, and none of its bits is wrong, at the SINR of each stretch of constant interference.

With `HopAcks`, which Castalia's MAC has not, the receiver of a unicast frame acknowledges it at once, as IEEE 802.15.4
does; the sender tries again a few times and tells the protocol that it has not arrived.  Acknowledgements are sent over
the same air and are counted.  A frame that arrives twice is handed on once.

A rate above the CC2420's 250 kbit/s shortens frames, as a radio of another kind would; it changes nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import log10
from typing import Any, Protocol

from sterna.simulation.kernel import Kernel
from sterna.simulation.radio.propagation import (
    BITS_PER_S,
    NOISE_DBM,
    NOISE_MW,
    SENSITIVITY_DBM,
    Propagation,
    survival,
)

HEADER_BYTES = 15
"""Of the physical layer (6) and of medium access (9)."""
SENSE_S = 0.000_128
BACK_OFF_S = 0.016
BUSY_MW = 10 ** (-95 / 10)
QUEUE_FRAMES_MAX = 32
_HOPELESS = 1e-6


@dataclass(frozen=True, slots=True)
class HopAcks:
    """Constants of IEEE 802.15.4 at 2.4 GHz."""

    retries: int = 3
    ack_bytes: int = 11
    turn_round_s: float = 0.000_192
    wait_s: float = 0.000_864


class RadioMessage(Protocol):
    @property
    def size(self) -> int:
        """Bytes without those of the radio."""


class RadioListener(Protocol):
    """The protocol of a station."""

    def heard(self, message: Any, sender: str) -> object:
        """A frame for this station, or for all."""

    def undelivered(self, message: Any, to: str) -> object:
        """A neighbour has not acknowledged it, or there was no room for it."""


class RadioFrame:
    """A message on its way to a neighbour, or to all (`to` is None)."""

    __slots__ = ("arrived", "bits", "message", "to", "tries")

    def __init__(self, message: RadioMessage, to: Station | None) -> None:
        self.message = message
        self.to = to
        self.bits = 8 * (HEADER_BYTES + message.size)
        self.tries = 0
        self.arrived = False


class Station:
    """One radio."""

    __slots__ = (
        "acks",
        "busy",
        "cell",
        "delivered",
        "frames",
        "full",
        "is_sending",
        "listener",
        "name",
        "queue",
        "sent_bytes",
        "works",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.cell = 0
        self.listener: RadioListener | None = None
        self.delivered: Callable[[Any, str], object] | None = None
        """Told of what a neighbour has acknowledged, if somebody asks."""
        self.queue: deque[RadioFrame] = deque()
        self.works = False
        """Whether the first frame of the queue is under way."""
        self.is_sending = False
        self.busy = 0
        """How often in a row others were heard."""
        self.frames: dict[str, int] = {}
        """Sent, by kind, repetitions included."""
        self.acks = 0
        self.sent_bytes = 0
        self.full = 0
        """Frames for which the queue had no room."""


class Transmission:
    """A signal in the air."""

    __slots__ = ("bits", "dbm", "end", "frame", "mw", "overlaps", "sender", "start")

    def __init__(
        self, sender: Station, frame: RadioFrame, bits: int, start: float, rate: float, propagation: Propagation
    ) -> None:
        self.sender = sender
        self.frame = frame
        self.bits = bits
        self.start = start
        self.end = start + bits / rate
        self.dbm = propagation.dbm_from(sender.cell)
        self.mw = propagation.mw_from(sender.cell)
        self.overlaps: list[Transmission] = []


class Medium:
    def __init__(
        self, kernel: Kernel, propagation: Propagation, acks: HopAcks | None, bits_per_s: float = BITS_PER_S
    ) -> None:
        self.stations: dict[str, Station] = {}
        self._kernel = kernel
        self._propagation = propagation
        self._acks = acks
        self._rate = bits_per_s
        self._in_air: list[Transmission] = []
        self._back_off = kernel.dice("back-off").random
        self._luck = kernel.dice("reception").random

    def add(self, name: str) -> Station:
        station = self.stations[name] = Station(name)
        return station

    def send(self, sender: Station, message: RadioMessage, to: str | None) -> None:
        """HOT: to a neighbour, or to everybody in reach (None)."""
        frame = RadioFrame(message, None if to is None else self.stations[to])
        if len(sender.queue) >= QUEUE_FRAMES_MAX:
            sender.full += 1
            if to is not None:
                self._kernel.after(0.0, self._give_up, sender, frame)
            return
        sender.queue.append(frame)
        if not sender.works:
            sender.works = True
            self._kernel.after(SENSE_S, self._sense, sender)

    def is_busy(self, station: Station) -> bool:
        """HOT: whether this station hears others, or sends itself."""
        cell = station.cell
        heard = 0.0
        for one in self._in_air:
            if one.sender is station:
                return True
            heard += one.mw[cell]
        return heard >= BUSY_MW

    def _sense(self, station: Station) -> None:
        if self._in_air and self.is_busy(station):
            station.busy += 1
            self._kernel.after(SENSE_S + self._back_off() * BACK_OFF_S * station.busy, self._sense, station)
            return
        station.busy = 0
        frame = station.queue[0]
        frame.tries += 1
        kind = type(frame.message).__name__
        station.frames[kind] = station.frames.get(kind, 0) + 1
        signal = self._emit(station, frame, frame.bits)
        self._kernel.at(signal.end, self._sent, signal)

    def _emit(self, sender: Station, frame: RadioFrame, bits: int) -> Transmission:
        signal = Transmission(sender, frame, bits, self._kernel.now, self._rate, self._propagation)
        for other in self._in_air:
            other.overlaps.append(signal)
            signal.overlaps.append(other)
        self._in_air.append(signal)
        sender.is_sending = True
        sender.sent_bytes += bits // 8
        return signal

    def _sent(self, signal: Transmission) -> None:
        self._in_air.remove(signal)
        sender, frame = signal.sender, signal.frame
        sender.is_sending = False
        if frame.to is None:
            for station in self.stations.values():
                if station is not sender and self._arrives(signal, station):
                    assert station.listener is not None
                    station.listener.heard(frame.message, sender.name)
            self._next(sender)
        elif not self._arrives(signal, frame.to):
            self._missed(sender)
        else:
            self._hand_over(sender, frame, frame.to)

    def _hand_over(self, sender: Station, frame: RadioFrame, to: Station) -> None:
        if self._acks is None:
            self._next(sender)
        else:
            self._kernel.after(self._acks.turn_round_s, self._acknowledge, sender, frame, to)
        if not frame.arrived:
            frame.arrived = True
            assert to.listener is not None
            to.listener.heard(frame.message, sender.name)

    def _acknowledge(self, sender: Station, frame: RadioFrame, to: Station) -> None:
        assert self._acks is not None
        if to.is_sending:
            self._missed(sender)
            return
        to.acks += 1
        signal = self._emit(to, frame, 8 * self._acks.ack_bytes)
        self._kernel.at(signal.end, self._acknowledged, signal, sender)

    def _acknowledged(self, signal: Transmission, sender: Station) -> None:
        self._in_air.remove(signal)
        signal.sender.is_sending = False
        if not self._arrives(signal, sender):
            self._try_again(sender)
            return
        self._next(sender)
        if sender.delivered is not None:
            sender.delivered(signal.frame.message, signal.sender.name)

    def _missed(self, sender: Station) -> None:
        if self._acks is None:
            self._next(sender)
        else:
            self._kernel.after(self._acks.wait_s, self._try_again, sender)

    def _try_again(self, sender: Station) -> None:
        assert self._acks is not None
        frame = sender.queue[0]
        if frame.tries <= self._acks.retries:
            self._kernel.after(SENSE_S + self._back_off() * BACK_OFF_S, self._sense, sender)
        else:
            self._next(sender)
            self._give_up(sender, frame)

    def _give_up(self, sender: Station, frame: RadioFrame) -> None:
        assert sender.listener is not None
        assert frame.to is not None
        sender.listener.undelivered(frame.message, frame.to.name)

    def _next(self, sender: Station) -> None:
        sender.queue.popleft()
        if sender.queue:
            self._kernel.after(SENSE_S, self._sense, sender)
        else:
            sender.works = False

    def _arrives(self, signal: Transmission, station: Station) -> bool:
        """HOT: whether the station can read it."""
        strength = signal.dbm[station.cell]
        if strength < SENSITIVITY_DBM:
            return False
        if not signal.overlaps:
            probability = survival(strength - NOISE_DBM, signal.bits)
        else:
            probability = self._among_others(signal, station, strength)
        return probability >= 1.0 or self._luck() < probability

    def _among_others(self, signal: Transmission, station: Station, strength: float) -> float:
        """The probability that it is read though others send, stretch by stretch."""
        others = []
        cell = station.cell
        for other in signal.overlaps:
            if other.sender is station:
                return 0.0
            if other.mw[cell] > 0.0:
                others.append((max(other.start, signal.start), min(other.end, signal.end), other.mw[cell]))
        edges = sorted({signal.start, signal.end, *(one[0] for one in others), *(one[1] for one in others)})
        probability = 1.0
        for begin, end in pairwise(edges):
            noise = NOISE_MW + sum(mw for start, stop, mw in others if start <= begin and stop >= end)
            probability *= survival(strength - 10 * log10(noise), (end - begin) * self._rate)
            if probability < _HOPELESS:
                return 0.0
        return probability
