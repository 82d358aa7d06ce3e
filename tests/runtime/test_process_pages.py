"""Pages of a process group: what several processes say of themselves, as if one node had said it."""

from __future__ import annotations

from typing import Any

from sterna.migration.gateway_moves import GATEWAYS_SHOWN, GatewayPage, GatewaySummary
from sterna.runtime.processes.pages import merged_drains, merged_gateways, merged_migrations


def test_clients_of_a_gateway_at_several_processes_are_those_of_one() -> None:
    first = GatewayPage("plant", [GatewaySummary("g1", 2, 3, 1, 0), GatewaySummary("g2", 1, 1)], "", 4)
    second = GatewayPage("plant-2", [GatewaySummary("g1", 5, 7, 0, 2)], "", 1)
    whole = merged_gateways([first, second])
    assert whole == GatewayPage("plant", [GatewaySummary("g1", 7, 10, 1, 2), GatewaySummary("g2", 1, 1)], "", 5)


def test_no_page_tells_of_a_gateway_before_all_processes_have() -> None:
    """The first process has told up to b only: it may have more clients of c."""
    first = GatewayPage("plant", [GatewaySummary("a", 1), GatewaySummary("b", 1)], "b")
    second = GatewayPage("plant-2", [GatewaySummary("b", 1), GatewaySummary("c", 1)], "")
    whole = merged_gateways([first, second])
    assert [(one.gateway, one.clients) for one in whole.gateways] == [("a", 1), ("b", 2)]
    assert whole.more == "b"


def test_a_page_is_not_longer_than_that_of_one_process() -> None:
    pages = [
        GatewayPage(node, [GatewaySummary(f"{place}{number:04}", 1) for number in range(GATEWAYS_SHOWN)])
        for place, node in (("a", "plant"), ("b", "plant-2"))
    ]
    whole = merged_gateways(pages)
    assert len(whole.gateways) == GATEWAYS_SHOWN
    assert whole.more == whole.gateways[-1].gateway == f"a{GATEWAYS_SHOWN - 1:04}"


def test_the_node_is_drained_when_all_its_processes_are() -> None:
    one = {"node": "plant", "closed": True, "sessions": 0, "absent": ["x"], "drained": True}
    other = {"node": "plant-2", "closed": True, "sessions": 2, "absent": ["x", "y"], "drained": False}
    assert merged_drains([one, other]) == {
        "node": "plant", "closed": True, "sessions": 2, "absent": ["x", "y"], "drained": False,
    }  # fmt: skip
    assert merged_drains([one, one])["drained"] is True


def test_moves_of_all_processes_are_those_of_the_node() -> None:
    def view(node: str, left: int | None) -> dict[str, Any]:
        moves = [{"client": f"at-{node}"}]
        evacuation = None if left is None else {"total": 10, "left": left, "rate": 5.0}
        lists = {"leaving": moves, "arriving": [], "moved": moves, "not_moved": []}
        return {"node": node, **lists, "evacuation": evacuation, "counters": {"arrived": 2}}

    whole = merged_migrations([view("plant", 0), view("plant-2", 7), view("plant-3", None)])
    assert whole["node"] == "plant"
    assert [one["client"] for one in whole["leaving"]] == ["at-plant", "at-plant-2", "at-plant-3"]
    assert whole["evacuation"] == {"total": 20, "left": 7, "rate": 10.0}
    assert whole["counters"] == {"arrived": 6}
    assert merged_migrations([view("plant", None), view("plant-2", None)])["evacuation"] is None
