"""Archives of releases that kept a list of files of their own: their files enter the log of a Delta table, all at once.

Nothing is copied.  Killed at any moment, the archive is still of the old kind, or it is of the new one.
"""

from __future__ import annotations

import re
import shutil
from datetime import date
from pathlib import Path

from sterna.pipeline.archive.delta_log import FileFacts, NewFile
from sterna.pipeline.archive.file_list import FileList, Listed, last_batch
from sterna.pipeline.archive.files import ArchiveFiles
from sterna.pipeline.archive.parquet_files import opened
from sterna.pipeline.errors import PipelineError

_PLACE = re.compile(r"date=(\d{4}-\d{2}-\d{2})/first_level=([^/]*)/[^/]+$")
_ESCAPED = re.compile(r"%([0-9A-Fa-f]{2})")
_NULL = "__HIVE_DEFAULT_PARTITION__"


def convert(files: ArchiveFiles) -> int:
    """How many files of an archive of the old kind were taken over; 0 if it is none."""
    if files.directory is None or files.exists():
        return 0
    messages = Path(files.messages)
    old = FileList(messages)
    found = old.load()
    if not old.path.exists():
        return 0
    batch = last_batch(found)
    note = files.directory / "checkpoint" / "offsets" / str(batch)
    if note.exists():
        files.storage.put(f"_sterna/reached/{batch}.json", note.read_text().splitlines()[2].encode())
    files.log.create([_entry(files, messages.absolute(), one) for one in found], None if batch < 0 else batch)
    shutil.rmtree(files.directory / "making", ignore_errors=True)
    files.publish()
    return len(found)


def _entry(files: ArchiveFiles, messages: Path, one: Listed) -> NewFile:
    path = one.file
    if not path.is_relative_to(messages):
        raise PipelineError(f"{path} is in the archive's list and not below {messages}: it was moved; move it back")
    inside = str(path.relative_to(messages))
    place = _PLACE.fullmatch(inside)
    if place is None:
        raise PipelineError(f"{path} is in no directory of a day and a first level")
    return NewFile(inside, one.size, date.fromisoformat(place[1]), level_of(place[2]), _facts(files, inside))


def level_of(directory: str) -> str:
    """Of the name of a directory, as this release and those before it have made it."""
    name = _ESCAPED.sub(lambda found: chr(int(found[1], 16)), directory)
    if name == _NULL:
        return ""
    if name.startswith("~") and len(name) % 2 == 1:
        try:
            return bytes.fromhex(name[1:]).decode()
        except ValueError:
            return name
    return name


def _facts(files: ArchiveFiles, path: str) -> FileFacts | None:
    """From the end of the file; none where it does not say."""
    try:
        with opened(files.storage, path) as file:
            about = file.metadata
            names = [about.schema.column(number).path for number in range(about.num_columns)]
            column = names.index("topic")
            ends = [about.row_group(number).column(column).statistics for number in range(about.num_row_groups)]
            if not ends or not all(end is not None and end.has_min_max for end in ends):
                return None
            return FileFacts(about.num_rows, min(end.min for end in ends), max(end.max for end in ends), None, None)
    except FileNotFoundError:
        raise PipelineError(f"{path} is in the archive's list, and gone") from None
