"""A bridge of a mosquitto.conf as the `[interworking]` table of a node: the node joins the broker at its other end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sterna.interworking.filters import checked_filters, disjoint_filters
from sterna.overlay.neighbours import checked_address
from sterna.runtime.mosquitto.bridges import ADDRESSES, Bridge, BridgedTopic
from sterna.runtime.mosquitto.conf_lines import SECRETS, ConfLine, Untranslated
from sterna.vocabulary.errors import ConfigurationError

DEFAULT_PORT = "1883"
#: Lines that change nothing for a node, with the values for which that is so (none: for every value).
NEEDLESS: dict[str, tuple[str, ...]] = {
    "try_private": (),
    "bridge_protocol_version": (),
    "bridge_attempt_unsubscribe": (),
    "local_clientid": (),
    "local_username": (),
    "local_password": (),
    "local_cleansession": (),
    "cleansession": ("false",),
    "start_type": ("automatic",),
    "bridge_outgoing_retain": ("true",),
    "notifications": ("false",),
    "bridge_insecure": ("false",),
}
_NO_SETTING = "a node has no such setting for a broker that it joins", "remove the line"
IMPOSSIBLE: dict[str, tuple[str, str]] = {
    "cleansession": ("a node keeps its session at the broker, so that nothing is lost", "remove the line"),
    "start_type": ("a node joins the broker as long as it runs", "remove the line"),
    "bridge_outgoing_retain": ("a node keeps retain flags", "leave the topics out of to_broker in [interworking]"),
    "notifications": (
        "the broker is not told whether the node is there",
        "ask `sterna network`, or /interworking on the admin port",
    ),
    "bridge_capath": ("a node takes one file of authorities", "name a file as ca in [interworking]"),
    "bridge_psk": ("a node proves itself by certificate or password", "set certificate or user in [interworking]"),
    "bridge_identity": ("a node proves itself by certificate or password", "set certificate or user in [interworking]"),
}


class BridgeTable:
    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self.settings: dict[str, Any] = {}
        self.untranslated: list[Untranslated] = []
        self.password: ConfLine | None = None
        """The line with the password, which belongs into a file of its own."""
        self._from: list[str] = []
        self._to: list[str] = []
        self._address()
        for line, topic in bridge.topics:
            self._topic(line, topic)
        for line in bridge.lines.values():
            self._line(line)
        self.settings |= {"from_broker": self._from, "to_broker": self._to}

    @property
    def is_complete(self) -> bool:
        """There is a broker, and something to carry."""
        return "broker" in self.settings and bool(self._from or self._to)

    def _refuse(self, line: ConfLine, reason: str, remedy: str) -> None:
        self.untranslated.append(Untranslated(line, reason, remedy))

    def _address(self) -> None:
        bridge = self._bridge
        if not bridge.addresses:
            self._refuse(bridge.line, "the bridge has no address line", "write address HOST:PORT")
            return
        first, *others = bridge.addresses
        address = first if ":" in first else f"{first}:{DEFAULT_PORT}"
        try:
            checked_address(address)
        except ConfigurationError as error:
            self._refuse(bridge.line, str(error), "write address HOST:PORT")
        else:
            self.settings["broker"] = address
        if others:
            self._refuse(
                bridge.line, f"a node dials one address, not {' and '.join(others)} as well", "let a name stand for all"
            )

    def _topic(self, line: ConfLine, topic: BridgedTopic) -> None:
        if topic.local_prefix != topic.remote_prefix:
            self._refuse(line, "a node does not rename topics", "let both sides use the same names, without prefixes")
            return
        topic_filter = topic.local_prefix + topic.pattern
        if topic.direction in ("in", "both"):
            self._add(line, self._from, topic_filter, disjoint_filters)
        if topic.direction in ("out", "both"):
            self._add(line, self._to, topic_filter, checked_filters)
        if topic.qos < 2:
            self._refuse(
                line,
                f"a node carries messages at their own QoS, not at {topic.qos} at most",
                "let publishers or subscribers choose a lower one, if it has to be",
            )

    def _add(
        self, line: ConfLine, filters: list[str], topic_filter: str, check: Callable[[list[str]], list[bytes]]
    ) -> None:
        try:
            check([*filters, topic_filter])
        except ConfigurationError as error:
            self._refuse(line, str(error), "change it here, or in [interworking]")
        else:
            filters.append(topic_filter)

    def _line(self, line: ConfLine) -> None:
        key, value = line.key, line.value
        if key in SETTINGS:
            SETTINGS[key](self, line)
        elif key in SECRETS and not key.startswith(("local", "bridge")):
            self.password = line
        elif key not in NEEDLESS or (NEEDLESS[key] and value not in NEEDLESS[key]):
            self._refuse(line, *IMPOSSIBLE.get(key, _NO_SETTING))

    # -- lines with a counterpart --

    def _user(self, line: ConfLine) -> None:
        self.settings["user"] = line.value

    def _client_id(self, line: ConfLine) -> None:
        self.settings["client_id"] = line.value

    def _keep_alive(self, line: ConfLine) -> None:
        if line.value.isdecimal() and 1 <= int(line.value) <= 65535:
            self.settings["keep_alive_s"] = int(line.value)
        else:
            self._refuse(line, "it is no number of seconds from 1 to 65535", "set keep_alive_s in [interworking]")

    def _pauses(self, line: ConfLine) -> None:
        words = line.value.split()
        numbers = [int(word) for word in words if word.isdecimal() and 1 <= int(word) <= 3600]
        if len(numbers) != len(words) or len(words) not in (1, 2) or numbers != sorted(numbers):
            self._refuse(line, "it is no pause of 1 to 3600 seconds", "set pause_s and pause_max_s in [interworking]")
            return
        self.settings["pause_s"], self.settings["pause_max_s"] = numbers[0], numbers[-1]

    def _tls(self, line: ConfLine) -> None:
        keys = {"bridge_cafile": "ca", "bridge_certfile": "certificate", "bridge_keyfile": "key"}
        self.settings |= {"tls": True, keys[line.key]: line.value}

    def _insecure(self, line: ConfLine) -> None:
        self.settings["check_names"] = line.value != "true"


SETTINGS: dict[str, Callable[[BridgeTable, ConfLine], None]] = {
    "username": BridgeTable._user,
    "remote_username": BridgeTable._user,
    "clientid": BridgeTable._client_id,
    "remote_clientid": BridgeTable._client_id,
    "keepalive_interval": BridgeTable._keep_alive,
    "restart_timeout": BridgeTable._pauses,
    "bridge_cafile": BridgeTable._tls,
    "bridge_certfile": BridgeTable._tls,
    "bridge_keyfile": BridgeTable._tls,
    "bridge_insecure": BridgeTable._insecure,
}
assert not SETTINGS.keys() & {*ADDRESSES, *IMPOSSIBLE}, "an option has one meaning"
