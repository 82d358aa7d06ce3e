"""The named readers of a network: who they are, how far behind, and forgetting one.  Needs no Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from sterna.pipeline.options import Access, ReadOptions
from sterna.pipeline.source.nodes import look_around, open_feed

_ADMIN = "sterna readers"
"""The name under which nodes are asked; it is registered nowhere."""


class ReaderAt(NamedTuple):
    """A reader at one node."""

    reader: str
    node: str
    started: int
    committed: int
    behind: int
    lost: int


class NetworkReaders(NamedTuple):
    readers: list[ReaderAt]
    missing: list[str]
    """Nodes that others know of and that do not answer."""


def readers_of(options: Mapping[str, str]) -> NetworkReaders:
    """`options` are those of the source: `nodes`, and how to be let in."""
    access, addresses = _way_in(options)
    network = look_around(access, addresses, all_of_them=True)
    found: list[ReaderAt] = []
    for seen in network.nodes.values():
        with open_feed(access, seen.address) as feed:
            known = feed.readers()
        found += [ReaderAt(one.name, seen.name, one.started, one.committed, one.behind, one.lost) for one in known]
    return NetworkReaders(sorted(found), sorted(network.missing))


def forget_reader(options: Mapping[str, str], name: str) -> NetworkReaders:
    """Those that were forgotten."""
    known = readers_of(options)
    access, addresses = _way_in(options)
    nodes = look_around(access, addresses, all_of_them=True).nodes
    forgotten = [one for one in known.readers if one.reader == name]
    for one in forgotten:
        with open_feed(replace(access, reader=name), nodes[one.node].address) as feed:
            feed.forget()
    return NetworkReaders(forgotten, known.missing)


def _way_in(options: Mapping[str, str]) -> tuple[Access, tuple[str, ...]]:
    parsed = ReadOptions.parse(options, streaming=False)
    return replace(parsed.access, reader=_ADMIN), parsed.nodes
