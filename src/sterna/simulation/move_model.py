"""A model of moves for `state_explorer`: what nodes, clients and links may do to a session that changes its node.

Both sides of a move do what the tables of `sterna.migration.tables` say, row by row; what a row's actions mean, and how
messages are dispatched (`move_dispatch`, `move_manager`), is told here in short.  Everything else may happen at any
moment: an order to move, a client that comes, goes or comes back, a publication, a lost message, a crash and a restart,
a time that runs out, trouble.  Messages from one node to another keep their order (links do), and no other; what is
under way to a node that crashes is lost, and what it said before does not come after its restart, unless letters are
to outlive that (`MoveBounds.outlive`).

Left out: expressions, wills, shared subscriptions, users, QoS, and new sessions for clients whose node cannot
be reached (`owner_unreachable = "refuse"`).  Sessions of different clients share nothing but crashes, and a crash may
come at any moment of one client's move: so what holds for one client holds for several.

A publication reaches every session that listens at once, whichever node has it; a session that is gone from memory
reads it from journals when its node is back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from sterna.migration.tables import ARRIVING, LEAVING, Table
from sterna.simulation.state_explorer import Step

NOBODY = -1
PAGES = 2
"""In which a session is sent; the last has what is not in the others."""


EAGER = ("CAUGHT_UP", "CAUGHT_UP_FIRST", "DRAINED", "SETTLED", "PARTED", "HEARD", "HEARD_FIRST", "HEARD_CALLED")
"""Events that come of themselves and are not written down."""
NamedTable = dict[tuple[str, str], tuple[tuple[str, ...], str]]
"""(state, event) -> actions and the next state, by their names."""


class ModelLetter(NamedTuple):
    what: str
    number: int
    page: int = 0
    has: int = 0
    """Messages that it carries, a bit each."""
    owner: int = NOBODY
    is_ahead: bool = False
    start: int = 0
    """Which start of the receiver it is said to."""


class Kept(NamedTuple):
    """A session in a journal."""

    number: int
    has: int
    leaving: tuple[int, int] | None = None
    """To which node, under which number: whether it is ours has to be asked there after a crash."""
    noted: tuple[int, int] | None = None
    """The same as the journal has it: that it stays is not safe at once."""


class Leave(NamedTuple):
    """The departure of a session."""

    state: str
    target: int
    number: int
    at_once: bool = False
    is_called: bool = False
    """Its client is sent along with the offer."""
    is_frozen: bool = False
    is_draining: bool = False
    page: int = NOBODY
    snapshot: int = 0
    """Messages that it had when it stopped."""
    start: int = 0
    """Which start of the other node it is offered to."""
    pending: str = ""
    """Events that come about by themselves, sooner or later."""


class Arrive(NamedTuple):
    state: str
    source: int
    number: int
    pages: int = 0
    staged: int = 0
    heard: int = 0
    listens: bool = False
    at_once: bool = False
    is_ahead: bool = False
    page: int = NOBODY
    page_has: int = 0
    pending: str = ""


class ModelNode(NamedTuple):
    is_up: bool = True
    session: Kept | None = None
    owner: tuple[int, int] = (NOBODY, 0)
    """As its directory knows: who, under which number."""
    leave: Leave | None = None
    arrive: Arrive | None = None
    waits: bool = False
    """The client is connected here, and waits for its session."""
    spent: int = 0
    """The highest number of a move that came to nothing."""
    starts: int = 0
    """How often it was started again, if letters outlive that."""


class ModelWorld(NamedTuple):
    nodes: tuple[ModelNode, ...]
    wires: tuple[tuple[ModelLetter, ...], ...]
    """From each node to each, in order."""
    published: int
    crashes: int
    moves: int
    visits: int
    losses: int
    """How many more of each there may be."""


@dataclass(frozen=True, slots=True)
class MoveBounds:
    nodes: int = 2
    crashes: int = 1
    moves: int = 1
    visits: int = 1
    """Of the client to another node, or back."""
    losses: int = 1
    messages: int = 2
    wire: int = 3
    """Messages under way from one node to another; those said again are not when there are so many."""
    numbers: int = 4
    """Under a higher one nothing begins."""
    is_patient: bool = False
    """Nothing is said again, or given up, while something is under way between two nodes that are up."""
    outlive: bool = False
    """Letters under way when a node crashes come all the same, after its restart too: they waited at a third one."""
    is_eager: bool = False
    """A node does at once what it does by itself and writes nowhere."""


class MoveModel:
    def __init__(self, bounds: MoveBounds, leaving: Table = LEAVING, arriving: Table = ARRIVING) -> None:
        self.bounds = bounds
        self._leaving = _by_name(leaving)
        self._arriving = _by_name(arriving)
        self.rows_taken: set[tuple[str, str, str]] = set()

    # -- what the explorer asks --

    def first(self) -> Iterable[ModelWorld]:
        """The session is at the first node, its client too, and everybody knows."""
        bounds = self.bounds
        nodes = [ModelNode(session=Kept(1, 0), owner=(0, 1)), *[ModelNode(owner=(0, 1))] * (bounds.nodes - 1)]
        wires = ((),) * bounds.nodes**2
        yield ModelWorld(tuple(nodes), wires, 0, bounds.crashes, bounds.moves, bounds.visits, bounds.losses)

    def wrong(self, world: ModelWorld) -> str:
        serving = [number for number, node in enumerate(world.nodes) if _may_serve(node)]
        if len(serving) > 1:
            return f"nodes {serving} serve the session, or will when they are back"
        for number in serving:
            session = world.nodes[number].session
            assert session is not None
            if session.has != world.published:
                return f"node {number} owns the session without messages {world.published & ~session.has:b}"
        if not any(node.session is not None for node in world.nodes):
            return "nobody has the session any more"
        return ""

    def is_good(self, world: ModelWorld) -> bool:
        """One serves it, and no move is under way."""
        is_quiet = all(node.is_up and node.leave is None and node.arrive is None for node in world.nodes)
        return is_quiet and sum(map(_may_serve, world.nodes)) == 1

    def steps(self, world: ModelWorld) -> Iterator[Step[ModelWorld]]:
        for number, node in enumerate(world.nodes):
            if node.is_up:
                yield from self._of_a_node(world, number, node)
                if world.crashes:
                    for what, left in _crashed(number, node):
                        fallen = _put(world, number, left)._replace(crashes=world.crashes - 1)
                        fallen = fallen if self.bounds.outlive else _deaf(fallen, number)
                        yield Step(f"node {number} crashes{what}", fallen, is_fault=True)
            else:
                yield Step(f"node {number} is back", self._restarted(world, number))
        yield from self._of_the_links(world)
        yield from self._of_the_client(world)
        if world.published.bit_count() < self.bounds.messages:
            yield Step("a message is published", _published(world))

    # -- steps --

    def _of_a_node(self, world: ModelWorld, number: int, node: ModelNode) -> Iterator[Step[ModelWorld]]:
        if world.moves and _may_serve(node) and node.leave is None and _next_number(node) <= self.bounds.numbers:
            for target in range(len(world.nodes)):
                if target != number:
                    yield from self._ordered(world, number, target)
        if node.leave is not None:
            for event in self._events(node.leave.pending, self._of_time(world, number, node.leave.target)):
                yield from self._stepped(f"{event} at {number}", world, self.leave_on(world, number, event))
        if node.arrive is not None:
            yield from self._of_an_arrival(world, number, node.arrive, node.waits)
        if node.session is not None and node.session.noted != node.session.leaving:
            kept = node.session._replace(noted=node.session.leaving)
            yield Step(f"{number} has noted that it stays", _put(world, number, node._replace(session=kept)))
        for other, neighbour in enumerate(world.nodes):
            if neighbour.is_up and neighbour.owner[1] > node.owner[1]:
                yield Step(f"node {number} hears from {other} who owns it", self._told(world, number, neighbour.owner))

    def _of_an_arrival(self, world: ModelWorld, number: int, arrive: Arrive, waits: bool) -> Iterator[Step[ModelWorld]]:
        usual = (*self._of_time(world, number, arrive.source), *(("CAME",) if waits else ()))
        for event in self._events(arrive.pending, usual):
            if event == "WRITTEN":
                yield Step(f"a page is safe at {number}", self._written(world, number, arrive))
            else:
                yield from self._stepped(f"{event} at {number}", world, self.arrive_on(world, number, event))

    def _of_time(self, world: ModelWorld, number: int, other: int) -> tuple[str, ...]:
        count = len(world.nodes)
        is_under_way = world.wires[number * count + other] or world.wires[other * count + number]
        waits = self.bounds.is_patient and is_under_way and world.nodes[other].is_up
        return ("TROUBLE",) if waits else ("RETRY", "GIVE_UP", "TROUBLE")

    def _events(self, pending: str, usual: tuple[str, ...]) -> tuple[str, ...]:
        return (*pending.split(), *usual)

    def _stepped(self, what: str, world: ModelWorld, then: ModelWorld | None) -> Iterator[Step[ModelWorld]]:
        if then is not None and then != world:
            yield Step(what, then)

    def _ordered(self, world: ModelWorld, number: int, target: int) -> Iterator[Step[ModelWorld]]:
        """Its client is sent when the other node has answered, or at once; between two nodes it may itself be sent at
        once."""
        less = world._replace(moves=world.moves - 1)
        under = _next_number(world.nodes[number])
        yield Step(f"node {number} is to move it to {target}", self._departs(less, number, target, under))
        yield Step(f"node {number} sends its client to {target}", self._calls(less, number, target, under))
        if len(world.nodes) == 2 and ("DRAINING", "DRAINED") in self._leaving:
            yield Step(f"node {number} sends it to {target} at once", self._at_once(less, number, target, under))

    def _of_the_links(self, world: ModelWorld) -> Iterator[Step[ModelWorld]]:
        count = len(world.nodes)
        for place, wire in enumerate(world.wires):
            if wire:
                source, target = divmod(place, count)
                rest = _wired(world, place, wire[1:])
                if world.nodes[target].is_up:
                    yield Step(f"{target} gets {wire[0].what} of {source}", self._came(rest, source, target, wire[0]))
                if world.losses:
                    lost = rest._replace(losses=world.losses - 1)
                    yield Step(f"{wire[0].what} from {source} to {target} is lost", lost, is_fault=True)

    def _of_the_client(self, world: ModelWorld) -> Iterator[Step[ModelWorld]]:
        """It may come to any node at any moment, whether or not it was told to, and leave while it waits."""
        if any(node.waits for node in world.nodes):
            yield Step("the client goes away", _away(world), is_fault=True)
        for number, node in enumerate(world.nodes):
            if world.visits and node.is_up and not node.waits:
                comes = _away(world)._replace(visits=world.visits - 1)
                yield Step(f"the client comes to {number}", self._client_came(comes, number))

    # -- the client --

    def _is_at_home(self, node: ModelNode) -> bool:
        leave = node.leave
        is_moving = (
            node.session is None or node.session.leaving is not None or (leave is not None and leave.is_draining)
        )
        return not is_moving

    def _client_came(self, world: ModelWorld, number: int) -> ModelWorld:
        node = world.nodes[number]
        if self._is_at_home(node):
            return self.leave_on(world, number, "TROUBLE") or world
        return self._fetch(_put(world, number, node._replace(waits=True)), number)

    def _fetch(self, world: ModelWorld, number: int) -> ModelWorld:
        """See that a client that waits gets its session."""
        node = world.nodes[number]
        if not node.waits:
            return world
        if self._is_at_home(node):
            return _put(world, number, node._replace(waits=False))
        owner, known = node.owner
        if node.arrive is not None or node.session is not None or owner == number:
            return world
        if _next_number(node) > self.bounds.numbers:
            return world
        if owner == NOBODY:  # so it begins another
            begun = node._replace(session=Kept(known + 1, world.published), owner=(number, known + 1), waits=False)
            return _put(world, number, begun)
        expecting = _put(world, number, node._replace(arrive=Arrive("AWAITING", owner, _next_number(node))))
        return self._do(expecting, number, "SEND_PULL")

    # -- messages --

    def _say(self, world: ModelWorld, source: int, target: int, letter: ModelLetter) -> ModelWorld:
        place = source * len(world.nodes) + target
        wire = world.wires[place]
        if letter in wire or len(wire) >= self.bounds.wire or not world.nodes[target].is_up:
            return world  # what is said again while it is under way changes nothing; too much, or to nobody, is lost
        return _wired(world, place, (*wire, letter))

    def _came(self, world: ModelWorld, source: int, number: int, letter: ModelLetter) -> ModelWorld:
        return _TAKERS[letter.what](self, world, source, number, letter)

    def _pulled(self, world: ModelWorld, source: int, number: int, letter: ModelLetter) -> ModelWorld:
        node = world.nodes[number]
        session, leave = node.session, node.leave
        if leave is not None and leave.target == source:
            wire = world.wires[number * len(world.nodes) + source]
            has_met_it = any(one.what.startswith("MIGTO") and one.number == leave.number for one in wire)
            return world if has_met_it else self.leave_on(world, number, "PULL") or world
        if session is not None and not self._is_at_home(node):
            return world
        if session is None:
            owner = node.owner[0] if node.owner[0] != source else NOBODY
            return self._say(world, number, source, ModelLetter("ABSENT", letter.number, node.owner[1], owner=owner))
        if session.number >= letter.number:
            absent = ModelLetter("ABSENT", letter.number, session.number, owner=number)
            return self._say(world, number, source, absent)
        if leave is not None or node.spent >= self.bounds.numbers:
            return world
        return self._departs(world, number, source, max(letter.number, node.spent + 1))

    def _offered(self, world: ModelWorld, source: int, number: int, letter: ModelLetter) -> ModelWorld:
        node = world.nodes[number]
        arrive = node.arrive
        if not self._is_said_to(letter, node):
            return self._say_how_it_stands(world, source, number, letter.number)
        if letter.number <= node.spent:
            return self._say(world, number, source, ModelLetter("MIGREFUSE", letter.number))
        if arrive is not None and arrive.source == source and arrive.state not in ("SERVING", "DONE"):
            if arrive.state == "AWAITING":
                arrive = arrive._replace(number=letter.number)
                world = _put(world, number, node._replace(arrive=arrive))
                return self.arrive_on(world, number, "MIGTO", letter) or world
            is_the_same = arrive.number == letter.number
            return (self.arrive_on(world, number, "MIGTO", letter) or world) if is_the_same else world
        if node.owner[1] >= letter.number or node.session is not None:
            return self._say_how_it_stands(world, source, number, letter.number)
        world = _put(world, number, node._replace(arrive=Arrive("AWAITING", source, letter.number)))
        return self.arrive_on(world, number, "MIGTO", letter) or world

    def _is_said_to(self, letter: ModelLetter, node: ModelNode) -> bool:
        """And not to an earlier start of it."""
        return letter.start == node.starts

    def _say_how_it_stands(self, world: ModelWorld, source: int, number: int, under: int) -> ModelWorld:
        node = world.nodes[number]
        is_here = node.session is not None and node.session.number >= under
        owner, known = node.owner
        if is_here or (known >= under and owner != source):
            return self._say(world, number, source, ModelLetter("WHOLE", under))
        spent = _put(world, number, node._replace(spent=max(node.spent, under)))
        return self._say(spent, number, source, ModelLetter("MIGREFUSE", under))

    def _for_arrival(self, world: ModelWorld, source: int, number: int, letter: ModelLetter) -> ModelWorld:
        arrive = world.nodes[number].arrive
        if arrive is None or (arrive.source, arrive.number) != (source, letter.number):
            is_asked = letter.what in ("MIGSYNC", "MIGSYNC_LAST", "MIGABORT")
            return self._say_how_it_stands(world, source, number, letter.number) if is_asked else world
        if letter.what == "ABSENT":
            return self._absent(world, number, arrive, letter)
        if letter.what.startswith("MIGSYNC"):
            return self._page_came(world, number, arrive, letter)
        return self.arrive_on(world, number, letter.what) or world

    def _absent(self, world: ModelWorld, number: int, arrive: Arrive, letter: ModelLetter) -> ModelWorld:
        if arrive.state != "AWAITING":
            return world
        node = world.nodes[number]
        if letter.owner not in (NOBODY, number) and letter.page > node.owner[1]:
            node = node._replace(owner=(letter.owner, letter.page))
        owner, known = node.owner
        if owner in (arrive.source, number) and letter.owner != arrive.source:
            node = node._replace(owner=(NOBODY, max(known, letter.page) + 1))
        return self.arrive_on(_put(world, number, node), number, "ABSENT") or world

    def _page_came(self, world: ModelWorld, number: int, arrive: Arrive, letter: ModelLetter) -> ModelWorld:
        if arrive.state == "EXPECTING":
            if letter.page < arrive.pages and letter.what == "MIGSYNC":
                return self._say(world, number, arrive.source, ModelLetter("MIGSYNCACK", arrive.number, letter.page))
            if letter.page > arrive.pages or arrive.pending:
                return world
            arrive = arrive._replace(page=letter.page, page_has=letter.has)
            world = _put(world, number, world.nodes[number]._replace(arrive=arrive))
        return self.arrive_on(world, number, letter.what) or world

    def _written(self, world: ModelWorld, number: int, arrive: Arrive) -> ModelWorld:
        """The page that was being written is safe."""
        is_last = arrive.page == PAGES - 1
        after = arrive._replace(pending="", pages=arrive.page + 1, staged=arrive.staged | arrive.page_has)
        world = _put(world, number, world.nodes[number]._replace(arrive=after))
        if arrive.state != "EXPECTING":
            return world
        if is_last:
            return self.arrive_on(world, number, "STAGED") or world
        return self._say(world, number, arrive.source, ModelLetter("MIGSYNCACK", arrive.number, arrive.page))

    def _for_departure(self, world: ModelWorld, source: int, number: int, letter: ModelLetter) -> ModelWorld:
        leave = world.nodes[number].leave
        if leave is None or (leave.target, leave.number) != (source, letter.number):
            return self._for_nobody(world, source, number, letter)
        if letter.what == "MIGSYNCACK" and letter.page != leave.page:
            return world
        event = {"MIGREFUSE": "AHEAD" if letter.is_ahead else "MIGREFUSE", "WHOLE": "MIGSYNCACK_WHOLE"}
        return self.leave_on(world, number, event.get(letter.what, letter.what)) or world

    def _for_nobody(self, world: ModelWorld, source: int, number: int, letter: ModelLetter) -> ModelWorld:
        """An answer to what we no longer ask."""
        arrive = world.nodes[number].arrive
        if letter.what == "MIGTOACK":
            return self._say(world, number, source, ModelLetter("MIGABORT", letter.number))
        if letter.what in ("WHOLE", "MIGSYNCACK"):
            return self._say(world, number, source, ModelLetter("MIGACK", letter.number))
        if arrive is not None and (arrive.source, arrive.number) == (source, letter.number):
            return self.arrive_on(world, number, "MIGREFUSE") or world
        return world

    # -- the tables --

    def leave_on(self, world: ModelWorld, number: int, event: str) -> ModelWorld | None:
        node = world.nodes[number]
        leave = node.leave
        row = None if leave is None else self._leaving.get((leave.state, event))
        if leave is None or row is None:
            return None
        self.rows_taken.add(("leaving", leave.state, event))
        keeps = row[1] == leave.state and event not in leave.pending.split()
        node = _noted(number, node._replace(leave=leave._replace(state=row[1], pending=leave.pending * keeps)), event)
        world = _put(world, number, node)
        for what in row[0]:
            world = self._do(world, number, what, is_leaving=True)
        after = world.nodes[number].leave
        soon = after is not None and self._soon(self._leaving, after.state, after.pending)
        return (self.leave_on(world, number, soon) or world) if soon else world

    def arrive_on(
        self, world: ModelWorld, number: int, event: str, letter: ModelLetter | None = None
    ) -> ModelWorld | None:
        node = world.nodes[number]
        arrive = node.arrive
        row = None if arrive is None else self._arriving.get((arrive.state, event))
        if arrive is None or row is None:
            return None
        self.rows_taken.add(("arriving", arrive.state, event))
        keeps = row[1] == arrive.state and event not in arrive.pending.split()
        is_ahead = event == "TROUBLE" and arrive.at_once and arrive.state == "LISTENING"
        arrive = arrive._replace(is_ahead=is_ahead)
        world = _put(world, number, node._replace(arrive=arrive._replace(state=row[1], pending=arrive.pending * keeps)))
        for what in row[0]:
            world = self._create(world, number, letter) if what == "CREATE" else self._do(world, number, what)
        after = world.nodes[number].arrive
        soon = after is not None and self._soon(self._arriving, after.state, after.pending)
        return (self.arrive_on(world, number, soon) or world) if soon else world

    def _soon(self, table: NamedTable, state: str, pending: str) -> str:
        """The event that comes about at once, if there is no choice."""
        if not self.bounds.is_eager:
            return ""
        possible = [event for event in pending.split() if (state, event) in table]
        return possible[0] if len(possible) == 1 and possible[0] in EAGER else ""

    def _do(self, world: ModelWorld, number: int, what: str, *, is_leaving: bool = False) -> ModelWorld:
        if what not in _DOES:
            raise NotImplementedError(f"the model does not know yet what {what} does")
        act = _DOES[what]
        return act(self, world, number) if not isinstance(act, tuple) else act[not is_leaving](self, world, number)

    # -- what departures do --

    def _departs(self, world: ModelWorld, number: int, target: int, under: int) -> ModelWorld:
        leave = Leave("OFFERED", target, under, start=world.nodes[target].starts)
        return self._do(_put(world, number, world.nodes[number]._replace(leave=leave)), number, "SEND_MIGTO")

    def _calls(self, world: ModelWorld, number: int, target: int, under: int) -> ModelWorld:
        """The other node is believed to be ready, and is made the offer meanwhile."""
        leave = Leave("SETTLING", target, under, is_called=True, start=world.nodes[target].starts, pending="SETTLED")
        world = self._do(_put(world, number, world.nodes[number]._replace(leave=leave)), number, "SEND_MIGTO")
        return (self.leave_on(world, number, "SETTLED") or world) if self.bounds.is_eager else world

    def _at_once(self, world: ModelWorld, number: int, target: int, under: int) -> ModelWorld:
        leave = Leave("DRAINING", target, under, at_once=True, start=world.nodes[target].starts)
        return self._do(_put(world, number, world.nodes[number]._replace(leave=leave)), number, "DRAIN")

    def _to_target(self, world: ModelWorld, number: int, what: str) -> ModelWorld:
        leave = world.nodes[number].leave
        return world if leave is None else self._say(world, number, leave.target, ModelLetter(what, leave.number))

    def _send_migto(self, world: ModelWorld, number: int) -> ModelWorld:
        node = world.nodes[number]
        leave, session = node.leave, node.session
        if leave is None or session is None:
            return world
        starts = world.nodes[leave.target].starts
        if leave.start != starts and not leave.is_frozen:
            under = max(leave.number + 1, _next_number(node))
            if under > self.bounds.numbers:
                return world
            leave = leave._replace(start=starts, number=under)
            world = _put(world, number, node._replace(leave=leave))
        what = "MIGTO at once" if leave.at_once else "MIGTO called" if leave.is_called else "MIGTO"
        return self._say(
            world, number, leave.target, ModelLetter(what, leave.number, has=leave.snapshot, start=leave.start)
        )

    def _send_page(self, world: ModelWorld, number: int) -> ModelWorld:
        node = world.nodes[number]
        leave, session = node.leave, node.session
        if leave is None or session is None:
            return world
        if leave.page == NOBODY:
            return self._to_target(world, number, "MIGABORT")  # it was we who were killed meanwhile: ask how it stands
        if leave.at_once and not leave.page:
            world = self._send_migto(world, number)
        is_last = leave.page == PAGES - 1
        has = leave.snapshot & ~1 if is_last else leave.snapshot & 1
        page = ModelLetter("MIGSYNC_LAST" if is_last else "MIGSYNC", leave.number, leave.page, has)
        return self._say(world, number, leave.target, page)

    def _next_page(self, world: ModelWorld, number: int) -> ModelWorld:
        node = world.nodes[number]
        leave = node.leave
        if leave is None:
            return world
        leave = leave._replace(page=leave.page + 1)
        world = _put(world, number, node._replace(leave=leave))
        if leave.page == PAGES - 1:
            return self.leave_on(world, number, "LAST") or world
        return self._send_page(world, number)

    def _offer_anew(self, world: ModelWorld, number: int) -> ModelWorld:
        node = world.nodes[number]
        leave = node.leave
        if leave is None:
            return world
        under = max(leave.number + 1, _next_number(node))
        anew = Leave(leave.state, leave.target, under, start=world.nodes[leave.target].starts)
        return self._send_migto(_put(world, number, node._replace(leave=anew)), number)

    def _freeze(self, world: ModelWorld, number: int) -> ModelWorld:
        """It serves no more; that it may be gone is about to be noted."""
        return _leave_with(world, number, is_frozen=True, is_draining=True, pending="FROZEN")

    def _thaw(self, world: ModelWorld, number: int) -> ModelWorld:
        node = world.nodes[number]
        session = node.session
        kept = None if session is None else session._replace(leaving=None)  # `noted` until the journal has it
        return _leave_with(_put(world, number, node._replace(session=kept)), number, is_frozen=False, is_draining=False)

    def _end_leave(self, world: ModelWorld, number: int) -> ModelWorld:
        node = world.nodes[number]
        leave = node.leave
        came_to_nothing = leave is not None and leave.state == "STAYING"
        spent = max(node.spent, leave.number) if leave is not None and came_to_nothing else node.spent
        over = _put(world, number, node._replace(leave=None, spent=spent))
        return self._fetch(self._check_owner(over, number), number)

    # -- what arrivals do --

    def _to_source(self, world: ModelWorld, number: int, what: str, *, is_ahead: bool = False) -> ModelWorld:
        arrive = world.nodes[number].arrive
        if arrive is None:
            return world
        return self._say(world, number, arrive.source, ModelLetter(what, arrive.number, is_ahead=is_ahead))

    def _create(self, world: ModelWorld, number: int, letter: ModelLetter | None) -> ModelWorld:
        """It listens from now on.  Sent at once it also reads from journals what was published since it stopped."""
        node = world.nodes[number]
        arrive = node.arrive
        if arrive is None:
            return world
        is_at_once = letter is not None and letter.what == "MIGTO at once"
        missed = world.published & ~letter.has if is_at_once and letter is not None else 0
        is_called = letter is not None and letter.what == "MIGTO called"
        pending = "HEARD" if is_at_once else "HEARD HEARD_CALLED" if is_called else "HEARD HEARD_FIRST"
        arrive = arrive._replace(listens=True, heard=missed, pending=pending, at_once=is_at_once)
        return _put(world, number, node._replace(arrive=arrive))

    def _stage(self, world: ModelWorld, number: int) -> ModelWorld:
        return _arrive_with(world, number, pending="WRITTEN")

    def _import(self, world: ModelWorld, number: int) -> ModelWorld:
        return _arrive_with(world, number, pending="SAFE")

    def _announce(self, world: ModelWorld, number: int) -> ModelWorld:
        """The write with all of it is safe: the session is this node's."""
        return _put(world, number, _with_session(world.nodes[number], number))

    def _drop(self, world: ModelWorld, number: int) -> ModelWorld:
        return _arrive_with(world, number, listens=False)

    def _tell_client(self, world: ModelWorld, number: int) -> ModelWorld:
        return self._fetch(world, number)

    def _end_arrive(self, world: ModelWorld, number: int) -> ModelWorld:
        node = world.nodes[number]
        arrive = node.arrive
        came_to_nothing = arrive is not None and arrive.state == "DROPPED"
        spent = max(node.spent, arrive.number) if arrive is not None and came_to_nothing else node.spent
        return self._check_owner(_put(world, number, node._replace(arrive=None, spent=spent)), number)

    # -- who owns it --

    def _told(self, world: ModelWorld, number: int, owner: tuple[int, int]) -> ModelWorld:
        world = _put(world, number, world.nodes[number]._replace(owner=owner))
        return self._fetch(self._owner_changed(world, number), number)

    def _check_owner(self, world: ModelWorld, number: int) -> ModelWorld:
        node = world.nodes[number]
        is_elsewhere = node.session is not None and node.owner[0] != number and node.owner[1]
        return self._owner_changed(world, number) if is_elsewhere else world

    def _owner_changed(self, world: ModelWorld, number: int) -> ModelWorld:
        node = world.nodes[number]
        owner, known = node.owner
        leave, arrive, session = node.leave, node.arrive, node.session
        if owner == number:
            if session is None:
                return _put(world, number, node._replace(owner=(NOBODY, known + 1)))
            return world
        if leave is not None and (leave.target, leave.number) == (owner, known):
            return self.leave_on(world, number, "MIGSYNCACK_WHOLE") or world
        if arrive is not None and arrive.state not in ("SERVING", "DONE"):
            if known >= arrive.number or (arrive.state == "AWAITING" and owner != arrive.source):
                return self.arrive_on(world, number, "TROUBLE") or world
            return world
        if session is None or not self._is_at_home(node):
            return world
        if owner == NOBODY:
            kept = session._replace(number=known + 1)
            return _put(world, number, node._replace(session=kept, owner=(number, known + 1)))
        return world  # it is fenced: two nodes owned it, which is found to be wrong anyway

    def _restarted(self, world: ModelWorld, number: int) -> ModelWorld:
        world = world if self.bounds.outlive else _silent(world, number)
        node = world.nodes[number]
        session = node.session
        node = node._replace(is_up=True, starts=node.starts + self.bounds.outlive)
        if session is None:
            return _put(world, number, node)
        if session.leaving is None:
            return _put(world, number, node)
        target, under = session.leaving
        leave = Leave("IN_DOUBT", target, under, is_frozen=True, is_draining=True)
        return self._send_page(_put(world, number, node._replace(leave=leave)), number)


# -- states, changed --


def _by_name(table: Table) -> NamedTable:
    """By the names of its members, not their words."""
    return {
        (state.name, event.name): (tuple(what.name for what in row.does), row.then.name)
        for (state, event), row in table.items()
    }


def _put(world: ModelWorld, number: int, node: ModelNode) -> ModelWorld:
    nodes = world.nodes
    return world._replace(nodes=(*nodes[:number], node, *nodes[number + 1 :]))


def _wired(world: ModelWorld, place: int, wire: tuple[ModelLetter, ...]) -> ModelWorld:
    return world._replace(wires=(*world.wires[:place], wire, *world.wires[place + 1 :]))


def _deaf(world: ModelWorld, number: int) -> ModelWorld:
    """Messages under way to a node that crashes are lost with the link."""
    count = len(world.nodes)
    return world._replace(
        wires=tuple(() if place % count == number else wire for place, wire in enumerate(world.wires))
    )


def _silent(world: ModelWorld, number: int) -> ModelWorld:
    """Its earlier messages have come by now, or are lost: a new link begins with nothing under way."""
    count = len(world.nodes)
    return world._replace(
        wires=tuple(() if place // count == number else wire for place, wire in enumerate(world.wires))
    )


def _leave_with(world: ModelWorld, number: int, **changes: Any) -> ModelWorld:
    node = world.nodes[number]
    return world if node.leave is None else _put(world, number, node._replace(leave=node.leave._replace(**changes)))


def _arrive_with(world: ModelWorld, number: int, **changes: Any) -> ModelWorld:
    node = world.nodes[number]
    return world if node.arrive is None else _put(world, number, node._replace(arrive=node.arrive._replace(**changes)))


def _next_number(node: ModelNode) -> int:
    return max(node.owner[1], node.spent) + 1


def _may_serve(node: ModelNode) -> bool:
    """It serves the session, or would if it were up."""
    is_frozen = node.leave is not None and node.leave.is_frozen
    return node.session is not None and node.session.leaving is None and not is_frozen


def _published(world: ModelWorld) -> ModelWorld:
    bit = world.published + 1
    nodes = tuple(_hearing(node, bit) for node in world.nodes)
    return world._replace(nodes=nodes, published=world.published | bit)


def _hearing(node: ModelNode, bit: int) -> ModelNode:
    """A session that has stopped hears it too, and delivers it if it stays; it sends along what it had before."""
    if node.session is not None:
        node = node._replace(session=node.session._replace(has=node.session.has | bit))
    if node.arrive is not None and node.arrive.listens:
        node = node._replace(arrive=node.arrive._replace(heard=node.arrive.heard | bit))
    return node


def _away(world: ModelWorld) -> ModelWorld:
    nodes = tuple(node._replace(waits=False) for node in world.nodes)
    return world._replace(nodes=nodes)


def _with_session(node: ModelNode, number: int) -> ModelNode:
    arrive = node.arrive
    assert arrive is not None
    session = Kept(arrive.number, arrive.staged | arrive.heard)
    return node._replace(
        session=session,
        owner=(number, arrive.number),
        arrive=arrive._replace(listens=False, heard=0, staged=0, pages=0),
    )


def _noted(number: int, node: ModelNode, event: str) -> ModelNode:
    """A note in the journal is safe."""
    leave, session = node.leave, node.session
    if leave is None or session is None:
        return node
    if event == "FROZEN":
        leave = leave._replace(snapshot=session.has)
        return node._replace(leave=leave, session=session._replace(leaving=_to(leave), noted=_to(leave)))
    if event == "SAFE":
        return node._replace(session=None, owner=_to(leave))
    return node


def _crashed(number: int, node: ModelNode) -> Iterator[tuple[str, ModelNode]]:
    """Its memory is gone.  A record that was being written may be there or not."""
    plain = node._replace(is_up=False, leave=None, arrive=None, waits=False, spent=0)
    leave, arrive, session = node.leave, node.arrive, node.session
    if session is not None:
        plain = plain._replace(session=session._replace(leaving=session.noted))
    yield "", plain
    if leave is not None and session is not None and leave.pending == "FROZEN":
        to = _to(leave)
        yield " (that it leaves was noted)", plain._replace(session=session._replace(leaving=to, noted=to))
    if leave is not None and session is not None and leave.pending == "SAFE":
        yield " (that it has moved was noted)", plain._replace(session=None, owner=(leave.target, leave.number))
    if arrive is not None and arrive.pending == "SAFE":
        taken = _with_session(node, number)
        yield " (that it has come was noted)", plain._replace(session=taken.session, owner=taken.owner)


def _to(leave: Leave) -> tuple[int, int]:
    return leave.target, leave.number


# -- what actions and messages mean --


def _pending(events: str, **changes: bool) -> Callable[[MoveModel, ModelWorld, int], ModelWorld]:
    """It comes about by itself, later."""
    return lambda _model, world, number: _leave_with(world, number, pending=events, **changes)


def _nothing(_model: MoveModel, world: ModelWorld, _number: int) -> ModelWorld:
    """To the client: it comes when it comes."""
    return world


def _towards_target(what: str) -> Callable[[MoveModel, ModelWorld, int], ModelWorld]:
    return lambda model, world, number: model._to_target(world, number, what)


def _towards_source(what: str) -> Callable[[MoveModel, ModelWorld, int], ModelWorld]:
    return lambda model, world, number: model._to_source(world, number, what)


def _refuse(model: MoveModel, world: ModelWorld, number: int) -> ModelWorld:
    arrive = world.nodes[number].arrive
    return model._to_source(world, number, "MIGREFUSE", is_ahead=arrive is not None and arrive.is_ahead)


Act = Callable[[MoveModel, ModelWorld, int], ModelWorld]
_DOES: dict[str, Act | tuple[Act, Act]] = {
    "SEND_PULL": _towards_source("PULL"),
    "SEND_MIGTO": MoveModel._send_migto,
    "SEND_MIGTOACK": _towards_source("MIGTOACK"),
    "SEND_PAGE": MoveModel._send_page,
    "SEND_WHOLE": _towards_source("WHOLE"),
    "SEND_MIGACK": _towards_target("MIGACK"),
    "SEND_MIGABORT": _towards_target("MIGABORT"),
    "SEND_MIGREFUSE": _refuse,
    "CATCH_UP": _pending("CAUGHT_UP CAUGHT_UP_FIRST"),
    "SETTLE": _pending("SETTLED"),
    "CALL": _nothing,
    "DRAIN": _pending("DRAINED", is_draining=True),
    "OFFER_ANEW": MoveModel._offer_anew,
    "PART": _pending("PARTED"),
    "FREEZE": MoveModel._freeze,
    "NEXT_PAGE": MoveModel._next_page,
    "THAW": MoveModel._thaw,
    "NOTE_MOVED": _pending("SAFE"),
    "SEND_AWAY": _nothing,
    "STAGE": MoveModel._stage,
    "IMPORT": MoveModel._import,
    "ANNOUNCE": MoveModel._announce,
    "DROP": MoveModel._drop,
    "TELL_CLIENT": MoveModel._tell_client,
    "END": (MoveModel._end_leave, MoveModel._end_arrive),
}
"""By the name of the action; two where it depends on the side."""

_TAKERS: dict[str, Callable[[MoveModel, ModelWorld, int, int, ModelLetter], ModelWorld]] = {
    "PULL": MoveModel._pulled,
    "MIGTO": MoveModel._offered,
    "MIGTO at once": MoveModel._offered,
    "MIGTO called": MoveModel._offered,
    "MIGSYNC": MoveModel._for_arrival,
    "MIGSYNC_LAST": MoveModel._for_arrival,
    "MIGACK": MoveModel._for_arrival,
    "MIGABORT": MoveModel._for_arrival,
    "ABSENT": MoveModel._for_arrival,
    "MIGTOACK": MoveModel._for_departure,
    "MIGSYNCACK": MoveModel._for_departure,
    "WHOLE": MoveModel._for_departure,
    "MIGREFUSE": MoveModel._for_departure,
}
