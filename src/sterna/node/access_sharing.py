"""Keeps the register of bans, users and access rules the same at every node of a network.

A change goes to every node that can be reached at once, as a question of `management.py`.  A node that was away gets it
when it is found again: nodes compare digests of their registers, and send each other their entries if these differ.
Letters may get lost, so each node also compares with one other every `COMPARED_S`.  Nodes of a release without a
register are left out.
"""

from __future__ import annotations

from typing import Annotated, Protocol

import msgspec

from sterna.broker import administration
from sterna.broker.access.access_register import AccessEntry, checked, encoded
from sterna.broker.broker import Broker
from sterna.vocabulary.errors import LinkProtocolError

COMPARED_S = 10.0
AGAIN_S = 1.0
"""A node that was found may not know the way back yet, and then takes no letter: it gets another one so much later."""
PAGE_BYTES_MAX = 64 * 1024
PAGE_ENTRIES_MAX = 1000
SHARED_SINCE = 13
"""The version of links from which on nodes have a register."""


class RegisterDigest(msgspec.Struct, tag=3, array_like=True, frozen=True):
    """Sent to compare."""

    digest: Annotated[bytes, msgspec.Meta(max_length=16)]
    is_answer: bool
    """The other has compared already, and sent its entries."""


class RegisterPage(msgspec.Struct, tag=4, array_like=True, frozen=True):
    """Entries of a register that differs."""

    entries: Annotated[list[AccessEntry], msgspec.Meta(max_length=PAGE_ENTRIES_MAX)]


class OtherNodes(Protocol):
    """The rest of the network."""

    def reachable(self) -> list[str]: ...

    def version_of(self, node: str) -> int:
        """The newest version of links that it understands."""

    def send(self, to: str, body: bytes) -> bool:
        """False if there is no way to it."""


_encode = msgspec.msgpack.Encoder().encode


class AccessSharing:
    def __init__(self, broker: Broker, others: OtherNodes) -> None:
        self._broker = broker
        self._register = broker.access.register
        self._others = others
        self._compared = 0
        self._is_comparing = False
        #: Nodes that were found just now.
        self._again: dict[str, None] = {}
        self.compare_regularly()

    def found(self, node: str) -> None:
        """A node can be reached, or by another way."""
        if not len(self._register):
            return
        self._compare_with(node)
        if not self._again:
            self._broker.deadlines.at(self._broker.now + AGAIN_S, self._compare_again)
        self._again[node] = None

    def _compare_again(self) -> None:
        again, self._again = self._again, {}
        for node in again:
            self._compare_with(node)

    def _compare_with(self, node: str) -> None:
        if self._others.version_of(node) >= SHARED_SINCE:
            self._others.send(node, _encode(RegisterDigest(self._register.digest(), is_answer=False)))

    def digest_came(self, sender: str, word: RegisterDigest) -> None:
        if word.digest == self._register.digest():
            return
        if not word.is_answer:
            self._others.send(sender, _encode(RegisterDigest(self._register.digest(), is_answer=True)))
        self._send_all(sender)

    def page_came(self, page: RegisterPage) -> None:
        try:
            entries = [checked(entry) for entry in page.entries]
        except ValueError as error:
            raise LinkProtocolError(f"not an entry of the register: {error}") from error
        administration.take(self._broker, entries)
        self.compare_regularly()

    def _send_all(self, to: str) -> None:
        page: list[AccessEntry] = []
        size = 0
        for entry in self._register.entries():
            size += len(encoded(entry))
            if page and (size > PAGE_BYTES_MAX or len(page) >= PAGE_ENTRIES_MAX):
                self._others.send(to, _encode(RegisterPage(page)))
                page, size = [], len(encoded(entry))
            page.append(entry)
        if page:
            self._others.send(to, _encode(RegisterPage(page)))

    def compare_regularly(self) -> None:
        """From the first entry on."""
        if len(self._register) and not self._is_comparing:
            self._is_comparing = True
            self._broker.deadlines.at(self._broker.now + COMPARED_S, self._compare)

    def _compare(self) -> None:
        reachable = sorted(self._others.reachable())
        if reachable:
            self._compared += 1
            self._compare_with(reachable[self._compared % len(reachable)])
        self._is_comparing = False
        self.compare_regularly()
