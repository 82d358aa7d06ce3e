"""Workers of Spark do not look for garbage among what stays."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from sterna.pipeline import worker_tuning


@pytest.fixture
def new_worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker_tuning, "_settled", False)
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("new_worker")
def test_what_the_first_task_has_loaded_is_set_aside_and_nothing_after_it() -> None:
    worker_tuning.settle()
    aside = gc.get_freeze_count()
    assert aside > 10_000
    later = [[number] for number in range(10_000)]
    worker_tuning.settle()
    assert gc.get_freeze_count() <= aside
    assert len(later) == 10_000
