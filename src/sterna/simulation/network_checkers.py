"""Checks of the nodes themselves, at any time and once it is quiet: bounds hold, and nothing circulates."""

from __future__ import annotations

from sterna.broker.broker import Broker
from sterna.broker.delivery.journal_pages import read_own
from sterna.simulation.machine import SimulatedMachine
from sterna.simulation.records import ReceivedDelivery, Records, Violation, identity_of
from sterna.vocabulary.identity import BEFORE_ALL, Stamp

#: How long a node waits for messages of another one that come before those it could go on with.
WAIT_S = 10.0


def nothing_left_over(machine: SimulatedMachine) -> list[Violation]:
    """Once it is quiet and everybody is there, nothing waits for anybody."""
    running = machine.running
    assert running is not None
    found = []
    for session in running.broker.sessions.values():
        if session.queue or session.inflight:
            detail = f"{len(session.queue)} queued, {len(session.inflight)} in flight for {session.name()}"
            found.append(Violation("left over", f"{machine.name}: {detail}", (session.name(),)))
    for share in running.broker.routes.shares():
        if share.queue:
            detail = f"{machine.name}: {len(share.queue)} queued for the share {share.key.decode()}"
            found.append(Violation("left over", detail))
    if running.broker.commitments.pending or running.broker.commitments.under_way:
        found.append(Violation("left over", f"{machine.name}: a group waits to be written"))
    return found


def everybody_in_step(machine: SimulatedMachine, names: list[str]) -> list[Violation]:
    """Once it is quiet, each node knows a way to each other one and has read everything of it."""
    running = machine.running
    if running is None:
        return [Violation("no path", f"{machine.name} is not running", (machine.name,))]
    network = running.node.network
    if network is None:
        return []
    found = []
    router = network.router
    for name in names:
        if name == machine.name:
            continue
        if router.paths.link_to(name) is None:
            found.append(Violation("no path", f"{machine.name} knows no way to {name}", (machine.name, name)))
        elif not router.streams.lacks_nothing(name):
            state = router.streams.states().get(name)
            found.append(Violation("out of step", f"{machine.name} reads {name}: {state}", (machine.name, name)))
    return found


def lacked_by(reader: SimulatedMachine, origin: SimulatedMachine) -> list[str]:
    """The identities of messages that entered at a node, and that another one wants and has not read.

    A session that came there from elsewhere has had what its barrier says, though its new node has not read that.
    A node that is not in step need not lack any: it may be about to ask, and be told that there is nothing more.
    """
    ours = origin.running.node.network if origin.running is not None else None
    theirs = reader.running.node.network if reader.running is not None else None
    if ours is None or theirs is None:
        return []
    assert origin.running is not None
    assert reader.running is not None
    after = theirs.router.streams.vector.get(origin.name) or ours.reading_begins(theirs.age())
    journal = origin.running.broker.journal
    found = read_own(journal, after, ours.frontier(), theirs.filters(), reader.name).messages
    return [
        identity_of(message.payload)
        for epoch, sequence, message in found
        if _is_missed(reader.running.broker, origin.name, Stamp(epoch, sequence), message.topic)
    ]


def _is_missed(broker: Broker, origin: str, stamp: Stamp, topic: bytes) -> bool:
    route = broker.routes.route(topic)
    if route.shares or route.computed or not route.deliveries:
        return True
    return any(stamp > session.barrier.get(origin, BEFORE_ALL) for session, _ in route.deliveries)


def tables_without(machine: SimulatedMachine, dead: str) -> list[Violation]:
    """Some time after a node has died, no other one has a link or a path to it."""
    running = machine.running
    assert running is not None
    network = running.node.network
    if network is None:
        return []
    held = []
    if dead in network.links.links:
        held.append("a link")
    if network.router.paths.link_to(dead) is not None:
        held.append("a path")
    if repr(dead) in str(network.router.strategy.table()):  # whole: topics may be named after clients of that node
        held.append("a place in its tables")
    return [Violation("the dead", f"{machine.name} has {what} to {dead}", (machine.name, dead)) for what in held]


def frames_sent(machine: SimulatedMachine) -> dict[tuple[str, int], int]:
    """Frames the node has given to each of its links: numbers that must come to rest when nobody publishes."""
    running = machine.running
    if running is None or running.node.network is None:
        return {}
    links = running.node.network.links.links
    return {(peer, link.session_id): link.counters.messages for peer, link in links.items()}


def within_bounds(machine: SimulatedMachine) -> list[Violation]:
    """At any time: what waits in memory is bounded."""
    running = machine.running
    if running is None:
        return []
    found = []
    limits = running.broker.limits
    for session in running.broker.sessions.values():
        if len(session.inflight) > limits.inflight:
            detail = f"{machine.name}: {len(session.inflight)} in flight for {session.name()}"
            found.append(Violation("bounds", detail, (session.name(),)))
    if running.node.network is not None:
        for link in running.node.network.links.links.values():
            if link.unacknowledged_bytes > running.node.network.links.settings.resend_bytes:
                detail = f"{machine.name}: {link.unacknowledged_bytes} bytes unacknowledged by {link.peer}"
                found.append(Violation("bounds", detail, (machine.name, link.peer)))
    return found


def known_everywhere(machines: list[SimulatedMachine], client: str) -> bool:
    """Do all nodes agree on who owns this client's session?"""
    owners = set()
    for machine in machines:
        network = machine.running.node.network if machine.running is not None else None
        if network is None:
            return False
        owners.add(network.moving.directory.get(client.encode())[0])
    return len(owners) == 1 and owners != {""}


def hands_over(machine: SimulatedMachine) -> bool:
    """Does it have sessions that are on their way to another node, or fenced ones that have not handed over what waits
    there?  A client that is called and does not come is waited for until `patience_s` is over."""
    network = machine.running.node.network if machine.running is not None else None
    return network is not None and bool(network.moving.departures or len(network.moving.fenced_sessions))


def one_owner(machines: list[SimulatedMachine]) -> list[Violation]:
    """Once it is quiet, each session is at one node, all nodes know at which, and nothing is on its way."""
    found = []
    seen: dict[bytes, str] = {}
    running = [machine for machine in machines if machine.running is not None and machine.running.node.network]
    for machine in running:
        assert machine.running is not None
        network = machine.running.node.network
        assert network is not None
        moving = network.moving
        under_way = [client for client, arrival in moving.arrivals.items() if not arrival.served]
        if len(moving.fenced_sessions):
            found.append(Violation("on its way", f"{machine.name}: {len(moving.fenced_sessions)} fenced sessions"))
        for client in (*moving.departures, *under_way):
            found.append(Violation("on its way", f"{machine.name}: {client.decode()} is", (client.decode(),)))
        for client, session in machine.running.broker.sessions.items():
            if client in seen:
                detail = f"{client.decode()} has sessions at {seen[client]} and {machine.name}"
                found.append(Violation("two owners", detail, (client.decode(),)))
            seen[client] = machine.name
            if session.number and moving.directory.get(client)[0] != machine.name:
                detail = f"{machine.name} has {client.decode()}, the directory says {moving.directory.get(client)}"
                found.append(Violation("two owners", detail, (client.decode(),)))
    tables = {tuple(m.running.node.network.moving.directory.digests()) for m in running if m.running}  # type: ignore[union-attr]
    if len(tables) > 1:
        found.append(Violation("directory", "nodes differ about who owns what"))
    return found


def waited_long_enough(machine: SimulatedMachine) -> list[Violation]:
    """A node goes on without messages of another one only if it has waited for them as long as is promised."""
    return [
        Violation(
            "gave up early", f"{machine.name} waited {one.waited_s} s for {one.before}", (machine.name, one.before)
        )
        for one in machine.out_of_turn
        if one.waited_s < WAIT_S
    ]


def note_overtaken(records: Records, machine: SimulatedMachine, machines: list[SimulatedMachine]) -> None:
    """Messages that this node had waited for come late to its clients, those of then and those that came later."""
    for one in machine.out_of_turn:
        clients = set(one.clients) | records.wandering
        clients |= {client for client, found in records.arrivals.items() if _has_been_at(machine.name, one.at, found)}
        if machine.foreign is not None:
            clients.add(f"{machine.foreign.broker.name}s")
        other = next(found for found in machines if found.name == one.before)
        if other.running is None:
            continue
        journal = other.running.broker.journal
        found = (journal.read(offset) for offset in range(max(one.first, 0), one.last + 1))
        identities = {identity_of(message.payload) for message in found if message is not None}
        for client in clients:
            records.overtaken.setdefault(client, set()).update(identities)


def _has_been_at(node: str, since: float, arrivals: list[ReceivedDelivery]) -> bool:
    return any(arrival.node == node and arrival.at >= since for arrival in arrivals)
