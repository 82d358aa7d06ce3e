"""Settings of Spark that a job needs, whatever machine or cluster it runs on; a user's own win.  Needs no Spark."""

from __future__ import annotations

from collections.abc import Mapping

#: Of jobs that read much at once: Spark then sees how much before it chooses how many tasks shuffle it.
MUCH_AT_ONCE: Mapping[str, str] = {"spark.sql.adaptive.enabled": "true"}

#: Of expressions: Spark itself has little to do for a batch, and plans each.  Compiling takes longer than running, and
#: there is nothing to find out about how large a batch is: each lane is one task.
SMALL_BATCHES: Mapping[str, str] = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
}


def as_words(settings: Mapping[str, str]) -> list[str]:
    """As a command line has them."""
    return [f"{key}={value}" for key, value in settings.items()]
