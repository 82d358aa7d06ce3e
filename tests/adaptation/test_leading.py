"""Which coordinator leads: one for each side of a cut, one when there is none, and the higher term when two meet."""

from __future__ import annotations

from random import Random

from sterna.adaptation.leading import CoordinatorLeadership, LeadingTuning
from sterna.adaptation.words import Leading

TUNING = LeadingTuning(say_s=1.0, lead_after_s=5.0, settle_s=4.0)


class Region:
    def __init__(self, *names: str) -> None:
        self.now = 0.0
        self.all = {
            name: CoordinatorLeadership(name, TUNING, Random(number), self.now)
            for number, name in enumerate(names, start=1)
        }
        self.sides: list[set[str]] = [set(names)]

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += 0.1
            for side in self.sides:
                for name in sorted(side):
                    word = self.all[name].tick(self.now)
                    if word is not None:
                        for other in side - {name}:
                            self.all[other].heard(name, word, self.now)

    def leaders(self) -> list[str]:
        return sorted(name for side in self.sides for name in side if self.all[name].is_leading)


def test_one_leads_and_the_others_stand_by_for_good() -> None:
    region = Region("a", "b", "c")
    region.run(10)
    (leader,) = region.leaders()
    changes = sum(one.changes for one in region.all.values())
    region.run(100)
    assert region.leaders() == [leader]
    assert sum(one.changes for one in region.all.values()) == changes


def test_a_leader_that_dies_is_followed_within_lead_after_s_and_a_half() -> None:
    region = Region("a", "b", "c")
    region.run(10)
    (leader,) = region.leaders()
    term = region.all[leader].term
    region.sides = [set(region.all) - {leader}]
    region.run(5.0 * 1.5 + 1)
    (next_leader,) = region.leaders()
    assert region.all[next_leader].term == term + 1


def test_a_new_leader_listens_before_it_acts() -> None:
    one = CoordinatorLeadership("a", TUNING, Random(1), 0.0)
    now = 0.0
    while not one.is_leading:
        now += 0.1
        one.tick(now)
    assert not one.may_act(now)
    assert one.may_act(now + 4.1)


def test_two_sides_of_a_cut_are_led_and_the_higher_term_goes_on_when_it_heals() -> None:
    region = Region("a", "b", "c", "d")
    region.run(10)
    region.sides = [{"a", "b"}, {"c", "d"}]
    region.run(20)
    assert len(region.leaders()) == 2
    region.sides = [set(region.all)]
    region.run(3)
    (leader,) = region.leaders()
    assert region.all[leader].term == max(one.term for one in region.all.values())


def test_a_coordinator_that_forgot_everything_learns_the_term_from_workers() -> None:
    one = CoordinatorLeadership("a", TUNING, Random(1), 0.0)
    one.learned(41)
    for step in range(100):
        one.tick(step / 10)
    assert (one.is_leading, one.term) == (True, 42)
    one.learned(50)
    assert one.term == 51


def test_all_remember_that_an_operator_froze_the_region() -> None:
    region = Region("a", "b")
    region.run(20)
    (leader,) = region.leaders()
    assert region.all[leader].may_act(region.now)
    region.all[leader].freeze(True)
    assert not region.all[leader].may_act(region.now)
    region.run(3)
    region.sides = [set(region.all) - {leader}]
    region.run(20)
    (other,) = region.leaders()
    assert region.all[other].frozen
    region.all[other].freeze(False)
    assert region.all[other].may_act(region.now)


def test_a_leader_does_not_heed_one_of_an_older_term_and_heeds_one_of_a_newer() -> None:
    one = CoordinatorLeadership("a", TUNING, Random(1), 0.0)
    one.learned(6)
    for step in range(100):
        one.tick(step / 10)
    assert (one.is_leading, one.term) == (True, 7)
    one.heard("z", Leading(6, frozen=True), 10.0)
    assert (one.leader, one.term, one.frozen) == ("a", 7, False)
    one.heard("z", Leading(7), 10.0)
    assert (one.leader, one.term) == ("z", 7)
    one.heard("b", Leading(7), 10.0)
    assert one.leader == "z"
