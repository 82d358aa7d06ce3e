"""A program that is missing leaves tests out on somebody's machine, and fails them in CI."""

from __future__ import annotations

from pathlib import Path

import pytest
from _pytest.outcomes import Failed, Skipped

from . import browsers, test_monitoring
from .browsers import chromium


@pytest.fixture(autouse=True)
def nothing_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(test_monitoring, "UNPACKED", tmp_path)
    monkeypatch.setattr(browsers, "ROOT", tmp_path)


def need_prometheus() -> None:
    test_monitoring.program("promtool")


def need_chromium() -> None:
    with chromium():
        pass


@pytest.mark.parametrize(("need", "named"), [(need_prometheus, "promtool"), (need_chromium, "Chromium")])
@pytest.mark.parametrize(("ci", "outcome"), [("", Skipped), ("true", Failed)])
def test_a_missing_program_is_no_reason_for_ci_to_be_green(
    need: object, named: str, ci: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", ci)
    assert callable(need)
    with pytest.raises(outcome, match=named):
        need()
