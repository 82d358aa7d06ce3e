"""How the driver keeps an eye on nodes: each is asked again and again, and all together not too often."""

from __future__ import annotations

import pytest

from sterna.pipeline.options import Access
from sterna.pipeline.source.nodes import ANSWERS_MAX, OffsetWatch


@pytest.mark.parametrize(("nodes", "breath_s"), [(1, 0.05), (25, 0.05), (100, 0.2), (1_000, 2.0)])
def test_a_driver_hears_of_many_nodes_no_oftener_than_of_a_few(nodes: int, breath_s: float) -> None:
    watch = OffsetWatch(Access(), [], breath_s=0.05)
    watch._watched.update(f"127.0.0.1:{port}" for port in range(nodes))
    assert watch._breath() == pytest.approx(breath_s)
    assert nodes / watch._breath() <= ANSWERS_MAX
