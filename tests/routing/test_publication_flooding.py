"""Publication flooding: all links want everything, always, and not a word is said about it."""

from __future__ import annotations

import pytest
from wood import Wood

from sterna.routing.strategies import STRATEGIES, make_strategy
from sterna.vocabulary.errors import ConfigurationError, LinkProtocolError


def test_every_link_wants_every_topic_and_nothing_is_said() -> None:
    wood = Wood(3, "publication-flooding")
    wood.join("b", "c")
    wood.join("b", "a")
    wood["a"].want(b"x")
    wood["a"].unwant(b"x")
    wood.rest()
    assert wood["b"].strategy.links_for(b"$any/topic") == ["a", "c"]
    assert wood["b"].strategy.everything()
    assert wood.sent == []


def test_a_link_that_ended_wants_nothing() -> None:
    wood = Wood(2, "publication-flooding")
    wood.join("a", "b")
    wood["a"].own_topics[b"x"] = None
    wood.cut("a", "b")
    assert wood["a"].strategy.links_for(b"x") == []
    assert wood["a"].own_topics == {}, "what was remembered about topics is dropped"
    assert wood["a"].strategy.table() == {"strategy": "publication-flooding", "links": {}}


def test_a_routing_frame_makes_no_sense_here() -> None:
    wood = Wood(2, "publication-flooding")
    wood.join("a", "b")
    with pytest.raises(LinkProtocolError, match="floods publications"):
        wood["a"].strategy.receive("b", b"\1\0\1x")


def test_a_strategy_that_does_not_exist_is_refused_with_the_names_of_those_that_do() -> None:
    wood = Wood(2, "publication-flooding")
    with pytest.raises(ConfigurationError, match="advertisement") as refused:
        make_strategy("gossip", "a", wood["a"], now=lambda: 0.0, schedule=wood.schedule)
    assert all(name in str(refused.value) for name in STRATEGIES)
