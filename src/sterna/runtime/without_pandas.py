"""Arrow in a node: only where a feed or records of deliveries are asked for, and without pandas.

Where it is installed (the pipeline needs it), pyarrow loads it with the first list it is given, only to see that a list
is none of its series: a second of silence at the first commit, and 20 MB.  It tries once; so does this.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


def is_installed() -> bool:
    return find_spec("pyarrow") is not None


class _NoPandas(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name == "pandas":
            raise ImportError("a node does without pandas")
        return None


def do_without_pandas() -> None:
    """To be called before anything is written.  Afterwards pandas can be imported as ever; pyarrow just will not."""
    import pyarrow as pa

    if "pandas" not in sys.modules:
        guard = _NoPandas()
        sys.meta_path.insert(0, guard)
        try:
            pa.array([b""])
        finally:
            sys.meta_path.remove(guard)
