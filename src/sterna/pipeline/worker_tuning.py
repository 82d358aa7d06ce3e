"""Keeps Spark's Python workers quick when tasks are small."""

from __future__ import annotations

import gc

_settled = False


def settle() -> None:
    """At the end of a task: from the first one on, what this worker has loaded counts as there to stay.

    A worker looks for garbage after every task.  Going through the objects of the libraries, none of which ever is
    garbage, takes it several times as long as a small task itself; what is set aside here it does not go through.
    """
    global _settled
    if not _settled:
        _settled = True
        gc.collect()
        gc.freeze()
