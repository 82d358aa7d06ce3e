"""Debian's Chromium, driven by Playwright: a page of a node's dashboard that fails the test on any error it shows.

Nothing is downloaded.  Where there is no Chromium, tests that need one are left out, but for CI.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, Error, Page, sync_playwright

from .left_out import leave_out

ROOT = Path(__file__).parents[2]
PATIENCE_MS = 60_000
WIDE, NARROW = (1280, 800), (390, 780)


@contextmanager
def chromium() -> Iterator[Browser]:
    program = shutil.which("chromium")
    if program is None:
        leave_out("there is no Chromium; as root: apt-get install chromium")
    with sync_playwright() as playwright:
        # Root has no sandbox; the pages are our own.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(
    browser: Browser, address: str, *, size: tuple[int, int] = WIDE, colours: Any = "light", errors: bool = True
) -> Iterator[Page]:
    """A page at an address, in a profile of its own.  With `errors`, an error in its console fails the test."""
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=colours)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    troubles: list[str] = []

    def said(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            troubles.append(f"{message.type}: {message.text}")

    def failed(error: Error) -> None:
        troubles.append(f"exception: {error}")

    page.on("console", said)
    page.on("pageerror", failed)
    try:
        page.goto(address)
        yield page
    finally:
        context.close()
    if errors:
        assert troubles == []


def axe_findings(page: Page) -> list[str]:
    """Findings of axe-core that are serious or worse."""
    source = ROOT / "dashboard" / "node_modules" / "axe-core" / "axe.min.js"
    if not source.exists():
        leave_out("axe-core is not installed: make .venv/dashboard")
    page.evaluate(source.read_text())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{one['id']}: {one['help']}: {[node['html'][:200] for node in one['nodes'][:3]]}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]


def paints_of(page: Page) -> dict[str, float]:
    """Milliseconds from the beginning of its way here to each paint, and until it was loaded."""
    found: dict[str, float] = page.evaluate(
        """() => ({
            ...Object.fromEntries(performance.getEntriesByType("paint").map(one => [one.name, one.startTime])),
            loaded: performance.getEntriesByType("navigation")[0].loadEventEnd,
        })"""
    )
    return found
