"""Pictures of the dashboard: a network with everything in it, every page in light and dark, wide and narrow.

    DASHBOARD_PICTURES=docs/pictures pytest tests/live/test_dashboard_pictures.py     those of the documentation
    DASHBOARD_ALL_PICTURES=/tmp/pictures pytest ...                                   every page, to be looked at

Without either only `test_dashboard_town.py` draws those of the documentation, and throws them away.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect
from rich.console import Console

from sterna.cli.demo_town import DemoTown

from .browsers import PATIENCE_MS, ROOT, chromium, opened
from .test_dashboard import PAGES

TRACKED, EVERY = os.environ.get("DASHBOARD_PICTURES"), os.environ.get("DASHBOARD_ALL_PICTURES")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (TRACKED or EVERY), reason="no place for pictures is named"),
]

SIZES = {"wide": (1440, 900), "narrow": (390, 844)}
IN_DOCUMENTATION = {
    ("map", "wide", "light"),
    ("map", "wide", "dark"),
    ("map", "narrow", "light"),
    ("clients", "wide", "light"),
    ("topics", "wide", "dark"),
    ("adaptation", "wide", "light"),
    ("overview", "narrow", "dark"),
}
COLOURS = 256
"""Of a picture's palette: enough for pages, and a third of the size; `kmeans` keeps grounds as they are."""
MOMENTS_MS = 6000
"""Until charts and the map have something to show."""


@pytest.fixture(scope="module")
def town() -> Iterator[DemoTown]:
    over = threading.Event()
    with (
        tempfile.TemporaryDirectory(prefix="sterna-town-", dir="/tmp") as directory,  # its sockets need a short path
        DemoTown(Path(directory), Console(quiet=True)) as town,
    ):
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


def test_every_page_is_drawn(town: DemoTown, browser: Browser) -> None:
    for size in SIZES:
        for colours in ("light", "dark"):
            wanted = [name for name in PAGES if EVERY or (name, size, colours) in IN_DOCUMENTATION]
            places = {
                name: [Path(place) for place in (EVERY, _tracked(name, size, colours)) if place] for name in wanted
            }
            draw(town, browser, size, colours, places, MOMENTS_MS)


def _tracked(name: str, size: str, colours: str) -> str | None:
    return TRACKED if (name, size, colours) in IN_DOCUMENTATION else None


def draw(
    town: DemoTown, browser: Browser, size: str, colours: str, places: dict[str, list[Path]], moments_ms: float
) -> None:
    """Pages, each kept at its places."""
    with opened(browser, town.door, size=SIZES[size], colours=colours) as page:
        expect(page.locator("[data-node]")).to_have_count(5)
        for name, folders in places.items():
            page.goto(f"{town.door}#/{name}")
            _open_something(page, name, is_wide=size == "wide")
            page.wait_for_timeout(moments_ms if name in ("map", "overview") else moments_ms / 3)
            for folder in folders:
                _keep(page, ROOT / folder, f"dashboard-{name}-{size}-{colours}.png")


def _open_something(page: Page, name: str, *, is_wide: bool) -> None:
    if name == "clients" and is_wide:
        page.get_by_label("Identifier or user").fill("s")
        page.get_by_role("button", name="night-shift-0", exact=True).click()
    if name == "topics":
        for topic in ("plant", "plant/oven", "plant/oven/001"):
            page.get_by_role("button", name=f"Open {topic}", exact=True).click(timeout=PATIENCE_MS)
        page.locator('[data-topic="plant/oven/001/temp"] .link').click(timeout=PATIENCE_MS)


def _keep(page: Page, folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    page.screenshot(path=str(file))
    with Image.open(file) as drawn:
        few = drawn.convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE)
    few.save(file, optimize=True)
