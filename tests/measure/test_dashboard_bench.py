"""`sterna bench dashboard`, small: its network is as large as it says, and its pages are open when they are to be."""

from __future__ import annotations

import json

import pytest

from sterna.measure.errors import MeasurementError
from sterna.measure.harness.ports import free_port
from sterna.measure.workloads.dashboard.bench import PAGES, page_rows
from sterna.measure.workloads.dashboard.crowded_network import crowded_network, topic
from sterna.measure.workloads.dashboard.open_pages import CLIENTS, MAP, TOPICS, answer_to, open_pages

CLIENTS_THERE, TOPICS_THERE = 20, 40


@pytest.mark.slow
def test_its_network_has_what_the_pages_are_asked_about() -> None:
    with crowded_network(CLIENTS_THERE, TOPICS_THERE, None) as network:
        rows = page_rows(network, CLIENTS_THERE, TOPICS_THERE)
        assert len(rows) == len(PAGES) + 1
        assert all(row.figure is not None and row.figure > 0 for row in rows)
        clients = json.loads(answer_to(network.admin, "/dashboard/clients?text=client-"))["rows"]
        assert {row["node"] for row in clients} == {"n1", "n2"}
        assert len(clients) == CLIENTS_THERE
        with open_pages(network.admin, (MAP, CLIENTS, TOPICS)) as pages:
            while not all(page.pictures for page in pages) or not all(
                page.answers > len(polled) for page, polled in zip(pages[1:], (CLIENTS, TOPICS), strict=True)
            ):
                assert not any(page.trouble for page in pages)


def test_a_page_that_never_gets_a_picture_is_a_failure() -> None:
    with pytest.raises(MeasurementError, match="a page broke"), open_pages(free_port(), (MAP,)):
        pass


def test_half_of_the_topics_are_on_one_level() -> None:
    topics = [topic(number) for number in range(1000)]
    assert len(set(topics)) == 1000
    assert sum(one.startswith("flat/") for one in topics) == 500
