"""Settings of the attachment to a foreign broker: the part of the `[interworking]` table that the core uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from sterna.vocabulary.settings import Allowed, Choice, ShownDefault

MODES = ("attach", "proxy")
IN_DOUBT = ("repeat", "drop")


@dataclass(frozen=True, slots=True, kw_only=True)
class InterworkingSettings:
    mode: Annotated[str, Choice(MODES)] = "attach"
    """How the node stands to the broker: beside it, as one client (`"attach"`), or before it (`"proxy"`): clients reach
    the broker through the node."""

    name: str = ""
    """The name of the broker on the dashboard's pages, such as `"Mosquitto"`; without it they show its address."""

    from_broker: tuple[str, ...] = ("#",)
    """Topics that come from the broker into the network: filters of which no two match the same topic.
    An empty list: none."""

    to_broker: tuple[str, ...] = ("#",)
    """Topics that go from the network to the broker.  An empty list: none."""

    only_wanted: bool = False
    """In proxy mode: of the topics in `to_broker` only those go to the broker that relayed clients have subscribed to
    there.  Leave it off if clients come to the broker by other ways, too."""

    in_doubt: Annotated[str, Choice(IN_DOUBT)] = "repeat"
    """Messages at QoS 2 that were in flight when the broker lost its session: they may come twice (`"repeat"`) or not
    at all (`"drop"`); both are counted."""

    client_id: Annotated[str, ShownDefault("`sterna-`, network, `-`, node")] = ""
    """The client identifier under which the broker knows this node.  It must not change: the broker's session hangs on
    it."""

    keep_alive_s: Annotated[int, Allowed(1, 65535)] = 30
    """Keep-alive towards the broker; a broker may ask for a shorter one."""

    answer_s: Annotated[float, Allowed(0.1, 3600)] = 10.0
    """How long the broker may take for CONNACK, for SUBACK and for each answer to a question about its abilities."""

    fence_s: Annotated[float, Allowed(0.05, 3600)] = 5.0
    """How often a fence goes through the broker.  Three that do not come back end the connection; a fence of another
    node of this network shows that the broker is attached twice."""

    retained_s: Annotated[float, Allowed(0, 86400)] = 60.0
    """How often the broker's retained messages are read again and compared with the network's, besides each time that
    the broker is attached; 0: never.  Brokers of plain 3.1.1 do not say of a live message that it is retained."""

    pause_s: Annotated[float, Allowed(0.01, 3600)] = 1.0
    """Pause before a broker that cannot be reached or refuses is tried again; doubled each time, with jitter, ..."""

    pause_max_s: Annotated[float, Allowed(0.01, 86400)] = 60.0
    """... up to this."""

    extras: bool = False
    """In proxy mode: the node itself serves relayed clients what the broker may lack: shared subscriptions,
    expressions, and MQTT 5 in front of a broker of 3.1.1.  For these the access rules of the node hold
    (`[authorization]`), not those of the broker; names and passwords are the broker's to judge."""

    witness_window: Annotated[int, Allowed(1, 1_000_000)] = 500
    """In proxy mode: publications at QoS 1 and 2 that the broker may be passing on to the node at once.  Keep it below
    the messages that the broker queues for one client (Mosquitto: `max_queued_messages`, 1000); it drops others."""

    storm_repeats: Annotated[int, Allowed(2, 1000)] = 8
    """The same message that went to the broker and came back so often within ten seconds is a storm: its topic is held
    for that broker, twice as long each time."""
