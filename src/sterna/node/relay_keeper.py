"""The journal of this node for clients that are relayed to a foreign broker: their filters, and what they were told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sterna.broker.broker import Broker
from sterna.gateway.subscriptions import Change
from sterna.interworking.filters import checked_filters
from sterna.interworking.proxy.interest import Interest
from sterna.interworking.proxy.proxy import Proxy
from sterna.interworking.settings import InterworkingSettings

_OWNER = b"relayed/"
_RECEIVED = b"received/"
_FILTER = b"filter/"
_BEGUN = b"begun"
_ASKED = b"asked"


def proxy_of(settings: InterworkingSettings, keeper: RelayKeeper) -> Proxy:
    """It knows what clients want whose sessions have outlived the node."""
    interest = Interest(checked_filters(settings.to_broker))
    for client_id in keeper.clients():
        if (filters := keeper.subscriptions(client_id)) is not None:
            interest.begin(client_id, filters)
    return Proxy(settings.witness_window, interest, repeats_doubts=settings.in_doubt == "repeat")


class RelayKeeper:
    def __init__(self, broker: Broker, report: Callable[[str, dict[str, Any]], None]) -> None:
        self._broker = broker
        self._report = report
        self._kept_values = broker.state.kept_values
        self.made_way = 0

    def _put(self, client_id: bytes, name: bytes, value: bytes) -> None:
        made_way = self._kept_values.put(self._broker.log, _OWNER + client_id, name, value)
        if made_way and not self.made_way:
            self._name_made_way(made_way)
        self.made_way += sum(len(names) for names in made_way.values())

    def _name_made_way(self, made_way: dict[bytes, list[bytes]]) -> None:
        """The first time only: what is full stays full."""
        client_id = next(iter(made_way))[len(_OWNER) :]
        reason = (
            f"more than {self._kept_values.bytes_max} bytes of subscriptions and of publications at QoS 2 are kept for"
            " relayed clients: those of the client heard of first make way, and what is in doubt of it stays unknown;"
            " end sessions that nobody needs; further ones are counted (sterna_interworking_not_kept_total)"
        )
        self._report("values of relayed clients not kept", {"client": client_id.decode(), "reason": reason})

    def begin(self, client_id: bytes) -> None:
        self._put(client_id, _BEGUN, b"1")

    def renew(self, client_id: bytes) -> None:
        """Values stand in the order in which they came: those kept before this are of a session that is gone."""
        self._put(client_id, _BEGUN, b"")
        self.begin(client_id)

    def end(self, client_id: bytes) -> None:
        for name in self._kept_values.of(_OWNER + client_id):
            if not name.startswith(_RECEIVED):
                self._put(client_id, name, b"")

    def ask(self, client_id: bytes) -> None:
        self._put(client_id, _ASKED, b"1")

    def answered(self, client_id: bytes) -> None:
        self._put(client_id, _ASKED, b"")

    def is_unanswered(self, client_id: bytes) -> bool:
        return _ASKED in self._kept_values.of(_OWNER + client_id)

    def subscriptions(self, client_id: bytes) -> dict[bytes, tuple[int, int]] | None:
        held = self._kept_values.of(_OWNER + client_id)
        if _BEGUN not in held:
            return None
        return {
            name[len(_FILTER) :]: (value[0], int.from_bytes(value[1:]))
            for name, value in held.items()
            if name.startswith(_FILTER)
        }

    def subscribed(self, client_id: bytes, changes: list[Change]) -> None:
        for topic_filter, granted in changes:
            value = b"" if granted is None else bytes((granted[0],)) + granted[1].to_bytes(4)
            self._put(client_id, _FILTER + topic_filter, value)

    def clients(self) -> list[bytes]:
        """Those whose sessions last, as far as the node knows."""
        return [owner[len(_OWNER) :] for owner in self._kept_values.owners() if owner.startswith(_OWNER)]

    def keep(self, client_id: bytes, packet_id: int, packet: bytes) -> None:
        self._put(client_id, _RECEIVED + b"%d" % packet_id, packet)

    def drop(self, client_id: bytes, packet_id: int) -> None:
        self._put(client_id, _RECEIVED + b"%d" % packet_id, b"")

    def kept(self, client_id: bytes) -> dict[int, bytes]:
        held = self._kept_values.of(_OWNER + client_id)
        return {int(name[len(_RECEIVED) :]): packet for name, packet in held.items() if name.startswith(_RECEIVED)}

    def lost(self, client_id: bytes) -> set[int]:
        names = list(self._kept_values.of(_OWNER + client_id))
        earlier = names[: names.index(_BEGUN)] if _BEGUN in names else []
        return {int(name[len(_RECEIVED) :]) for name in earlier if name.startswith(_RECEIVED)}

    def when_safe(self, act: Callable[[bool], None]) -> None:
        self._broker.commitments.when_safe(act)
