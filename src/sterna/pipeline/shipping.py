"""Makes an archive with which Spark's machines read and write a network though Sterna is not installed on them.

It holds Sterna and the packages that its source and sink need, as they are installed here; machines have PySpark with
pandas and pyarrow already.  Spark unpacks it beside each executor (`--archives`).  Compiled packages are of this
machine's kind and Python.  Needs no Spark.
"""

from __future__ import annotations

import sysconfig
import tarfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple

import sterna
from sterna.pipeline.errors import PipelineError

#: Of Sterna's own dependencies these are all that tasks import, beside what PySpark asks for.
NEEDED = ("msgspec", "paho-mqtt")
_OWN = ("sterna", "pyspark_sterna", "pyspark_sterna_archive")
_LEFT_OUT = ("__pycache__", ".pyc")


class ShippedArchive(NamedTuple):
    files: int
    python: str
    """That executors must run."""


def make_archive(target: Path) -> ShippedArchive:
    """A .tar.gz whose top is a directory for PYTHONPATH."""
    if not target.name.endswith((".tar.gz", ".tgz")):
        raise PipelineError(f"{target}: call it .tar.gz, which Spark unpacks")
    files = [*_own_files(), *(one for name in NEEDED for one in _files_of(name))]
    making = target.with_name(f".{target.name}.making")
    with tarfile.open(making, "w:gz") as archive:
        for path, name in files:
            archive.add(path, name, recursive=False)
    making.replace(target)
    return ShippedArchive(len(files), sysconfig.get_python_version())


def _own_files() -> list[tuple[Path, str]]:
    """Interpreted: the hot modules do the same either way, and a compiled one fits only machines like this."""
    root = Path(sterna.__file__).parent.parent
    found = [path for name in _OWN for path in sorted((root / name).rglob("*")) if path.is_file()]
    return [(path, str(path.relative_to(root))) for path in found if _is_wanted(path) and path.suffix != ".so"]


def _files_of(name: str) -> list[tuple[Path, str]]:
    try:
        files = distribution(name).files or []
    except PackageNotFoundError:
        raise PipelineError(f"{name} is not installed here, and tasks need it; pip install {name}") from None
    paths = [(Path(str(one.locate())), str(one)) for one in files if ".." not in one.parts]
    return [(path, inside) for path, inside in paths if path.is_file() and _is_wanted(path)]


def _is_wanted(path: Path) -> bool:
    return not any(word in str(path) for word in _LEFT_OUT)
