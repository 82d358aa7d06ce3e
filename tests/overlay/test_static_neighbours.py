"""Static neighbours: what people name is dialled, changed as a whole or not at all, and told to the world once."""

from __future__ import annotations

from math import inf

import pytest

from sterna.overlay.neighbours import Overlay, checked_address
from sterna.overlay.static import NEIGHBOURS_MAX, StaticOverlay
from sterna.vocabulary.errors import ConfigurationError


class Dialler:
    """A world that remembers what it was told to hold."""

    def __init__(self) -> None:
        self.held: list[list[str]] = []

    def send_datagram(self, address: str, data: bytes) -> None:
        raise AssertionError("static neighbours need no datagrams")

    def send_discovery(self, data: bytes) -> None:
        raise AssertionError("static neighbours need no discovery")

    def drop_link(self, peer: str, reason: str) -> None: ...

    def hold_links(self, dial: dict[str, str]) -> None:
        assert list(dial) == list(dial.values())
        self.held.append(list(dial))

    def silent_s(self, peer: str) -> float:
        return inf

    def report(self, event: str, **fields: object) -> None:
        raise AssertionError(event)


def started(*neighbours: str) -> tuple[StaticOverlay, Dialler]:
    world = Dialler()
    overlay = StaticOverlay("here", neighbours, world)
    overlay.start()
    return overlay, world


def test_the_configured_neighbours_are_dialled_at_the_start_not_before() -> None:
    world = Dialler()
    overlay: Overlay = StaticOverlay("here", ("a:1", "b:2"), world)
    overlay.add("c:3")
    assert world.held == []
    overlay.start()
    assert world.held == [["a:1", "b:2", "c:3"]]


def test_several_neighbours_added_at_once_are_one_change() -> None:
    overlay, world = started("a:1")
    overlay.add("b:2", "c:3", "b:2")
    assert world.held[1:] == [["a:1", "b:2", "c:3"]]


def test_several_neighbours_removed_at_once_are_one_change() -> None:
    overlay, world = started("a:1", "b:2", "c:3")
    overlay.remove("a:1", "c:3")
    assert world.held[1:] == [["b:2"]]


def test_adding_what_is_there_disturbs_nothing() -> None:
    overlay, world = started("a:1")
    overlay.add("a:1")
    assert len(world.held) == 1


def test_one_bad_address_among_several_changes_nothing() -> None:
    overlay, world = started("a:1")
    with pytest.raises(ConfigurationError, match="no usable port"):
        overlay.add("b:2", "c:none")
    assert len(world.held) == 1
    assert overlay.view()["neighbours"] == ["a:1"]


def test_one_unknown_address_among_several_removes_nothing() -> None:
    overlay, world = started("a:1", "b:2")
    with pytest.raises(ConfigurationError, match="not known here: z:9; known: a:1, b:2"):
        overlay.remove("a:1", "z:9")
    assert len(world.held) == 1


def test_neighbours_are_bounded() -> None:
    overlay, _ = started()
    with pytest.raises(ConfigurationError, match="at most"):
        overlay.add(*(f"host{number}:1" for number in range(NEIGHBOURS_MAX + 1)))
    assert overlay.view()["neighbours"] == []


def test_any_authenticated_peer_may_link_but_not_a_namesake() -> None:
    overlay, _ = started()
    assert overlay.accepts("somebody") is None
    assert "a name of its own" in str(overlay.accepts("here"))


def test_the_view_shows_who_is_linked() -> None:
    overlay, _ = started("a:1")
    overlay.link_started("second")
    overlay.link_started("first")
    overlay.link_started("third")
    overlay.link_ended("third")
    overlay.link_ended("stranger")
    assert overlay.view() == {"overlay": "static", "neighbours": ["a:1"], "links": ["first", "second"]}


def test_datagrams_are_of_no_interest() -> None:
    overlay, world = started("a:1")
    overlay.datagram("a:1", b"anything")
    assert world.held == [["a:1"]]


def test_a_stopped_overlay_holds_nothing() -> None:
    overlay, world = started("a:1")
    overlay.stop()
    overlay.add("b:2")
    assert world.held[1:] == [[]]


@pytest.mark.parametrize("address", ["host:1", "10.0.0.1:65535", "[::1]:7883", "a.b-c.example:80"])
def test_an_address_is_host_and_port(address: str) -> None:
    assert checked_address(address) == address


@pytest.mark.parametrize(
    "address", ["", "host", ":1", "host:", "host:0", "host:65536", "host:+1", "ho st:1", "::1:80", "h" * 300 + ":1"]
)
def test_anything_else_is_not(address: str) -> None:
    with pytest.raises(ConfigurationError):
        checked_address(address)
