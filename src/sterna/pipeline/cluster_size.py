"""How many cores Spark has, once its executors are there.

A session of a cluster opens before its executors have registered, and until then Spark counts two cores, whatever the
cluster has.  So whoever deals work out by cores waits for executors first: for as many as the settings ask for, or
until no more have come for a while.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from sterna.pipeline.errors import PipelineError
from sterna.pipeline.spark_session import is_one_machine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST_S = 120.0
"""For the first executor."""
QUIET_S = 5.0
"""So long after the newest executor it is taken for the last one ..."""
QUIET_ASKED_S = 30.0
"""... or so long, if the settings ask for more than have come."""
LOOK_S = 0.2
CORES_AT_LEAST = 2
"""Spark counts so many if there are fewer."""

Tell = Callable[[str], None]
Setting = Callable[[str, str], str]


class Registered(NamedTuple):
    executors: int
    cores: int


def core_count(spark: SparkSession, tell: Tell) -> int:
    """Of this machine, or of all executors; PipelineError if none has come in time."""
    context = spark.sparkContext
    conf, master = context.getConf(), str(context.master)
    if is_one_machine(master) or conf.contains("spark.default.parallelism"):
        return context.defaultParallelism
    if conf.get("spark.dynamicAllocation.enabled") == "true":
        tell(f"executors come and go (spark.dynamicAllocation.enabled): work is dealt to {context.defaultParallelism}")
        return context.defaultParallelism

    def look() -> Registered:
        executors = len(context._jsc.sc().statusTracker().getExecutorInfos()) - 1  # the driver is one of them
        return Registered(executors, context.defaultParallelism)

    return settled(look, cores_asked_for(lambda name, default: str(conf.get(name, default))), master, tell)


def cores_asked_for(setting: Setting) -> int | None:
    """None if the cluster gives what it has."""
    instances = int(setting("spark.executor.instances", "0")) * int(setting("spark.executor.cores", "1"))
    return instances or int(setting("spark.cores.max", "0")) or None


def settled(
    look: Callable[[], Registered],
    asked: int | None,
    cluster: str,
    tell: Tell,
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> int:
    """The cores when no more are to come."""
    begin = newest_at = clock()
    found = Registered(0, 0)
    is_told = False
    while True:
        seen, now = look(), clock()
        if seen != found:
            found, newest_at = seen, now
        if found.executors and asked is not None and found.cores >= max(asked, CORES_AT_LEAST):
            return found.cores
        if found.executors and now - newest_at >= (QUIET_S if asked is None else QUIET_ASKED_S):
            if asked is not None:
                tell(f"{cluster} gave {found.cores} cores of the {asked} that were asked for; going on with these")
            return found.cores
        if not found.executors and now - begin >= FIRST_S:
            raise PipelineError(
                f"no executor of {cluster} has come within {FIRST_S:g} s: see whether it has cores and memory to "
                "spare, and whether its machines reach this one"
            )
        if not is_told:
            tell(f"waiting for executors of {cluster}")
            is_told = True
        pause(LOOK_S)
