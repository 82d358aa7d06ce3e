"""The documentation site is built without a warning: every page is in its navigation, every link and heading exists."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from live.left_out import leave_out

ROOT = Path(__file__).parents[2]
MKDOCS = ROOT / ".venv/docs/bin/mkdocs"

pytestmark = pytest.mark.slow


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """Without the tools of `make docs`, the pages at least can be put together."""
    pages = tmp_path / "pages"
    made = subprocess.run(
        [sys.executable, ROOT / "scripts/docs-pages", pages], capture_output=True, text=True, timeout=120
    )
    assert (made.returncode, made.stderr) == (0, "")
    assert {"index.md", "metrics.md", "commands.md", "admin-port.md"} <= {page.name for page in pages.iterdir()}
    if not MKDOCS.exists():
        leave_out("the tools of the site are not installed: make docs")
    settings = (ROOT / "mkdocs.yml").read_text()
    for here, there in (("docs_dir: .venv/docs-pages", f"docs_dir: {pages}"), ("paths: [src]", f"paths: [{ROOT}/src]")):
        assert here in settings
        settings = settings.replace(here, there)
    (tmp_path / "mkdocs.yml").write_text(settings)
    built = subprocess.run(
        [MKDOCS, "build", "--strict", "--config-file", tmp_path / "mkdocs.yml", "--site-dir", tmp_path / "site"],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    assert "sterna_build_info" in (tmp_path / "site/metrics.html").read_text()
