"""When an address is dialled again: each rule of `Dialling` by itself, on real links."""

from __future__ import annotations

from random import Random

from pipe import Pipe, Side, World, linked, pair, settings

from sterna.overlay.dialling import DIAL_MAX_S, DIAL_S, WORKED_S, Dialling

FAILURES = 8


class HighDice(Random):
    """They shorten no pause."""

    def uniform(self, a: float, b: float) -> float:
        return b


class Standby:
    """What node `side` knows about the others; links to some of them stand by."""

    def __init__(self, side: Side) -> None:
        self.links = side.links
        self.reasons: dict[str, str] = {}

    def stands_by(self, peer: str) -> str | None:
        assert peer, "nobody's name is known yet"
        return self.reasons.get(peer)


def dialling(side: Side, dice: Random | None = None) -> tuple[Dialling, Standby]:
    network = Standby(side)
    return Dialling(network, dice or HighDice()), network


def after_failures(subject: Dialling, count: int = FAILURES) -> list[float | None]:
    pauses = []
    for _ in range(count):
        subject.failed("connection refused")
        pauses.append(subject.pause_s())
    return pauses


def lose(world: World, pipe: Pipe, subject: Dialling, stood_s: float) -> None:
    subject.connected(world.time)
    world.run(stood_s)
    pipe.cut()
    subject.lost(pipe.dialled, world.time)


def test_an_address_that_fails_is_dialled_at_once_and_then_after_pauses_that_double_up_to_a_bound() -> None:
    _, a, _ = pair()
    subject, _ = dialling(a)
    assert after_failures(subject) == [0.0, DIAL_S, 2 * DIAL_S, 4 * DIAL_S, 8 * DIAL_S] + [DIAL_MAX_S] * (FAILURES - 5)


def test_pauses_differ_between_nodes_and_are_at_least_half_as_long() -> None:
    _, a, _ = pair()
    one, other = (after_failures(dialling(a, Random(seed))[0]) for seed in (1, 2))
    assert one != other
    assert all(pause is not None and DIAL_MAX_S / 2 <= pause <= DIAL_MAX_S for pause in (*one[5:], *other[5:]))


def test_a_link_that_had_worked_is_dialled_again_at_once() -> None:
    world, a, _, pipe = linked()
    subject, _ = dialling(a)
    after_failures(subject)
    lose(world, pipe, subject, WORKED_S + 0.1)
    assert subject.peer == "b"
    assert subject.trouble == ""
    assert subject.pause_s() == 0.0
    assert subject.pause_s() == DIAL_S


def test_a_link_that_breaks_again_and_again_is_dialled_ever_more_slowly() -> None:
    world, a, _, pipe = linked()
    subject, _ = dialling(a)
    after_failures(subject)
    lose(world, pipe, subject, WORKED_S / 2)
    assert subject.pause_s() == DIAL_MAX_S


def test_a_node_that_is_linked_by_a_connection_of_its_own_is_not_dialled_until_that_is_lost() -> None:
    world, a, b, pipe = linked()
    subject, _ = dialling(a)
    after_failures(subject)
    lose(world, pipe, subject, 0.1)
    theirs = Pipe(b, a)
    world.run(0.1)
    assert subject.is_linked
    assert subject.pause_s() is None
    theirs.cut()
    assert not subject.is_linked
    assert subject.pause_s() == 0.0, "at once"


def test_a_node_that_is_reached_another_way_is_not_dialled_and_people_are_told_why() -> None:
    world, a, _, pipe = linked()
    subject, network = dialling(a)
    lose(world, pipe, subject, 0.1)
    network.reasons["b"] = "it is reached through c"
    assert subject.pause_s() is None
    assert subject.trouble == "it is reached through c"
    network.reasons.clear()
    assert subject.pause_s() == 0.0


def test_the_same_failure_is_reported_once() -> None:
    _, a, _ = pair()
    subject, _ = dialling(a)
    assert [subject.failed(reason) for reason in ("refused", "refused", "no answer", "refused")] == [
        True,
        False,
        True,
        True,
    ]


def test_a_refusal_is_kept_for_people_and_its_node_gets_no_name() -> None:
    world = World()
    a, b = Side(world, settings("a")), Side(world, settings("b", key=b"another"), seed=1)
    pipe = Pipe(a, b)
    subject, _ = dialling(a)
    subject.connected(world.time)
    world.run(0.1)
    subject.lost(pipe.dialled, world.time)
    assert subject.trouble == "the nodes do not have the same network key"
    assert subject.peer == ""
    assert subject.pause_s() == 0.0
    assert subject.pause_s() == DIAL_S
