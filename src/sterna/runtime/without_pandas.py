"""pyarrow in a node: loaded only for a feed or records of deliveries, and without pandas.

pyarrow imports pandas, where it is installed (the pipeline needs it), with the first list it is given, only to see that
the list is not a pandas series.  That costs a second at the first commit, and 20 MB.  pyarrow tries once, so this
module makes that one try fail.
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
