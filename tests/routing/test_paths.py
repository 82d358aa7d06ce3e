"""Announcements: what they say about the ways, and about who else has our name."""

from __future__ import annotations

from sterna.routing.link_frames import Announce
from sterna.routing.paths import Paths


class Neighbours:
    """The rest of a router, with two links; it notes what it is told."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.namesakes: list[str] = []
        self.changed: list[tuple[str, str]] = []
        self.left: list[tuple[str, str]] = []

    def links(self) -> list[str]:
        return ["B", "C"]

    def session_of(self, link: str) -> int:
        return ord(link)

    def send(self, link: str, kind: int, body: bytes) -> None:
        self.sent.append(link)

    def path_changed(self, origin: str, link: str) -> None:
        self.changed.append((origin, link))

    def path_left(self, origin: str, link: str) -> None:
        self.left.append((origin, link))

    def path_lost(self, origin: str) -> None: ...
    def shares_announced(self, origin: str, shares: list[tuple[bytes, int]]) -> None: ...
    def ring_found(self, one: str, other: str) -> None: ...
    def asked(self) -> None: ...
    def namesake_found(self, link: str) -> None:
        self.namesakes.append(link)


def announcement(origin: str, epoch: int, number: int) -> Announce:
    return Announce(origin, epoch, number, 0, False, [], "", "")


def test_an_announcement_is_passed_on_once_and_shows_the_way() -> None:
    around = Neighbours()
    paths = Paths("A", 7, around, "", "")
    for _ in range(2):
        paths.announced("B", announcement("D", 1, 1))
    assert around.changed == [("D", "B")]
    assert around.sent == ["C"]
    assert paths.link_to("D") == "B"
    assert around.left == []
    paths.announced("C", announcement("D", 1, 2))
    assert around.left == [("D", "B")]


def test_a_node_that_says_what_we_never_said_has_our_name() -> None:
    around = Neighbours()
    paths = Paths("A", 7, around, "", "")
    paths.announce([], ask=False)
    paths.announced("B", announcement("A", 7, 1))  # our own, come round
    paths.announced("B", announcement("A", 6, 9))  # of an earlier life
    assert around.namesakes == []
    paths.announced("C", announcement("A", 7, 2))
    paths.announced("C", announcement("A", 8, 1))
    assert around.namesakes == ["C", "C"]
    assert paths.link_to("A") is None
