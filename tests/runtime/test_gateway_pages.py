"""The answers of a gateway's admin port."""

from __future__ import annotations

import json

from gateway.model_client import ModelClient
from gateway.town import Town
from sterna.cli.clients import described
from sterna.gateway.gateway import Gateway
from sterna.runtime.admin.site import Answer, Guard, Request
from sterna.runtime.gateway.pages import GATEWAY
from sterna.runtime.reloading import ReloadOutcome


class Observed:
    def __init__(self, gateway: Gateway, reason: str | None = None) -> None:
        self.gateway = gateway
        self.certificates = {"127.0.0.1:8883": 2e9, "upstream": 3e9}
        self._reason = reason

    def why_not_ready(self) -> str | None:
        return self._reason

    async def reload(self) -> ReloadOutcome:
        raise NotImplementedError

    def measuring_view(self) -> dict[str, object] | None:
        return None


def body(page: str, observed: Observed, status: int = 200, method: str = "GET", guard: Guard | None = None) -> str:
    said = GATEWAY.answer(Request(method, page, {}), observed, guard or Guard())
    assert isinstance(said, Answer)
    assert said.status == status
    return said.body.decode()


def test_every_page_it_lists_answers() -> None:
    observed = Observed(Town().gateway)
    listed = [line.split()[0] for line in body("/", observed).splitlines() if line.startswith("/")]
    assert listed == ["/metrics", "/healthz", "/readyz", "/clients", "/measuring", "/reload"]
    for page in listed[:-1]:
        assert body(page, observed)
    assert body("/reload", observed, 405) == "only POST\n"


def test_metrics_count_what_happened_and_clients_say_where_they_are() -> None:
    town = Town()
    client = ModelClient(town)
    client.connect()
    client.publish(b"m", 1)
    town.wire().cut()
    observed = Observed(town.gateway)
    assert "sterna_gateway_losses_total 1.0" in body("/metrics", observed)
    assert 'sterna_certificate_expiry_timestamp_seconds{listener="upstream"} 3e+09' in body("/metrics", observed)
    assert "sterna_gateway_clients 1.0" in body("/metrics", observed)
    assert "sterna_gateway_attached 0.0" in body("/metrics", observed)
    (view,) = json.loads(body("/clients", observed))
    assert (view["client"], view["node"], view["unanswered"]) == ("c", None, 1)
    assert described(view) == f"c\tno node\tthrough this gateway, 1 not answered\t{view['address']}, MQTT 5"
    client.talk(1)
    (view,) = json.loads(body("/clients", observed))
    assert (view["node"], view["unanswered"]) == ("a:1", 0)


def test_whoever_takes_it_for_a_node_is_told() -> None:
    observed = Observed(Town().gateway)
    for page, method in (("/move", "POST"), ("/evacuate", "POST"), ("/migrations", "GET"), ("/network", "GET")):
        assert "admin port of a gateway" in body(page, observed, 404, method)


def test_it_says_when_it_is_not_ready_and_changes_nothing() -> None:
    observed = Observed(Town().gateway, "stopping")
    assert "stopping" in body("/readyz", observed, 503)
    body("/nothing", observed, 404)
    body("/clients", observed, 405, "POST")
    body("/clients", observed, 401, guard=Guard(b"s" * 16, open_to_readers=False))
    body("/healthz", observed, 200, guard=Guard(b"s" * 16, open_to_readers=False))
