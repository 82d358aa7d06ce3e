"""Topic filters for a foreign broker: no two of them may match the same topic.

Some brokers send a message once for each filter that matches, some once for all: copies could not be told from equal
messages.
"""

from __future__ import annotations

from collections.abc import Sequence

from sterna.mqtt.topics import SHARE, covers, is_topic_filter, levels_of, overlap
from sterna.vocabulary.errors import ConfigurationError

LEVELS_MAX = 128
BYTES_MAX = 4096
FILTERS_MAX = 1000


def checked_filters(filters: Sequence[str]) -> list[bytes]:
    """The filters, encoded, perhaps none at all; a ConfigurationError that says what to change if one is no filter."""
    if len(filters) > FILTERS_MAX:
        raise ConfigurationError(f"there are {len(filters)}, and at most {FILTERS_MAX} may be: use wildcards")
    for topic_filter in filters:
        raw = topic_filter.encode()
        if raw.startswith(SHARE):
            raise ConfigurationError(f"{topic_filter!r} is shared: leave out `$share/group/`")
        if raw.startswith(b"$"):
            raise ConfigurationError(
                f"{topic_filter!r}: topics that begin with `$` belong to one broker and never cross"
            )
        if "\0" in topic_filter or not is_topic_filter(raw, LEVELS_MAX, BYTES_MAX):
            raise ConfigurationError(
                f"{topic_filter!r} is no topic filter: `+` and `#` stand for whole levels, `#` last"
            )
    return [topic_filter.encode() for topic_filter in filters]


def disjoint_filters(filters: Sequence[str]) -> list[bytes]:
    """The same without those that another one covers; a ConfigurationError if two overlap otherwise."""
    found: list[bytes] = []
    for one in dict.fromkeys(checked_filters(filters)):
        levels = levels_of(one)
        if any(covers(levels_of(other), levels) for other in found):
            continue
        found = [other for other in found if not covers(levels, levels_of(other))]
        for other in found:
            if overlap(levels_of(other), levels):
                both = f"{other.decode()!r} and {one.decode()!r}"
                raise ConfigurationError(f"{both} match some of the same topics: write one filter that covers both")
        found.append(one)
    return found
