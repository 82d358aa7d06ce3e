"""The blocks of the page about Spark, for the tests that run them."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs/pipeline.md").read_text()
FEED, BROKER = "127.0.0.1:7885", "127.0.0.1:1883"


def snippets(kind: str, beginning: str = "") -> list[str]:
    found = re.findall(rf"^```{kind}\n({re.escape(beginning)}.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"no {kind} snippet on the page"
    return found
