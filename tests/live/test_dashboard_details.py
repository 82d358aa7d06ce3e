"""Smaller parts of the dashboard in a real browser: drops, filters, pages, messages in flight, audits, colours.

Answers of the node are changed on their way only where a small network has none of the kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import msgspec
import pytest
from playwright.sync_api import Browser, Page, Route, expect

from sterna.runtime.feed.audit_outcomes import AuditedSubscription, AuditOutcome

from .browsers import axe_findings, chromium, opened
from .conftest import Join
from .networks import LiveNetwork
from .nodes import LiveNode
from .test_dashboard import address

pytestmark = pytest.mark.slow

PAGE = 50
"""Clients on a page."""
LEVEL = 200
"""Names of a level of the topic tree on a page."""
BEYOND = 5
KEPT = AuditOutcome(
    at=1_790_000_000.0,
    took_s=4.0,
    nodes=["a", "b"],
    not_audited=[],
    window="everything",
    subscriptions=3,
    violations=0,
    expected=100,
    delivered=100,
    waiting=0,
    dropped=0,
    lost=0,
    uncertain=0,
    duplicated=0,
    reordered=0,
    resent=0,
    max_ms=12.5,
)
BROKEN = msgspec.structs.replace(
    KEPT,
    at=KEPT.at + 60,
    violations=1,
    expected=1_234_567,
    lost=7,
    worst=[AuditedSubscription("meter", "b", "plant/+", 1, 10, 3, 7, 0, 0, violation=True)],
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNetwork]:
    with LiveNetwork(tmp_path_factory.mktemp("details"), ("ab",)) as network:
        yield network


def changed(page: Page, path: str, change: Callable[[dict[str, object]], object]) -> None:
    """Answers of the node, with a change."""

    def answer(route: Route) -> None:
        found = route.fetch()
        body = found.json()
        change(body)
        route.fulfill(response=found, json=body)

    page.route(f"**{path}*", answer)


def test_what_is_dropped_is_counted_by_reason_and_drawn(two: LiveNetwork, browser: Browser, join: Join) -> None:
    stranger = join(two["a"], client_id="stranger")
    with opened(browser, address(two["b"], "overview")) as page:
        chart = page.locator("figure", has_text="dropped")
        expect(chart.locator("polyline")).to_have_count(1)
        expect(chart.locator(".most")).to_have_text("max. 0.0/s")
        stranger.publish("$adaptation/secret", b"x", 0)  # only those whom the node names may do that
        row = page.get_by_role("region", name="Dropped messages").locator("tr", has_text="not-authorized")
        expect(row.locator("td").nth(1)).to_have_text("1")
        expect(chart.locator(".most")).to_have_text(re.compile(r"max\. .*[1-9].*/s"))
        expect(chart.locator(".axis")).to_have_text(re.compile("^[0-9]+ s ago ?now$"))
        assert axe_findings(page) == []


def test_clients_are_narrowed_by_state_and_node(two: LiveNetwork, browser: Browser, join: Join) -> None:
    join(two["a"], client_id="narrow-here")
    for name, topic in (("narrow-away", "nothing"), ("narrow-waits", "narrow")):
        gone = join(two["b"], client_id=name, persistent=True)
        gone.subscribe(topic, 1)
        gone.close()
    join(two["a"], client_id="narrow-publisher").publish("narrow", b"x", 1)
    with opened(browser, address(two["a"], "clients")) as page:
        page.get_by_label("Identifier or user").fill("narrow-")
        shown = page.locator("[data-client]")
        state, node = page.get_by_label("State"), page.get_by_label("Node")
        expect(shown).to_have_count(4)
        for value, names in (
            ("connected", ["narrow-here", "narrow-publisher"]),
            ("away", ["narrow-away", "narrow-waits"]),
            ("with messages waiting", ["narrow-waits"]),
        ):
            state.select_option(value)
            expect(shown).to_have_text([re.compile(f"^{name}") for name in names])
        state.select_option("moving")
        expect(page.get_by_text("No client is like that.")).to_be_visible()
        state.select_option("all")
        node.select_option("b")
        expect(shown).to_have_text([re.compile("^narrow-away"), re.compile("^narrow-waits")])
        node.select_option("a")
        expect(shown).to_have_text([re.compile("^narrow-here"), re.compile("^narrow-publisher")])


def test_many_clients_and_topics_are_turned_page_by_page(two: LiveNetwork, browser: Browser, join: Join) -> None:
    for number in range(PAGE + BEYOND):
        join(two["ab"[number % 2]], client_id=f"page-{number:03}", persistent=True).close()
    publisher = join(two["a"], client_id="printer")
    for number in range(LEVEL + BEYOND):
        publisher.publish(f"pages/{number:03}", b"x", 1, retain=True)
    with opened(browser, address(two["b"], "clients")) as page:
        before, after = page.get_by_role("button", name="← Before"), page.get_by_role("button", name="After →")
        page.get_by_label("Identifier or user").fill("page-")
        shown = page.locator("[data-client]")
        expect(shown).to_have_count(PAGE)
        expect(before).to_be_disabled()
        after.click()
        expect(shown).to_have_text([re.compile(f"^page-{number:03}") for number in range(PAGE, PAGE + BEYOND)])
        expect(after).to_be_disabled()
        before.click()
        expect(shown.first).to_have_attribute("data-client", "page-000")
        page.goto(address(two["b"], "topics"))
        page.get_by_role("button", name="Open pages", exact=True).click()
        names = page.locator('[data-path^="pages/"]')
        expect(names).to_have_count(LEVEL)
        after.click()
        expect(names).to_have_count(BEYOND)
        expect(names.last).to_have_attribute("data-path", f"pages/{LEVEL + BEYOND - 1:03}")
        expect(after).to_be_disabled()
        before.click()
        expect(names.first).to_have_attribute("data-path", "pages/000")


def test_messages_in_flight_are_shown_with_a_client(two: LiveNetwork, browser: Browser, join: Join) -> None:
    slow = join(two["a"], client_id="never-says-yes", manual_ack=True)
    slow.subscribe("flight/#", 1)
    join(two["b"], client_id="pilot").publish("flight/1", b"hello", 1)
    slow.receive(1)
    with opened(browser, address(two["b"], "clients")) as page:
        page.get_by_label("Identifier or user").fill("never-says")
        page.get_by_role("button", name="never-says-yes", exact=True).click()
        details = page.get_by_role("region", name="Client never-says-yes")
        row = details.get_by_role("region", name="Messages in flight").locator("tbody tr")
        expect(row).to_have_text(re.compile(r"^[1-9]\d*flight/11[1-9]\d* B$"))
        expect(details).to_contain_text("0 waiting, 1 in flight")


def test_a_message_is_published_with_its_qos_and_retained(two: LiveNetwork, browser: Browser, join: Join) -> None:
    with opened(browser, address(two["b"], "topics")) as page:
        form = page.get_by_role("form", name="Publish")
        form.get_by_label("Topic").fill("kept/by/the/page")
        form.get_by_label("Payload").fill("for later")
        form.get_by_label("QoS").select_option("2")
        form.get_by_label("retain").check()
        form.get_by_role("button", name="Publish").click()
        expect(form.get_by_role("status")).to_have_text("published to kept/by/the/page")
    late = join(two["a"], client_id="late")
    late.subscribe("kept/#", 2)
    (message,) = late.receive(1)
    assert (message.payload, message.qos, message.retain) == (b"for later", 2, True)


def test_a_sample_of_the_topic_tree_is_called_one(two: LiveNetwork, browser: Browser, join: Join) -> None:
    join(two["a"], client_id="sampled").publish("sampled/topic", b"x", 1, retain=True)

    def sampled(answer: dict[str, object]) -> None:
        answer.update(stride=4, left_out=12)

    with opened(browser, "about:blank") as page:
        changed(page, "/dashboard/topics", sampled)
        page.goto(address(two["a"], "topics"))
        tree = page.get_by_role("tree")
        expect(tree).to_contain_text("Sampled: one of 4 messages is looked at; rates are estimates.")
        expect(tree).to_contain_text("There was no room for 12 messages on further topics.")


def test_outcomes_of_audits_are_listed_with_the_worst_subscriptions(two: LiveNetwork, browser: Browser) -> None:
    outcomes = [msgspec.to_builtins(one) | {"node": "a"} for one in (KEPT, BROKEN)]
    with opened(browser, "about:blank") as page:
        page.route("**/dashboard/audits*", lambda route: route.fulfill(json={"rows": outcomes, "silent": []}))
        page.goto(address(two["a"], "spark"))
        rows = page.get_by_role("region", name="Audits").locator("tbody tr")
        expect(rows.first).to_contain_text("1 subscriptions broken")
        expect(rows.first).to_contain_text("1,234,567")
        expect(rows.last).to_contain_text("kept")
        worst = page.get_by_role("region", name="Audited subscriptions").locator("tbody tr")
        expect(worst).to_have_text(re.compile(r"^meterbplant/\+1.*broken"))
        assert axe_findings(page) == []


def test_the_button_of_colours_goes_round_and_is_remembered(node: LiveNode, browser: Browser) -> None:
    with opened(browser, address(node), colours="dark") as page:
        root, button = page.locator("html"), page.get_by_role("button", name="Colours")
        for name, theme in (("system", "dark"), ("light", "light"), ("dark", "dark"), ("system", "dark")):
            expect(button).to_have_accessible_name(f"Colours: {name}")
            expect(root).to_have_attribute("data-theme", theme)
            button.click()
        expect(root).to_have_attribute("data-theme", "light")
        page.reload()
        expect(button).to_have_accessible_name("Colours: light")
        expect(root).to_have_attribute("data-theme", "light")
