"""The choice of root and parent by itself: no circles however late adverts are, no faith in the dead, no fickleness."""

from __future__ import annotations

from random import Random

import pytest

from sterna.overlay.datagrams import NO_PATH, Advert, RootIdentity
from sterna.overlay.root_paths import REMEMBER_S, Offer, RootPaths
from sterna.overlay.tree_settings import TreeSettings

SETTINGS = TreeSettings(network="home", node="me", hop_s=0.0, change_s=0.002, change_ratio=0.2)
ROOT = RootIdentity(9.0, "root", 1)
LESSER = RootIdentity(5.0, "lesser", 2)


class Place:
    """One node's RootPaths and what its peers last said."""

    def __init__(self, name: str = "me", capability: float = 1.0) -> None:
        self.now = 0.0
        self.paths = RootPaths(RootIdentity(capability, name, 100), SETTINGS)
        self.said: dict[str, tuple[Advert, int]] = {}

    def hear(self, name: str, advert: Advert, round_trip_us: int) -> None:
        self.said[name] = (advert, round_trip_us)
        self.paths.heard(advert, self.now)

    def choose(self, *, passed_over: str = "", steady_s: float = 0.0) -> tuple[str, str | None, int]:
        offers = [Offer(name, advert, trip, name == passed_over) for name, (advert, trip) in self.said.items()]
        self.paths.choose(offers, self.now, stale_s=3.0, steady_s=steady_s)
        return self.paths.root.name, self.paths.parent, self.paths.cost_us


def own(root: RootIdentity, round_: int) -> Advert:
    return Advert(root, round_, 0, "")


def test_alone_a_node_is_the_root() -> None:
    assert Place().choose() == ("me", None, 0)


def test_the_shortest_way_to_the_best_root_is_taken() -> None:
    place = Place()
    place.hear("lesser", own(LESSER, 8), 10)
    place.hear("root", own(ROOT, 1), 50_000)
    place.hear("b", Advert(ROOT, 1, 20_000, "root"), 10_000)
    assert place.choose() == ("root", "b", 30_000)


def test_a_lesser_root_is_not_followed() -> None:
    place = Place(capability=7.0)
    place.hear("lesser", own(LESSER, 8), 10)
    assert place.choose() == ("me", None, 0)


def test_a_peer_that_leads_back_here_is_not_followed() -> None:
    place = Place()
    place.hear("b", Advert(ROOT, 1, 10, "me"), 10)
    assert place.choose() == ("me", None, 0)


def test_what_we_were_before_a_restart_is_not_followed() -> None:
    place = Place()
    place.hear("b", Advert(RootIdentity(1.0, "me", 99), 50, 10, "me-before"), 10)
    assert place.choose() == ("me", None, 0)


def test_within_a_round_nobody_further_away_than_we_were_is_followed() -> None:
    place = Place()
    place.hear("root", own(ROOT, 5), 10_000)
    assert place.choose() == ("root", "root", 10_000)
    del place.said["root"]
    place.hear("b", Advert(ROOT, 5, 15_000, "me-or-somebody-behind-me"), 100)
    assert place.choose() == ("root", None, NO_PATH)
    place.hear("b", Advert(ROOT, 6, 15_000, "root"), 100)
    assert place.choose() == ("root", "b", 15_100)


def test_a_node_that_has_lost_its_way_does_not_speak_for_the_rounds_of_the_root() -> None:
    """It has been there for longer than the root, which was frozen for a while.  Others believe the root's own rounds
    when it is back."""
    lost, other = Place("lost"), Place("other")
    for _ in range(50):
        lost.paths.next_round()
    lost.hear("root", own(ROOT, 5), 10_000)
    assert lost.choose() == ("root", "root", 10_000)
    del lost.said["root"]
    lost.hear("b", Advert(ROOT, 5, 15_000, "somebody"), 100)
    assert lost.choose() == ("root", None, NO_PATH)
    other.hear("root", own(ROOT, 5), 10_000)
    other.hear("lost", lost.paths.advert, 100)
    other.paths.died("root", ROOT.boot)
    assert other.choose() == ("other", None, 0)
    other.hear("root", own(ROOT, 6), 10_000)
    assert other.choose() == ("root", "root", 10_000)


def test_a_parent_that_gets_further_away_within_a_round_is_kept_until_the_next() -> None:
    place = Place()
    place.hear("b", Advert(ROOT, 5, 1_000, "root"), 100)
    assert place.choose() == ("root", "b", 1_100)
    place.hear("b", Advert(ROOT, 5, 9_000, "root"), 100)
    assert place.choose() == ("root", "b", 1_100)
    place.hear("b", Advert(ROOT, 6, 9_000, "root"), 100)
    assert place.choose() == ("root", "b", 9_100)


def test_a_root_whose_rounds_stop_is_given_up() -> None:
    place = Place()
    place.hear("b", Advert(ROOT, 5, 1_000, "root"), 100)
    place.choose()
    place.now = 3.1
    place.hear("b", Advert(ROOT, 5, 1_000, "root"), 100)
    assert place.choose() == ("me", None, 0)


def test_a_root_found_dead_is_believed_in_only_when_its_rounds_rise_again() -> None:
    place = Place()
    place.hear("b", Advert(ROOT, 5, 1_000, "root"), 100)
    place.paths.died("root", 1)
    assert place.choose() == ("me", None, 0)
    place.hear("b", Advert(ROOT, 6, 1_000, "root"), 100)
    assert place.choose() == ("root", "b", 1_100)


def test_an_earlier_life_of_a_root_is_never_believed_in_again() -> None:
    place = Place()
    place.paths.retired("root", 1, place.now)
    place.hear("b", Advert(ROOT, 5_000, 1_000, "root"), 100)
    place.hear("c", Advert(RootIdentity(9.0, "root", 77), 1, 3_000, "root"), 100)
    assert place.choose() == ("root", "c", 3_100)
    assert place.paths.root.boot == 77


@pytest.mark.parametrize(("nearer_us", "moves"), [(41_000, False), (39_000, True)])
def test_only_a_path_shorter_by_the_threshold_is_worth_a_move(nearer_us: int, moves: bool) -> None:
    place = Place()
    place.hear("root", own(ROOT, 5), 50_000)
    place.choose()
    place.hear("b", Advert(ROOT, 6, nearer_us - 10_000, "root"), 10_000)
    assert place.choose()[1] == ("b" if moves else "root")


def test_a_shorter_path_must_last() -> None:
    place = Place()
    place.hear("root", own(ROOT, 5), 50_000)
    place.choose()
    place.hear("b", Advert(ROOT, 6, 1_000, "root"), 1_000)
    assert place.choose(steady_s=1.0)[1] == "root"
    place.now = 0.9
    assert place.choose(steady_s=1.0)[1] == "root"
    place.now = 1.0
    assert place.choose(steady_s=1.0)[1] == "b"


def test_a_parent_passed_over_is_left_where_there_is_another_and_kept_where_there_is_none() -> None:
    place = Place()
    place.hear("root", own(ROOT, 5), 50_000)
    assert place.choose(passed_over="root")[1] == "root"
    place.hear("b", Advert(ROOT, 6, 60_000, "root"), 10_000)
    assert place.choose(passed_over="root")[1] == "b"


def test_roots_nobody_speaks_of_are_forgotten() -> None:
    place = Place()
    for boot in range(50):
        place.paths.heard(own(RootIdentity(9.0, "root", boot), 1), boot / 100)
    place.paths.forget(1.0 + REMEMBER_S)
    assert place.paths._known == {}


@pytest.mark.parametrize("seed", range(60))
def test_however_adverts_are_delayed_there_is_never_a_circle(seed: int) -> None:
    rng = Random(seed)
    names = [f"n{number}" for number in range(rng.randint(3, 9))]
    places = {name: Place(name, 9.0 if name == "n0" else 1.0) for name in names}
    posted: list[tuple[str, str, Advert]] = []
    for _ in range(400):
        name = rng.choice(names)
        if rng.random() < 0.05:
            places["n0"].paths.next_round()
        if rng.random() < 0.1 and places[name].said:
            places[name].said.pop(rng.choice(list(places[name].said)))
        posted += [(name, other, places[name].paths.advert) for other in names if other != name and rng.random() < 0.4]
        rng.shuffle(posted)
        for source, target, advert in [posted.pop() for _ in range(min(len(posted), rng.randint(0, 4)))]:
            places[target].hear(source, advert, rng.randint(1, 100_000))
            places[target].choose()
            assert no_circle(places), (seed, {at: place.paths.parent for at, place in places.items()})


def no_circle(places: dict[str, Place]) -> bool:
    """Following parents among those that follow the same root never leads back."""
    for name in places:
        way: list[str] = []
        at: str | None = name
        while at is not None:
            if at in way:
                return False
            way.append(at)
            parent = places[at].paths.parent
            at = parent if parent and places[parent].paths.root == places[at].paths.root else None
    return True
