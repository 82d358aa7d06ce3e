"""The first level of a topic as a column and as the name of a directory; any level must work.

The column `first_level` is the level itself.  A level of more than LEVEL_BYTES_MAX bytes becomes its first
CUT_CHARACTERS characters, a tilde and the first 16 digits of its SHA-256.  The directory has the same name if that is
printable ASCII.  Any other name, and the empty one, becomes a tilde and its UTF-8 in hexadecimal: file systems allow
255 bytes, Spark writes up to three bytes per character, treats an empty name as null, and encodes non-ASCII names by
its locale.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as f

LEVEL_BYTES_MAX = 80
CUT_CHARACTERS = 15
_DIGITS = 16

#: Spark's name for the directory of null values.
_NULL = "__HIVE_DEFAULT_PARTITION__"


def first_level(topic: str | Column) -> Column:
    return bounded(f.split_part(f.col(topic) if isinstance(topic, str) else topic, f.lit("/"), f.lit(1)))


def bounded(level: Column) -> Column:
    """A level that is not too long; what is bounded stays as it is."""
    cut = f.concat(f.substring(level, 1, CUT_CHARACTERS), f.lit("~"), f.substring(f.sha2(level, 256), 1, _DIGITS))
    return f.when(f.octet_length(level) <= LEVEL_BYTES_MAX, level).otherwise(cut)


def directory_of(level: Column) -> Column:
    """The name of the directory of a level."""
    is_plain = level.rlike("^[ -}][ -~]*$") & (level != _NULL)
    coded = f.concat(f.lit("~"), f.lower(f.hex(f.encode(level, "UTF-8"))))
    return f.when(is_plain, level).otherwise(coded)


def level_of(directory: Column) -> Column:
    """The level whose directory it is, also of an archive of an earlier release; nothing but the directory is needed,
    so that Spark leaves others unread."""
    # No regular expression: Spark takes them for costly, and would not look at directories with one.
    is_coded = f.startswith(directory, f.lit("~")) & (f.length(directory) % 2 == 1)
    level = f.when(is_coded, f.decode(f.unhex(f.substring(directory, 2, 2 * LEVEL_BYTES_MAX)), "UTF-8"))
    return bounded(f.coalesce(level, directory, f.lit("")))
