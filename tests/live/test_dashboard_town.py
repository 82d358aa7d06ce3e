"""The pages of a network with everything in it are filled: a worker, pressure, a job with lag, a foreign broker, ..."""

from __future__ import annotations

import json
import re
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, FloatRect, Locator, Page, expect
from rich.console import Console

from sterna.cli.demo_mosquitto import find_mosquitto
from sterna.cli.demo_town import EXPRESSIONS, NAMES, DemoTown
from sterna.pipeline.feed.client import FeedClient

from .browsers import NARROW, ROOT, WIDE, axe_findings, chromium, opened, paints_of
from .test_dashboard import PAGES, go
from .test_dashboard_pictures import IN_DOCUMENTATION, draw

pytestmark = pytest.mark.slow

ROAMING = 20
JOB = "counts-of-orders"
"""A reader of a node's feed that is registered and reads nothing."""
SOME = re.compile(r"[1-9]")


@pytest.fixture(scope="module")
def town() -> Iterator[DemoTown]:
    over = threading.Event()
    with (
        tempfile.TemporaryDirectory(prefix="sterna-town-", dir="/tmp") as directory,  # its sockets need a short path
        DemoTown(Path(directory), Console(quiet=True), roaming=ROAMING, with_spark=False) as town,
        FeedClient(town.nodes["oslo"].feed, JOB) as job,
    ):
        job.register(0)
        living = threading.Thread(target=town.live, args=(over.is_set,))
        living.start()
        try:
            yield town
        finally:
            over.set()
            living.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.mark.parametrize(("size", "colours"), [(WIDE, "light"), (NARROW, "dark")], ids=["wide", "narrow"])
def test_every_page_is_filled_and_for_everybody(
    town: DemoTown, browser: Browser, size: tuple[int, int], colours: str
) -> None:
    """Everybody: axe finds nothing serious, and no page is wider than the screen."""
    with opened(browser, town.door, size=size, colours=colours) as page:
        expect(page.locator('[data-node="oslo"]')).to_be_visible()
        print(", ".join(f"{name} after {ms:.0f} ms" for name, ms in paints_of(page).items()))
        for name in PAGES:
            go(page, name)
            expect(page.get_by_role("heading", level=1)).to_have_text(re.compile(name, re.IGNORECASE))
            FILLED.get(name, _only_there)(page)
            assert axe_findings(page) == [], name
            overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert overflow <= 0, f"{name} is wider than the screen"


CUT_LINES = """() => {
    const isCut = (label) => {
        const line = document.querySelector(`[data-line="${label.dataset.link}"] line`);
        const place = line.getScreenCTM();
        const at = (x, y) => new DOMPoint(line[x].baseVal.value, line[y].baseVal.value).matrixTransform(place);
        const [from, to, box] = [at("x1", "y1"), at("x2", "y2"), label.getBoundingClientRect()];
        for (let share = 0; share <= 1; share += 0.002) {
            const [x, y] = [from.x + (to.x - from.x) * share, from.y + (to.y - from.y) * share];
            if (x > box.left && x < box.right && y > box.top && y < box.bottom) return true;
        }
        return false;
    };
    return [...document.querySelectorAll("[data-link]")].filter(isCut).map(label => label.dataset.link);
}"""
"""Links that pass through their own labels."""


def test_labels_of_links_tell_round_trip_and_traffic_and_cover_nothing(town: DemoTown, browser: Browser) -> None:
    with opened(browser, f"{town.door}#/map") as page:
        links = page.locator("[data-link]")
        expect(links).to_have_count(len(NAMES) - 1)
        for link in links.all():
            expect(link).to_contain_text(re.compile(r"[\d.]+ ms"))
            expect(link).to_contain_text(re.compile(r"[1-9][\d.]* (B|KiB|MiB)/s"))
        marks = [*_boxes(page.locator("[data-node] .body")), *_boxes(page.locator("[data-other] .body"))]
        labels = _boxes(links)
        assert [(one, other) for one in labels for other in marks if _overlap(one, other)] == []
        assert page.evaluate(CUT_LINES) == []
        layers = page.locator("svg.map > g")
        expect(layers).to_have_count(3)
        assert layers.nth(0).locator("text").count() == 0, "words are above all lines"
        assert layers.nth(2).locator("line").count() == 0


def test_pictures_of_the_documentation_can_be_drawn(town: DemoTown, browser: Browser, tmp_path: Path) -> None:
    """`test_dashboard_pictures.py` draws them in a larger town, for people."""
    for size, colours in sorted({(size, colours) for _, size, colours in IN_DOCUMENTATION}):
        names = sorted(name for name, *how in IN_DOCUMENTATION if how == [size, colours])
        draw(town, browser, size, colours, {name: [tmp_path] for name in names}, moments_ms=0)
    drawn = {file.name for file in tmp_path.iterdir()}
    assert drawn == {f"dashboard-{'-'.join(one)}.png" for one in IN_DOCUMENTATION}
    in_documentation = (ROOT / "docs" / "pictures").glob("dashboard-*.png")
    assert {file.name for file in in_documentation} == drawn


def test_what_waits_for_a_node_that_is_away_is_shown_and_who_carries_it(town: DemoTown, browser: Browser) -> None:
    """The picture of the town, with a boat that left it: rows as nodes that move tell them."""
    with urllib.request.urlopen(f"{town.door}dashboard/picture", timeout=30) as answer:
        picture = json.load(answer)
    for row in picture["nodes"]:
        row["absent"] = ["boat"]
        row["away"] = {"boat": {"away_s": 90.0, "waiting": 21, "oldest_s": 75.0}}
    picture["nodes"][0]["carried"] = {
        "carry": "parked",
        "messages": 7,
        "bytes": 2048,
        "oldest_s": 75.0,
        "handed_on": 3,
        "evicted": 1,
        "for": ["boat"],
    }
    with opened(browser, "about:blank") as page:
        event = f"event: picture\ndata: {json.dumps(picture)}\n\n"
        page.route("**/dashboard/events", lambda route: route.fulfill(body=event, content_type="text/event-stream"))
        page.goto(f"{town.door}#/waiting")
        absent = page.get_by_role("region", name="Nodes that cannot be reached").locator("tbody tr")
        expect(absent).to_contain_text("boat")
        expect(absent).to_contain_text("1 min 30 s ago")
        expect(absent).to_contain_text(f"{21 * len(NAMES)} messages, the first for 1 min 15 s")
        expect(absent.locator("td").last).to_have_text(picture["nodes"][0]["node"])
        carried = page.get_by_role("region", name="Carried for others").locator("tbody tr")
        expect(carried).to_have_text(re.compile(r"boat7\s*2.00 KiB.*1 min 15 s31$"))


def _boxes(what: Locator) -> list[FloatRect]:
    return [box for one in what.all() if (box := one.bounding_box()) is not None]


def _overlap(one: FloatRect, other: FloatRect) -> bool:
    """By more than a pixel."""
    return (
        min(one["x"] + one["width"], other["x"] + other["width"]) > max(one["x"], other["x"]) + 1
        and min(one["y"] + one["height"], other["y"] + other["height"]) > max(one["y"], other["y"]) + 1
    )


def _only_there(_page: Page) -> None:
    """A page that has no part in the town."""


def _map(page: Page) -> None:
    for name in NAMES:
        expect(page.locator(f'[data-node="{name}"]')).to_contain_text(re.compile("[1-9][0-9]* client"))
    expect(page.locator('[data-node="oslo"] .root')).to_have_count(1)
    expect(page.locator(".map .root")).to_have_count(1)
    for worker in NAMES[3:]:
        expect(page.locator(f'.worker[data-other="{worker}"]')).to_have_count(1)
        expect(page.locator(f'[data-node="{worker}"] .gauge title')).to_contain_text("further node starts above 1.0")
    for gateway in ("gate-1", "gate-2"):
        expect(page.locator(f'.gateway[data-other="{gateway}"]')).to_contain_text(gateway)
    expect(page.locator('.coordinator[data-other="chief"]')).to_contain_text("chief")
    if find_mosquitto():
        expect(page.locator(".foreign[data-other]")).to_contain_text("Mosquitto")
        expect(page.locator(".foreign.error")).to_have_count(0)
    expect(page.locator(".moves-seen li:not(.none)").first).to_contain_text("→")


def _overview(page: Page) -> None:
    for title in ("from clients", "to clients", "payload in", "results of expressions"):
        chart = page.locator("figure", has_text=title)
        expect(chart.locator(".most")).to_have_text(re.compile(r"max\. .*[1-9]"))
        expect(chart.locator("polyline")).to_have_count(1)
    expect(page.get_by_role("region", name="Nodes", exact=True).locator("tbody tr")).to_have_count(len(NAMES))


def _clients(page: Page) -> None:
    page.get_by_label("Identifier or user").fill("chief")
    expect(page.get_by_text("No client is like that.")).to_be_visible()
    page.get_by_label("State").select_option("control lines")
    expect(page.locator("[data-client]")).to_contain_text("coordinator-chief")
    page.get_by_label("State").select_option("all")
    page.get_by_label("Identifier or user").fill("night")
    expect(page.locator("[data-client]")).to_have_count(3)
    page.get_by_role("button", name="night-shift-0", exact=True).click()
    shown = page.get_by_role("region", name="Client night-shift-0")
    orders = page.locator('[data-client="night-shift-0"]').get_by_role("button", name="Ban night-shift-0")
    frame = page.get_by_role("region", name="List of clients").bounding_box()
    button = orders.bounding_box()
    assert frame is not None
    assert button is not None
    size = page.viewport_size
    if size is not None and size["width"] == WIDE[0]:
        assert button["x"] + button["width"] <= frame["x"] + frame["width"], "orders can be seen beside the details"
    expect(shown).to_contain_text("plant/+/orders")
    expect(shown.get_by_role("region", name="Queue").locator("tbody tr").first).to_contain_text("/orders")


def _topics(page: Page) -> None:
    page.get_by_role("button", name="Open plant", exact=True).click()
    page.get_by_role("button", name="Open plant/oven", exact=True).click()
    page.get_by_role("button", name="Open plant/oven/001", exact=True).click()
    expect(page.locator('[data-topic="plant/oven/001/state"]')).to_contain_text("retained")


def _moves(page: Page) -> None:
    expect(page.get_by_role("region", name="Last moves").locator("tbody tr").first).to_contain_text(SOME)


def _waiting(page: Page) -> None:
    expect(page.get_by_text(f"{len(NAMES)} nodes reach each other")).to_be_visible()
    sessions = page.get_by_role("region", name="Sessions with messages")
    expect(sessions.get_by_role("row", name=re.compile("night-shift-0 porto .?away [1-9]"))).to_be_visible()


def _adaptation(page: Page) -> None:
    expect(page.get_by_text("coordinator chief leads")).to_be_visible()
    expect(page.get_by_text("started where the pressure stays above 1, and stopped")).to_be_visible()
    for worker in NAMES[3:]:
        row = page.locator(f'tr[data-worker="{worker}"]')
        expect(row).to_contain_text("serving, fixed")
        expect(row.locator(".pressure > span")).to_have_text(re.compile(r"[0-9]"))


def _computing(page: Page) -> None:
    for expression in EXPRESSIONS:
        row = page.get_by_role("region", name="Expressions").locator("tr", has_text=expression)
        messages, state = row.locator("td").nth(3), row.locator("td").nth(4)
        expect(messages).to_have_text(SOME)
        expect(state).to_have_text(re.compile("[1-9].* (B|KiB)"))


def _spark(page: Page) -> None:
    job = page.get_by_role("region", name="Jobs").locator("tr", has_text=JOB)
    expect(job).to_contain_text("reading")
    expect(job).to_contain_text(re.compile("oslo [1-9]"))
    expect(page.get_by_role("region", name="Feeds").locator("tbody tr")).to_have_count(len(NAMES))


def _settings(page: Page) -> None:
    page.get_by_label("Node").select_option("turin")
    page.get_by_label("Name").fill("interworking.name" if find_mosquitto() else "network.name")
    expect(page.get_by_role("region", name="Settings")).to_contain_text("Mosquitto" if find_mosquitto() else "demo")


FILLED: dict[str, Callable[[Page], None]] = {
    "map": _map,
    "overview": _overview,
    "clients": _clients,
    "topics": _topics,
    "moves": _moves,
    "waiting": _waiting,
    "adaptation": _adaptation,
    "computing": _computing,
    "spark": _spark,
    "settings": _settings,
}
