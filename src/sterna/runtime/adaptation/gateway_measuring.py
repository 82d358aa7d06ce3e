"""A gateway that measures: it finds its coordinate, reports it, and learns which nodes are near.

Nodes move its clients when a coordinator orders that; the gateway itself moves nobody.  It uses the order of nodes for
clients that come, and when a node is lost, so that without a coordinator too they go to a near one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sterna.adaptation.measuring import MeasuringTuning
from sterna.adaptation.topics import FROM_GATEWAYS, TO_GATEWAYS, control_topic
from sterna.adaptation.words import Found, Leaving, Mailroom, Measure, Word
from sterna.overlay.coordinates import Coordinate
from sterna.overlay.vivaldi_settings import VivaldiSettings
from sterna.runtime.adaptation.control_line import GATEWAY_KEEP_ALIVE_S, ControlLine
from sterna.runtime.adaptation.measuring_client import MeasuringClient
from sterna.runtime.adaptation.tables import AdaptationTable, account


class GatewayMeasuring:
    def __init__(
        self,
        name: str,
        table: AdaptationTable,
        measuring: MeasuringTuning,
        vivaldi: VivaldiSettings,
        remember: Path | None,
        prefer: Callable[[tuple[str, ...]], None],
    ) -> None:
        """`prefer` is told where nodes take clients, the nearest first."""
        self._name = name
        self._network = table.network
        self._prefer = prefer
        boot = int(time.time() * 1000)
        self.mail = Mailroom(table.network, table.region, name, boot)
        self.line = ControlLine(
            account(table, f"gateway-{name}"),
            [control_topic(table.network, TO_GATEWAYS, name)],
            self._came,
            boot,
            GATEWAY_KEEP_ALIVE_S,
        )
        self.client = MeasuringClient(
            name, measuring, vivaldi, self._say, remember=remember, learned=lambda: prefer(self.client.measuring.nodes)
        )

    async def start(self) -> None:
        await self.client.start()
        self.line.start()

    async def stop(self) -> None:
        self._say(Leaving(), self.client.coordinate)
        self.client.stop()
        await self.line.stop()

    def hurry(self) -> None:
        """A node was lost: the gateway may be somewhere else by now."""
        self.client.measuring.hurry(time.monotonic())
        self.line.doubt()

    def view(self) -> dict[str, Any]:
        place, measuring = self.client.coordinate, self.client.measuring
        return {
            "coordinate": {"vector": place.vector, "height": place.height, "error": place.error},
            "phase": measuring.phase.value,
            "cycles": measuring.cycles,
            "interval_s": round(measuring.interval_s, 1),
            "measured_ms": {name: round(1000 * trip, 3) for name, trip in measuring.measured.items()},
            "nodes": list(measuring.nodes),
            "control_line": {"node": self.line.node, "trouble": self.line.trouble},
            "bytes": {"echoes": self.client.echo_bytes, "words": self.line.sent_bytes + self.line.received_bytes},
            "refused": {
                "words": {str(reason): number for reason, number in self.mail.refusals.items()},
                "pongs": {str(reason): number for reason, number in self.client.asker.refusals.items()},
                "samples": {str(reason): number for reason, number in self.client.vivaldi.refusals.items()},
                "left_out": dict(measuring.left_out),
            },
        }

    def _say(self, word: Word, place: Coordinate) -> None:
        self.line.say(control_topic(self._network, FROM_GATEWAYS, self._name), self.mail.write(word, place))

    def _came(self, topic: bytes, data: bytes) -> None:
        letter = self.mail.read(topic, data)
        if letter is None:
            return
        if isinstance(letter.word, Found):
            self.client.found(letter.word)
        elif isinstance(letter.word, Measure):
            self.client.asked(letter.word)
